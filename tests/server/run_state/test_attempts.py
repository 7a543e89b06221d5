"""A repeat is one of the same content, and a new attempt discards what came after its step."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from rewardfleet import blocking, episode_request
from rewardfleet.commands.main import main
from rewardfleet.wire.errors import Conflict
from rewardfleet.wire.headers import DISCARDED_HEADER
from rewardfleet_server.run_state import RunState, Scope
from rewardfleet_server.testing import serving
from rewardfleet_server.up.gateway import Gateway
from rewardfleet_server.up.replicas import Replica, watch

from ...gateways import LOOPBACK, fleet_of
from ..episode.conftest import served_episodes
from ..tools.conftest import TRUTH, served_tools
from .test_state import open_file

Service = httpx.Client
RUN = "run {1}"


def member(service: Service, content: int, place: dict) -> httpx.Response:
    item = {"uid": "a", "group": "g", "success": content}
    return service.post("/groups/members", json={**place, "group_size": 1, "item": item})


def batch(service: Service, content: int, place: dict) -> httpx.Response:
    items = [{"uid": each, "success": content} for each in "ab"]
    options = {"normalize": "running"}
    return service.post("/score/batch", json={**place, "items": items, "options": options})


def temperatures(service: Service, content: int, place: dict) -> httpx.Response:
    adapt = {**place, "success_rate": content}
    return service.post("/temperatures", json={"n": 2, "adapt": adapt})


#: By which the multiplier is as large as the error.
DUAL_ASCENT = {"controller": "dual_ascent", "eta": 1}


def part(service: Service, content: int, place: dict) -> httpx.Response:
    options = {**DUAL_ASCENT, "budget": 0.25, "parts": 1, "attempt": place.get("attempt")}
    service.put(f"/budgets/{RUN}", json=options)
    body = {name: each for name, each in place.items() if name != "run"}
    body |= {"part": "a", "costs": [content]}
    return service.post(f"/budgets/{RUN}/update", json=body)


#: Every call that counts once, by what names it besides run and step: its service and the call.
KEYS: dict[str, tuple[Callable[..., Any], Callable[..., httpx.Response]]] = {
    "uid of a group": (served_episodes, member),
    "uid of a batch": (served_episodes, batch),
    "temperatures": (served_episodes, temperatures),
    "part": (served_tools, part),
}


@contextmanager
def replicas(make: Callable[..., Any], store: object) -> Iterator[list[Service]]:
    with ExitStack() as stack:
        yield [stack.enter_context(make(run_state=store, replicas=2)) for _ in range(2)]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("key", KEYS)
def test_a_repeat_has_the_same_content(key: str, run_state: str):
    make, call = KEYS[key]

    def answer(service: Service, content: int, step: int, attempt: str | None = None) -> Any:
        place = {"run": RUN, "step": step, "attempt": attempt}
        response = call(service, content, place)
        body = response.json()
        if response.status_code == 409:
            assert (body["kind"], body["retryable"]) == ("conflict", False)
            assert "`attempt`" in body["detail"] or "attempt: " in body["detail"]
            return "conflict"
        assert response.status_code == 200, response.text
        body.pop("timing_ms", None)
        for each in (*body.get("results", ()), body.get("result") or {}):
            each.pop("timing_ms", None), each.get("provenance", {}).pop("request_id", None)
        return body, response.headers.get(DISCARDED_HEADER)

    with replicas(make, run_state) as (one, other):
        assert one.get("/readyz").json()["run_state"] == other.get("/readyz").json()["run_state"]
        first = [answer(one, 1, step) for step in range(3)]
        for service in (one, other):
            assert [answer(service, 1, step) for step in range(3)] == first
            assert [answer(service, 0, step) for step in range(3)] == ["conflict"] * 3
    with replicas(make, run_state) as (one, other):  # after a restart
        assert [answer(other, 1, step) for step in range(3)] == first
        again = answer(one, 0, 1, "second")
        assert again[1] == "1", "it says what it has discarded"
        assert again[0] != first[1][0]
        assert answer(other, 0, 1, "second") == (again[0], None), "once"
        assert answer(other, 1, 0, "second") == first[0], "what came before stays"
        assert answer(other, 1, 1, "second") == "conflict"
        later = answer(other, 1, 2, "second")
        assert answer(one, 1, 1) == "conflict", "the first attempt has ended"
        assert one.delete(f"/runs/{RUN}").json() == {"run": RUN, "was_stored": True}
        assert other.delete(f"/runs/{RUN}").json() == {"run": RUN, "was_stored": False}
        assert [answer(other, *each, "third") for each in ((1, 0), (0, 1), (1, 2))] == [
            first[0],
            (again[0], None),
            later,
        ]


def test_states_before_the_last_steps_are_those_of_the_steps_before(tmp_path: Path):
    """In any order of arrival, and with parts of several steps between each other."""
    generator = random.Random(0)

    async def check(number: int) -> None:
        store, scope = open_file(tmp_path / f"{number}.sqlite"), Scope(RUN, "list")
        arrived: list[tuple[int, str]] = []
        attempt = 0
        for _ in range(60):
            newest = max((step for step, _ in arrived), default=0)
            step, uid = max(newest + generator.randint(-3, 1), 0), str(generator.randrange(9))
            if generator.random() < 0.1:
                attempt += 1
                kept = [each for each in arrived if each[0] < step]
            else:
                kept = arrived
            await _append(store, scope, step, uid, attempt)
            arrived = kept if (step, uid) in kept else [*kept, (step, uid)]
            assert await store.read(scope) == [list(each) for each in arrived]
        await store.aclose()

    for number in range(30):
        asyncio.run(check(number))


async def _append(store: RunState, scope: Scope, step: int, uid: str, attempt: int) -> None:
    def transition(state: Any) -> tuple[Any, Any]:
        return [*(state or []), [step, uid]], None

    await store.apply_once(scope, step, uid, transition, attempt=str(attempt))


def test_a_state_that_is_not_stored_any_more_is_not_guessed():
    with served_episodes() as service:
        for step in range(12):
            assert batch(service, 1, {"run": RUN, "step": step}).status_code == 200
        refused = batch(service, 1, {"run": RUN, "step": 3, "attempt": "b"})
        assert refused.status_code == 409
        assert f"DELETE /runs/{RUN}" in refused.json()["detail"]
        assert batch(service, 1, {"run": RUN, "step": 12}).status_code == 200, "as before"


def test_a_checkpoint_begins_an_attempt():
    with served_tools() as service:
        for step in range(4):
            part(service, 1, {"run": RUN, "step": step})
        checkpoint = service.get(f"/budgets/{RUN}").json()["checkpoint"] | {"step": 2}
        options = {"parts": 1, "checkpoint": checkpoint, "attempt": "b"}
        restored = service.put(f"/budgets/{RUN}", json=options)
        assert restored.headers[DISCARDED_HEADER] == "3"
        assert part(service, 0, {"run": RUN, "step": 3, "attempt": "b"}).status_code == 200
        assert part(service, 1, {"run": RUN, "step": 4}).status_code == 409
        item = {"response": TRUTH, "ground_truth": TRUTH, "run": RUN, "step": 2, "attempt": "b"}
        assert service.post("/score", json=item).status_code == 200, "as for validation"
        refused = part(service, 1, {"run": RUN, "step": 2, "attempt": "c"})
        assert refused.status_code == 409, "the checkpoint does not have what was before"
        assert "DELETE" in refused.json()["detail"]


def test_lambda_is_fixed_in_a_step():
    with served_tools() as service:
        service.put(f"/budgets/{RUN}", json={**DUAL_ASCENT, "budget": 0, "parts": 1})

        def price(step: int | None, attempt: str | None = None) -> float:
            item = {"response": TRUTH, "ground_truth": TRUTH, "run": RUN, "step": step}
            item["attempt"] = attempt
            (batched,) = service.post("/score/batch", json={"items": [item]}).json()["results"]
            alone = service.post("/score", json=item).json()
            assert alone["score"] == batched["score"]
            return 4.0 - alone["score"]

        assert price(0) == 0
        assert part(service, 1, {"run": RUN, "step": 0}).json()["lambda"] == 0.75
        assert [price(0), price(1), price(None)] == [0, 0.75, 0.75]
        part(service, 1, {"run": RUN, "step": 1})
        assert [price(1), price(2)] == [0.75, 1.5]
        service.put(f"/budgets/{RUN}", json={"parts": 1, "max_lambda": 0.5})
        assert [price(1, "b"), price(0, "b")] == [0.5, 0], "as it was before, within the limit"
        item = {"response": TRUTH, "ground_truth": TRUTH, "run": RUN}
        assert service.post("/score", json=item).status_code == 409, "also without a step"


def test_a_batch_of_several_steps_discards_from_the_first():
    with served_tools() as service:
        service.put(f"/budgets/{RUN}", json={"parts": 1})
        item = {"response": TRUTH, "ground_truth": TRUTH, "run": RUN}
        for attempt in "abcdefgh":  # sets of steps have any order
            steps = [{**item, "step": step, "attempt": attempt} for step in (12, 5, 9, 7)]
            scored = service.post("/score/batch", json={"items": steps})
            assert scored.headers.get(DISCARDED_HEADER) == (None if attempt == "a" else "5")
        item |= {"ground_truth": "<tool_call>{</tool_call>", "step": 3, "attempt": "i"}
        failed = service.post("/score", json=item)
        assert (failed.status_code, failed.headers.get(DISCARDED_HEADER)) == (422, "3")


def test_replicas_with_run_state_of_their_own_are_refused(tmp_path: Path):
    items = [episode_request(each, group="g", success=each == "a") for each in "ab"]

    def use(**where: Any) -> None:
        with blocking.RewardFleet(**where) as fleet:
            for _ in range(2):
                fleet.episode.score_batch(items)

    with replicas(served_episodes, tmp_path / "runs.sqlite") as (one, other):
        shared = [str(one.base_url), str(other.base_url)]
        use(episode=shared)
        with served_episodes() as own:
            apart = [shared[0], str(own.base_url)]
            with pytest.raises(Conflict, match=r"episode service have .*--run-state redis"):
                use(episode=apart)
            with gateway_of("episode", shared) as url:
                use(url=url)
            for down in (0, 1):
                with gateway_of("episode", apart, down=down) as url:
                    for _ in range(3):
                        with pytest.raises(Conflict, match=r"episode service have .*--run-state"):
                            use(url=url)


def test_a_failure_of_a_replica_with_a_store_of_its_own_is_a_conflict():
    with served_tools() as one, served_tools() as other:
        urls = [str(one.base_url), str(other.base_url)]
        with blocking.RewardFleet(tools=urls) as fleet:
            fleet.tools.put_budget("run")
            with pytest.raises(Conflict, match="tools service"):  # not that there is no budget
                fleet.tools.update_budget("run", 0, [1.0])


@contextmanager
def gateway_of(service: str, urls: list[str], down: int = 0) -> Iterator[str]:
    """Serve a gateway once its replicas have been ready; yield its URL. Some are down then."""
    watched = [Replica(service, url.rstrip("/")) for url in urls]

    async def ready() -> None:
        watching = [asyncio.create_task(watch(each, watched)) for each in watched]
        await asyncio.gather(*(each.has_been_ready.wait() for each in watched))
        for each in watching:
            each.cancel()

    asyncio.run(ready())
    for each in watched[:down]:
        each.is_ready = False
    with serving(Gateway({service: watched}, LOOPBACK)) as url:
        yield url


def test_the_command_deletes_a_run_in_all_services(capsys: pytest.CaptureFixture[str]):
    with served_tools() as tools, served_episodes() as episode:
        part(tools, 1, {"run": RUN, "step": 0})
        with fleet_of(tools=str(tools.base_url), episode=str(episode.base_url)) as url:
            command = ["run-state", "delete", RUN, url]
            assert (main(command), main(command)) == (0, 1)
        assert tools.get(f"/budgets/{RUN}").status_code == 404
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["deleted", *["had nothing of it"] * 3]
