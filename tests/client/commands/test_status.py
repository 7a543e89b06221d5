"""`rewardfleet status`: real services, alone and behind a gateway."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import aiohttp
import httpx
import pytest

from rewardfleet import RewardFleet, __version__
from rewardfleet.commands.main import main
from rewardfleet.commands.status import fleet_status
from rewardfleet.http import index
from rewardfleet.wire.urls import is_loopback
from rewardfleet_server.code.app import create_app as create_code_app
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.testing import FakeJudge, FakeSandbox, serving, wait_until
from rewardfleet_server.up import gateway as gateway_module
from rewardfleet_server.up.gateway import Gateway
from rewardfleet_server.up.replicas import Replica

from ...gateways import LOOPBACK, fleet_of, replica, reply, standin_gateway
from ...server.observe.test_in_flight import body, posting

#: An address at which nothing listens.
NOTHING = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def slow_answers(monkeypatch) -> None:
    """Wait for answers, also on a busy machine, and print wide tables."""
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(index, "_TIMEOUT_SECONDS", 30)
    monkeypatch.setattr(gateway_module, "_IN_FLIGHT_TIME", aiohttp.ClientTimeout(30))


@pytest.fixture
def status(capsys):
    """Run the command; return its exit status and the rows of its JSON."""

    def run(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        exit_status = main(["status", "--json", *arguments])
        return exit_status, json.loads(capsys.readouterr().out)

    return run


@contextmanager
def answering(status_code: int, content: bytes, *, index: bytes | None = None) -> Iterator[str]:
    """Serve the same answer to every request, and `index` to `GET /`; yield the URL."""

    async def app(scope, receive, send):
        assert scope["type"] == "http"
        is_index = index is not None and scope["path"] == "/"
        await reply(send, 200 if is_index else status_code, [], index if is_index else content)

    with serving(app) as url:
        yield url


def test_a_terminal_that_is_too_narrow_gets_lists(code_url, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["status", code_url, code_url]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = ["service  code", f"address  {code_url}", "health   ready", f"version  {__version__}"]
    assert lines[:4] == lines[lines.index("") + 1 :][:4] == row
    assert max(map(len, lines)) <= 60


def test_the_load_needs_the_right_key(tmp_path, status, monkeypatch, capsys):
    (tmp_path / "keys").write_text("right\n")
    app = create_code_app(CodeSettings(api_key_file=tmp_path / "keys"), FakeSandbox())
    with serving(app) as service, fleet_of(code=service) as url:
        for key, said in (
            ("", "needs an API key: set REWARDFLEET_API_KEY"),
            ("another", "REWARDFLEET_API_KEY is wrong"),
            ("right\n", "code"),
        ):
            monkeypatch.setenv("REWARDFLEET_API_KEY", key)
            exit_status, (row,) = status(service)
            assert (exit_status, row["health"]) == (0, "ready")
            assert row["load"].get("requests") == (0 if key == "right\n" else None)
            assert main(["status", url]) == 0
            assert said in capsys.readouterr().out
        monkeypatch.setenv("REWARDFLEET_API_KEY", "another")
        assert main(["status", "--inflight", url]) == 1
        assert "it does not accept the API key" in capsys.readouterr().out
        monkeypatch.setenv("REWARDFLEET_API_KEY", "hunter2\nb")
        assert main(["status", url]) == 2
    error = capsys.readouterr().err
    assert "the API key is not one line of plain ASCII" in error and "hunter2" not in error


def test_a_single_service(serve, code_url, status):
    video_url = str(serve(FakeJudge()).base_url).rstrip("/")
    exit_status, (video, code) = status(video_url, code_url)
    assert exit_status == 0
    idle = {"requests": 0, "in_flight_items": 0, "queued_items": 0}
    for row in (video, code):
        assert (row["health"], row["version"], row["load"]) == ("ready", __version__, idle)
    assert (video["service"], video["url"]) == ("video", video_url)
    assert video["details"] == {"default_backend": "fake", "loaded_backends": ["fake"]}
    assert (code["service"], code["details"]) == ("code", {"isolation": "none-unsafe"})
    assert code["restarts"] is None


def test_the_replicas_behind_a_local_gateway_are_asked(serve, code_url, status):
    failing = FakeJudge()
    failing.failure = "the engine has ended"
    urls = [str(serve(judge).base_url).rstrip("/") for judge in (FakeJudge(), failing)]
    replicas = {
        "video": [
            Replica("video", urls[0], True, restarts=2, last_failure="was ended by SIGKILL"),
            Replica("video", urls[1], False, last_failure="the engine has ended"),
        ],
        "code": [Replica("code", code_url)],
        "tools": [Replica("tools", NOTHING, restarts=7, last_failure="ended with 1")],
    }
    with serving(Gateway(replicas, LOOPBACK)) as url:
        exit_status, rows = status(url)
    assert exit_status == 1
    assert [(each["service"], each["url"], each["health"], each["reason"]) for each in rows] == [
        ("gateway", url, "ready", ""),
        ("video", urls[0], "ready", ""),
        ("video", urls[1], "not ready", "the engine has ended"),
        ("code", code_url, "starting", ""),
        ("tools", NOTHING, "not ready", "ended with 1"),
    ]
    assert [each["restarts"] for each in rows] == [None, 2, 0, 0, 7]
    assert rows[1]["last_failure"] == "was ended by SIGKILL"
    assert rows[1]["load"]["in_flight_items"] == 0
    assert (rows[4]["version"], rows[4]["load"]) == ("", {})


def test_of_replicas_out_of_reach_the_gateway_reports(serve, status):
    """Their addresses may lead nowhere from here, as behind a forwarded port."""
    video_url = str(serve().base_url)
    addresses = [NOTHING, "http://10.255.0.1:18080", "nonsense"]
    shown = {"video": [replica(url, outstanding=3) for url in addresses]}
    with standin_gateway(shown, hidden={"video": [replica(video_url)]}) as url:
        exit_status, rows = status(url)
    assert exit_status == 0
    for row, address in zip(rows[1:], addresses, strict=True):
        assert (row["url"], row["health"], row["version"]) == (address, "ready", __version__)
        assert (row["load"], row["details"]["default_backend"]) == ({"requests": 3}, "fake")


def test_a_remote_gateway_does_not_choose_addresses_of_this_machine():
    here = ["http://localhost:18000", "http://127.0.0.1:18080", "http://[::1]:1"]
    elsewhere = ["http://gateway.example:18000", "http://10.0.0.1:18080", "nonsense"]
    assert [url for url in here + elsewhere if is_loopback(url)] == here


@pytest.mark.slow
def test_services_below_an_ingress_without_an_index(serve, code_url, status):
    """It passes on what is below `/video` and `/code`, and answers 404 to the rest."""
    replicas = {"video": [replica(str(serve().base_url))], "code": [replica(code_url)]}
    with standin_gateway(replicas, has_index=False) as url:
        exit_status, rows = status(url)
        assert exit_status == 0
        assert [(each["service"], each["url"], each["health"]) for each in rows] == [
            ("video", f"{url}/video", "ready"),
            ("code", f"{url}/code", "ready"),
        ]
        exit_status, (row,) = status(f"{url}/nothing")
        assert (exit_status, row["health"]) == (1, "unreachable")


@pytest.mark.slow
def test_what_is_not_a_service_is_a_row_with_the_reason(code_url, status, monkeypatch):
    async def silent(scope, receive, send):
        assert scope["type"] == "http"
        await receive()
        await receive()

    with answering(200, b"<html>welcome</html>") as other:
        with standin_gateway({"video": []}, hidden={"video": [replica(code_url)]}) as fleet:
            exit_status, (_, wrong) = status(fleet)
        assert (exit_status, wrong["health"]) == (1, "not ready")
        assert wrong["reason"] == "this is the code service"
        exit_status, rows = status(NOTHING, other)
    assert exit_status == 1
    monkeypatch.setattr(index, "_TIMEOUT_SECONDS", 2)  # only for what never answers
    with serving(silent) as silent_url:
        rows += status(silent_url)[1]
    assert [(each["service"], each["health"]) for each in rows] == [("?", "unreachable")] * 3
    reasons = [each["reason"] for each in rows]
    assert "connection" in reasons[0]
    assert reasons[1:] == ["HTTP 200, not an answer of rewardfleet", "no answer within 2 s"]


@pytest.mark.parametrize(
    "index",
    [b'{"service": "gateway", "services": []}', b"[]", b'{"service": 1}', b"\xff", b"{"],
)
def test_an_invalid_index_is_not_that_of_a_service(index: bytes, status):
    with answering(404, b"", index=index) as url:
        exit_status, rows = status(url)
    assert (exit_status, [each["health"] for each in rows]) == (1, ["unreachable"])


def test_control_characters_of_a_service_are_not_printed(capsys):
    index = json.dumps({"service": "code", "version": "\x1b[2J1\n2"}).encode()
    with answering(200, b'{"isolation": "\\u001b[31mfull"}', index=index) as url:
        main(["status", url])
    output = capsys.readouterr().out
    assert "\x1b" not in output and "[2J1 2" in output and "isolation  [31mfull" in output


async def test_the_load_counts_requests_and_items(serve, make_video):
    url = str(serve(FakeJudge(wait_s=120), max_in_flight=1).base_url)
    clip = make_video(4).read_bytes()
    async with RewardFleet(video=url) as fleet, asyncio.TaskGroup() as group:
        calls = [group.create_task(fleet.video.score(f"task {n}", clip)) for n in range(3)]
        async with asyncio.timeout(60):
            load = {}
            while load != {"requests": 3, "in_flight_items": 1, "queued_items": 2}:
                (row,) = await fleet_status([url.rstrip("/")])
                load = row.load
        for call in calls:
            call.cancel()


def test_the_table_is_plain_text_and_shows_no_credentials(code_url, capsys):
    with_password = code_url.replace("//", "//user:hunter2@")
    replicas = {"code": [replica(with_password, restarts=2, last_failure="was ended by SIGKILL")]}
    with standin_gateway(replicas) as url:
        fleet_url = url.replace("//", "//user:hunter2@")
        exit_status = main(["status", fleet_url, with_password])
    output = capsys.readouterr().out
    lines = [line.split() for line in output.splitlines()]
    assert exit_status == 0
    assert "hunter2" not in output
    assert lines[0][:4] == ["service", "address", "health", "version"]
    assert [line[0] for line in lines[1:]] == ["gateway", "code", "code"]
    assert "isolation none-unsafe; restarts 2 (was ended by SIGKILL)" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "give a URL such as http://127.0.0.1:18000, not 'nonsense'"),
        (["http://user:hunter2@host:x"], "not 'http://***@host:x'"),
        (["http://host/?key=hunter2"], "not 'http://host/?***'"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message, capsys):
    assert main(["status", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and "hunter2" not in error


def test_the_url_is_taken_from_the_environment(code_url, status, monkeypatch):
    monkeypatch.setenv("REWARDFLEET_URL", NOTHING)
    assert [each["url"] for each in status()[1]] == [NOTHING]
    assert [each["url"] for each in status(code_url)[1]] == [code_url]


@pytest.mark.slow
def test_samples_in_flight_of_all_replicas(serve, code_url, capsys, tmp_path, monkeypatch):
    """A fleet is asked by its gateway; single services are asked also below an ingress."""
    monkeypatch.setenv("REWARDFLEET_API_KEY", "secret")
    keys = tmp_path / "keys"
    keys.write_text("secret")
    services = [serve(FakeJudge(wait_s=120), max_in_flight=1, api_key_file=keys) for _ in range(2)]
    videos = [str(each.base_url).rstrip("/") for each in services]
    replicas = {
        "video": [Replica("video", url, is_ready=True) for url in videos],
        "code": [Replica("code", code_url, is_ready=True), Replica("code", NOTHING)],
    }

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        exit_status = main(["status", "--inflight", "--json", *arguments])
        return exit_status, json.loads(capsys.readouterr().out)

    key = {"authorization": "Bearer secret"}
    with ExitStack() as stack:
        for number, (place, total) in enumerate([(0, 1), (1, 1), (1, 2)]):
            service = services[place]
            headers = {"x-request-id": f"call-{number}", **key}
            stack.enter_context(posting(service, "/score", body(number), **headers))
            asked = partial(service.get, "/inflight", headers=key)
            wait_until(lambda asked=asked, total=total: asked().json()["total"] == total)
        url = stack.enter_context(serving(Gateway(replicas, LOOPBACK)))
        exit_status, found = run(url)
        assert (exit_status, found["total"], list(found["failures"])) == (1, 3, [NOTHING])
        assert "connect" in found["failures"][NOTHING]
        samples = {each["request_id"]: each for each in found["samples"]}
        assert {name: each["replica"] for name, each in samples.items()} == {
            "call-0": videos[0], "call-1": videos[1], "call-2": videos[1],
        }  # fmt: skip
        ages = [each["age_s"] for each in found["samples"]]
        assert ages == sorted(ages, reverse=True)
        stages = {"backend", "queue"}
        wait_until(lambda: {each["stage"] for each in run(url)[1]["samples"]} == stages)
        exit_status, found = run(videos[1], code_url)
        assert (exit_status, found["total"]) == (0, 2)
        assert all(each["replica"].startswith(videos[1]) for each in found["samples"])
        shown = {"video": [replica(videos[0])], "code": [replica(code_url)]}
        ingress = stack.enter_context(standin_gateway(shown, has_index=False))
        exit_status, found = run(ingress)
        assert (exit_status, found["total"]) == (0, 1)
        assert main(["status", "--inflight", url]) == 1
        output = capsys.readouterr().out
        assert output.splitlines()[0].split()[:4] == ["age", "left", "stage", "items"]
        assert "call-0" in output and "3 samples in flight" in output and NOTHING in output
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as gateway:
            answer = gateway.get("/video/inflight", headers=key)
            assert answer.json()["total"] == 3
            answer = gateway.get("/inflight")
            assert "call-0" not in answer.text  # the code service here needs no key
            assert answer.json()["failures"][videos[0]] == "it requires an API key"
            assert gateway.get("/video/inflight").status_code == 401
            assert gateway.post("/inflight").status_code == 405
            assert gateway.get("/nothing/inflight").status_code == 404
    assert main(["status", "--inflight", f"{code_url}/nothing"]) == 1
    assert "no endpoint" in capsys.readouterr().out
