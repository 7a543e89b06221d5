"""OpenEnv's WebSocket; openenv-core's own client is in tests/third_party."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from rewardfleet_server.testing import wait_until

from ...conftest import table
from ..processes import service_process

CASE = {"inputs": [""], "outputs": ["5"]}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with service_process("code", "--workers", "1") as (_, url):
        yield url.replace("http", "ws")


@pytest.fixture
def env(address: str) -> Iterator[ClientConnection]:
    with connect(f"{address}/ws", open_timeout=60) as connection:
        yield connection


def ask(env: ClientConnection, message: object) -> dict:
    env.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(env.recv(60))


def step(text: str) -> dict[str, object]:
    return {"type": "step", "data": {"code": text, **CASE}}


@pytest.mark.parametrize(("text", "score"), [("print(5)", 1.0), ("print(6)", 0.0), ("", 0.0)])
def test_an_episode_has_a_reset_and_a_step(env: ClientConnection, text: str, score: float):
    start = ask(env, {"type": "reset", "data": {"seed": 1}})
    assert start == {
        "type": "observation",
        "data": {"observation": {}, "reward": None, "done": False},
    }
    end = ask(env, step(text))
    assert (end["data"]["reward"], end["data"]["done"]) == (score, True)
    assert ask(env, {"type": "state"})["data"]["step_count"] == 1
    env.send(json.dumps({"type": "close"}))
    with pytest.raises(ConnectionClosed):
        env.recv(60)


@pytest.mark.parametrize(
    ("message", "code"), [*table("invalid_messages"), (b"\xff\xfe", "UNKNOWN_TYPE")]
)
def test_a_message_that_is_not_valid_is_an_error(env: ClientConnection, message, code: str):
    answer = ask(env, message)
    assert (answer["type"], answer["data"]["code"]) == ("error", code)
    assert ask(env, step("print(5)"))["data"]["reward"] == 1.0, "the connection goes on"


def test_other_paths_pages_and_large_messages_are_refused(address: str, env: ClientConnection):
    for url, origin in ((f"{address}/nosuch", None), (f"{address}/ws", "https://example.org")):
        with pytest.raises(InvalidStatus, match="403"), connect(url, origin=origin):
            pass
    with pytest.raises(ConnectionClosed):
        ask(env, step("#" * 9 * 2**20))


def test_a_key_is_required(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    with service_process("tools", "--api-key-file", str(keys)) as (_, url):
        address = url.replace("http", "ws") + "/ws"
        with pytest.raises(InvalidStatus, match="403"), connect(address):
            pass
        with connect(address, additional_headers={"Authorization": "Bearer secret"}) as env:
            assert ask(env, {"type": "reset", "data": {}})["type"] == "observation"


def test_a_caller_that_disconnects_ends_its_program(address: str):
    url = address.replace("ws", "http", 1)

    def running() -> float:
        text = httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text
        return float(re.search(r"(?m)^rewardfleet_in_flight_items.* (\S+)$", text)[1])

    with connect(f"{address}/ws", open_timeout=60) as env:
        env.send(json.dumps(step("import time; time.sleep(60)")))
        wait_until(lambda: running() == 1)
    wait_until(lambda: running() == 0, 15)
