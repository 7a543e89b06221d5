"""The complete service: modes, readiness, and which failures are the program's or internal."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from rewardfleet.commands.main import main
from rewardfleet.wire.code import CodeTiming
from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.code.sandboxes import Job, ProgramRun, RunLimits, RunResult
from rewardfleet_server.code.sandboxes.jail import isolation, pool, worker
from rewardfleet_server.code.sandboxes.jail.guest.descriptors import ORDER
from rewardfleet_server.code.sandboxes.jail.guest.supervisor import Supervisor
from rewardfleet_server.code.sandboxes.jail.guest.zygote import STARTED
from rewardfleet_server.code.sandboxes.jail.seccomp import Filters
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.testing import FakeSandbox, wait_until

from ...conftest import JSON, table
from ...measure import Stopwatch
from ..processes import descendants, service_process
from ..video.test_bad_input import check_problem
from .conftest import (
    LEVELS,
    LIMITS,
    SHORT_LIMITS,
    VERDICTS,
    Service,
    asserts,
    check_verdicts,
    proc,
    programs,
    rows,
    sample,
    served_code,
    sources,
    stdio,
    verdicts,
)


@pytest.mark.slow
def test_readiness_reports_the_isolation_level(level_service: Service):
    response = level_service.client.get("/readyz")
    assert response.json() == {"status": "ready", "isolation": level_service.level}


def test_a_score_is_the_share_of_tests_passed(service: Service):
    tests = stdio(("1", "1"), ("2", "x"), ("3", "3"), ("4", "4"))
    score = service.score("print(input())", tests)
    assert (score["score"], score["pass_rate"]) == (0.75, 0.75)
    assert verdicts(score) == ["accepted", "wrong_answer", "accepted", "accepted"]
    assert all(each["cpu_ms"] > 0 for each in score["verdicts"])
    assert score["verdicts"][1]["stdout"] == "2\n"
    assert score["provenance"]["isolation"] == score["isolation"] == "bubblewrap"


@pytest.mark.slow
@pytest.mark.parametrize("row", sample(VERDICTS))
def test_tests_have_verdicts_by_their_kind_and_mode(service: Service, row):
    check_verdicts(service, row)


@pytest.mark.slow
def test_a_program_that_times_out_in_each_test_gets_its_verdicts_before_the_deadline():
    """However many tests there are."""
    with served_code(workers=1, max_submission_s=1) as service:
        tests = stdio(*[("", "")] * 20)
        score = service.score("while True: pass", tests, limits=SHORT_LIMITS)
    timed = int(1 / SHORT_LIMITS["cpu_s"])
    assert verdicts(score) == ["time_limit"] * timed + ["skipped"] * (20 - timed)


@pytest.mark.slow
def test_a_program_that_sleeps_in_each_test_gets_its_verdicts_before_the_deadline():
    """No run sleeps past the time for all of them: a policy must not be able to cause a 504."""
    with served_code(workers=1, max_submission_s=8) as service:  # of CPU; 12 s in all
        tests = stdio(*[("", "")] * 20)
        score = service.score("import time\ntime.sleep(7)", tests)
    assert verdicts(score)[:3] == ["accepted", "time_limit", "skipped"]
    assert sum(each["wall_ms"] for each in score["verdicts"]) < 24_000


#: By name: a program, its tests and limits that need more than half of 2 s, and what a call with
#: enough time gets.
TAKE_LONGER = dict(table("programs_that_take_longer"))


@pytest.mark.slow
@pytest.mark.parametrize("case", TAKE_LONGER)
def test_a_short_call_changes_no_verdict_of_a_longer_one(case: str):
    """What half of a call's timeout cuts is no verdict; and whoever waits longer is not affected.

    The long call comes while the short one runs, and after it.
    """
    program, tests, limits, expected = TAKE_LONGER[case]
    body = {"revision": program, "tests": tests, "limits": limits}
    with served_code(workers=1, cache_mb=1) as service, ThreadPoolExecutor(2) as threads:

        def score(call_timeout: str) -> httpx.Response:
            # The request itself may take longer, as a busy machine does.
            headers = {"x-request-timeout": "120", "x-call-timeout": call_timeout}
            return service.client.post("/score", json=body, headers=headers)

        short, long = threads.submit(score, "2"), threads.submit(score, "120")
        problem = short.result().json()
        assert (problem["kind"], problem["retryable"]) == ("deadline_exceeded", True)
        assert "give a timeout of 120 s" in problem["detail"]
        assert verdicts(long.result().json()) == expected
        again = score("120").json()
        assert (verdicts(again), again["cached"]) == (expected, True)
        assert verdicts(score("2").json()) == expected  # from the cache


@pytest.mark.slow
def test_a_limit_of_the_tests_is_a_verdict_in_a_short_call(service: Service):
    """Also in a short call a program that is over before half of it ends has its verdicts."""
    body = {"revision": "while True: pass", "tests": stdio(*[("", "")] * 9)}
    headers = {"x-request-timeout": "120", "x-call-timeout": "2"}
    body["limits"] = {"cpu_s": 0.25}
    response = service.client.post("/score", json=body | {"mode": "all_pass"}, headers=headers)
    assert verdicts(response.json()) == ["time_limit"] + ["skipped"] * 8
    response = service.client.post("/score", json=body, headers=headers)
    assert response.json()["kind"] == "deadline_exceeded"  # of nine runs of 0.25 s, four fit


@pytest.mark.slow
def test_a_later_attempt_has_the_time_of_the_complete_call(service: Service):
    """A program is not to blame for what the first attempt waited for."""
    body = {"tests": stdio(("", "")), "limits": {"wall_s": 25}}
    # Pauses of the machine do not count, so it may be asleep for longer than its limit.
    headers = {"x-request-timeout": "30", "x-call-timeout": "60"}
    program = {"revision": "import time\ntime.sleep(1.5)"}
    response = service.client.post("/score", json=body | program, headers=headers)
    assert response.json()["verdicts"][0]["verdict"] == "accepted", response.text


@pytest.mark.slow
def test_the_maximum_number_of_tests(service: Service):
    assert service.score("print(input())", stdio(*[("1", "1")] * 1000))["score"] == 1.0


def test_the_stages_add_up_to_the_backend_time(service: Service):
    timing = service.score("print(1)", stdio(("", "1"), ("", "1")))["timing_ms"]
    stages = [timing[stage] for stage in ("fork", "run", "compare", "clean")]
    assert min(stages) > 0
    assert sum(stages) == pytest.approx(timing["backend"], abs=0.1)


@pytest.mark.slow
def test_the_wait_for_a_jail_is_the_time_in_the_queue():
    item = {"tests": stdio(("", "")), "limits": LIMITS}
    busy = "import time\nwhile time.process_time() < 0.15: pass\n"
    programs = [f"{busy}x = {n}" for n in range(3)]
    body = {"items": [{"revision": program, **item} for program in programs]}
    with served_code(workers=1) as service:
        for _ in range(5):  # a program that a busy machine does not run seems to sleep
            results = service.client.post("/score/batch", json=body).json()["results"]
            timings = [each["timing_ms"] for each in results]
            for timing in timings:
                assert timing["queue"] + timing["backend"] <= timing["total"] + 1
            first, second, third = sorted(timing["queue"] for timing in timings)
            if second - first > 90 and third - second > 90:
                break
    assert second - first > 90 and third - second > 90


# Failures of programs, and internal failures


class Deaths:
    """Ends processes of jails when a program has begun, which says so as the name of its thread."""

    def __init__(self) -> None:
        self._before = descendants()  # and what has ended

    def wait_and_end(
        self, name: str = "begun", victim: str = "jail", number: int = signal.SIGKILL
    ) -> None:
        """Wait for a program that was not ended before, and send a signal to a process.

        Args:
            victim: `jail`: all jails as the service has started them. Otherwise, a process of the
                jail of this program.
        """

        def begun() -> set[int]:
            return {pid for pid in descendants() - self._before if proc(pid, "comm") == f"{name}\n"}

        wait_until(begun)
        (program,) = begun()
        jails = descendants() - self._before
        supervisor = next(pid for pid in jails if program in descendants(pid, depth=1))
        others = descendants(supervisor, depth=1) - {program}
        victims = {
            "jail": descendants(depth=1) - self._before,
            "supervisor": {supervisor},
            "zygote": others - programs(),
            "program": {program},
            "tests": others & programs(),
        }[victim]
        assert victims
        self._before.add(program)
        for pid in victims:
            os.kill(pid, number)


#: Sets the name of its thread, then sleeps, if the input says so: for longer than a busy machine
#: may take to notice.
BEGINS = sources("service")["begins"]


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_a_run_whose_jail_dies_is_repeated_once(level: str):
    """No verdict is lost or repeated, wherever in a submission the jail dies."""
    lines = ["1", "sleep first 4", "2", "sleep second 0.5", "sleep third 4"]
    tests = stdio(*((line, line if line != "2" else "x") for line in lines))
    deaths = Deaths()
    with served_code(level, workers=1) as service, ThreadPoolExecutor(1) as threads:
        scored = threads.submit(service.score, BEGINS, tests)
        deaths.wait_and_end("first")
        deaths.wait_and_end("third")
        score = scored.result()
        wrong = ["accepted", "accepted", "wrong_answer", "accepted", "accepted"]
        assert verdicts(score) == wrong
        assert [each["stdout"] for each in score["verdicts"]] == [f"{line}\n" for line in lines]
        assert score["suspicions"] == []
        metrics = service.client.get("/metrics").text
        assert f'rewardfleet_isolation{{level="{level}",requested="{level}"}} 1.0' in metrics
        assert "rewardfleet_jail_restarts_total 2.0" in metrics
        assert "rewardfleet_program_kills_total 2.0" in metrics


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_a_program_whose_jail_dies_twice_and_is_not_killed_has_failed(level: str):
    deaths = Deaths()
    with served_code(level, workers=1) as service, ThreadPoolExecutor(1) as threads:
        tests = stdio(("1", "1"), ("sleep begun 4", "x"), ("3", "3"))
        scored = threads.submit(service.score, BEGINS, tests)
        deaths.wait_and_end(number=signal.SIGABRT)
        deaths.wait_and_end(number=signal.SIGABRT)
        score = scored.result()
        assert verdicts(score) == ["accepted", "runtime_error", "skipped"]
        assert score["suspicions"] == ["test 2: its sandbox died"]
        assert service.verdict("print(1)", stdio(("", "1"))) == "accepted"


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["jail", "supervisor", "zygote", "program", "tests"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_kill_from_outside_is_never_a_verdict(level: str, victim: str):
    """As the kernel does if memory runs out. The run is repeated once, and nothing is cached."""
    deaths = Deaths()
    cached = {"workers": 1, "cache_mb": 1}
    with served_code(level, **cached) as service, ThreadPoolExecutor(1) as threads:
        tests = asserts("assert begin('1') in ('1',)", "assert begin('sleep begun 4') in ('x',)")
        scored = threads.submit(service.post, BEGINS, tests)
        deaths.wait_and_end(victim=victim)
        deaths.wait_and_end(victim=victim)
        response = scored.result()
        assert response.status_code == 503
        assert response.json()["retryable"] and "SIGKILL" in response.json()["detail"]
        assert "rewardfleet_program_kills_total 2.0" in service.client.get("/metrics").text
        if victim != "program":
            return
        scored = threads.submit(service.score, BEGINS, tests)
        deaths.wait_and_end(victim=victim)
        score = scored.result()
        assert (verdicts(score), score["cached"]) == (["accepted", "wrong_answer"], False)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_a_jail_whose_zygote_has_died_is_replaced_at_once(level: str):
    with served_code(level, workers=1) as service:
        before = service.verdict("print(1)", stdio(("", "1")))
        supervisors = {pid for pid in descendants() if "\0utf8\0-\0" in proc(pid, "cmdline")}
        forks = {fork for pid in supervisors for fork in descendants(pid, depth=1) & supervisors}
        zygotes = {fork for fork in forks if not descendants(fork)}
        for pid in zygotes:
            os.kill(pid, signal.SIGKILL)
        watch = Stopwatch()
        after = service.verdict("print(2)", stdio(("", "2")))
        assert (before, after) == ("accepted", "accepted")
        assert zygotes and watch.seconds < 25


@pytest.mark.slow
def test_a_jail_that_cannot_start_is_an_internal_failure(monkeypatch: pytest.MonkeyPatch):
    """It is retryable, without a score, and ends as soon as a jail can start again."""
    before = descendants()
    with served_code(workers=1) as service:

        def refuse(*_: object) -> None:
            raise worker.JailUnavailable("no room")

        with monkeypatch.context() as patched:
            patched.setattr(worker.Worker, "start", refuse)
            for pid in descendants() - before:
                with contextlib.suppress(ProcessLookupError):  # it ended with another one
                    os.kill(pid, signal.SIGKILL)
            response = service.post("print(1)", stdio(("", "1")))
            assert response.status_code == 503
            assert response.json()["retryable"] is True
        assert service.verdict("print(1)", stdio(("", "1"))) == "accepted"


def test_a_fork_that_fails_is_an_internal_failure():
    ours, theirs = socket.socketpair()
    orders, zygote = socket.socketpair()
    runs, writer = os.pipe()
    one = worker.Worker(
        worker.WorkerConfig(SimpleNamespace(level="bubblewrap"), Filters(b"", b""), ())
    )
    one._channel, one._zygote = ours, orders

    def fail_and_serve() -> None:
        message, files, _, _ = socket.recv_fds(zygote, ORDER.size, 16)
        for file in files:
            os.close(file)
        os.write(writer, message + STARTED.pack(0, -1, 0))  # as the zygote then reports
        Supervisor(theirs, runs, {"writable": [], "kept": []}, 0).serve()

    with ThreadPoolExecutor(1) as threads:
        served = threads.submit(fail_and_serve)
        with pytest.raises(worker.JailUnavailable, match="no process can be made now"):
            one.run(Job("print(1)", [ProgramRun()], RunLimits(1, 1, 1, 1)), lambda _: True)
        served.result()
    for end in (theirs, zygote):
        end.close()
    os.close(runs)
    os.close(writer)
    assert one._channel is None  # the next job gets a new jail


async def test_a_stop_that_overtakes_its_run_ends_it():
    """The run goes through the zygote, and the stop straight to the supervisor."""
    jails = pool.build(CodeSettings(isolation="landlock", workers=1))
    one = jails._workers[0]
    results: list[RunResult] = []
    job = Job("while True: pass", [ProgramRun()], RunLimits(60, 60, 2**28, 2**20))
    try:
        for number in (one._run_number, one._run_number + 1):  # an earlier run, and the next
            worker._send(one._channel, {"stop": number})
        watch = Stopwatch()
        await jails.run(job, lambda result: results.append(result) is None, CodeTiming())
    finally:
        await jails.aclose()
    assert results[0].stopped == "caller"
    assert watch.seconds < 30


def test_a_sandbox_that_fails_is_an_error_without_a_score():
    with served_code(sandbox=FakeSandbox(error=Unavailable("gone"))) as service:
        item = {"revision": "x", "tests": stdio(("", ""))}
        check_problem(service.client.post("/score/batch", json={"items": [item]}), "unavailable")
        both = service.client.post("/score/batch", json={"items": [item, {}]}).json()["results"]
        assert [each["score"] for each in both] == [None, None]
        assert [each["error"]["kind"] for each in both] == ["unavailable", "invalid"]


# Invalid input

INVALID_FIELDS = rows("bad_input") | {
    "1001 tests": {"fields": {"tests": stdio(*[("", "1")] * 1001)}, "detail": "at most 1000 items"}
}


@pytest.mark.parametrize("row", sample(INVALID_FIELDS))
def test_an_invalid_field_is_named_and_the_service_keeps_working(service: Service, row):
    body = {"revision": "print(1)", "tests": stdio(("", "1")), **row["fields"]}
    check_problem(service.client.post("/score", json=body), "invalid", row["detail"])
    assert service.verdict("print(input())", stdio(("x", "x"))) == "accepted"


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b'{"revision": "1", "tests": {"kind": "stdio", "cases": [{"stdout": "\\udfff"}]}}',
        (
            b'{"revision": "1", "tests": {"kind": "functional", "fn_name": "f", "cases": '
            b'[{"args": [NaN], "expected": 1}]}}'
        ),
        b'{"revision": "1", "tests": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"revision": "1", "tests": {"kind": "asserts", "cases": ["assert \'\\udfff\'"]}}',
    ],
    ids=["surrogate", "nan", "deep", "surrogate in a case"],
)
def test_json_with_invalid_values_is_rejected(service: Service, content: bytes):
    check_problem(service.client.post("/score", content=content, headers=JSON), "invalid")
    assert service.verdict("print(input())", stdio(("x", "x"))) == "accepted"


def test_standard_input_and_output_may_contain_any_characters(service: Service):
    """NUL characters are rejected in Python source only."""
    text = "\0 \x7f ü 漢 🙂 \u2028"
    assert service.verdict("print(input())", stdio((text, text), checker="exact")) == "accepted"


# Programs that sleep


@pytest.mark.slow
def test_programs_that_sleep_do_not_delay_others():
    """They wait in jails of their own, and lend the cores."""
    nap = {**LIMITS, "wall_s": 15}
    with served_code(workers=2) as service, ThreadPoolExecutor(24) as threads:
        sleep = "import time\ntime.sleep(60)\nx = {}"  # each another, or it would be run once
        watch = Stopwatch()
        asleep = [
            threads.submit(service.verdict, sleep.format(n), stdio(("", "x")), limits=nap)
            for n in range(4)
        ]
        others = [
            threads.submit(service.verdict, f"print({n})", stdio(("", f"{n}"))) for n in range(20)
        ]
        assert {each.result() for each in others} == {"accepted"}
        assert not any(each.done() for each in asleep)
        assert {each.result() for each in asleep} == {"time_limit"}
        assert watch.seconds < 29.5  # two at a time would take 30 s


@pytest.mark.serial
@pytest.mark.slow
def test_programs_that_wake_up_do_not_share_a_core():
    """Each is paused until it has a core. That time does not count."""
    program = (
        "import time\ntime.sleep(0.3)\nstarted = time.perf_counter()\n"
        "while time.process_time() < 0.5: pass\nprint(input())"
    )
    with served_code(workers=1) as service, ThreadPoolExecutor(3) as threads:
        tests = stdio(("x", "x"))
        scored = [threads.submit(service.score, f"x = {n}\n{program}", tests) for n in range(3)]
        scores = [each.result() for each in scored]
    assert {score["score"] for score in scores} == {1.0}, scores
    waits = sorted(score["timing_ms"]["queue"] for score in scores)
    assert waits[-1] > 600  # behind two others that compute for 500 ms each
    for score in scores:
        timing = score["timing_ms"]
        assert timing["queue"] + timing["run"] <= timing["total"] + 1
        assert timing["queue"] + timing["backend"] <= timing["total"] + 1


@pytest.mark.serial
@pytest.mark.slow
def test_a_pause_for_a_core_does_not_end_a_program():
    """It is longer than the program's limit, because another one computes."""
    sleeps = "import time\ntime.sleep(0.5)\nwhile time.process_time() < 0.2: pass\nprint(1)"
    computes = "import time\nends = time.monotonic() + 2.5\nwhile time.monotonic() < ends: pass"
    limits = {**LIMITS, "wall_s": 1.2}
    with served_code(workers=1) as service, ThreadPoolExecutor(2) as threads:
        for _ in range(4):  # a program that a busy machine does not run seems to sleep
            before = programs()
            paused = threads.submit(service.score, sleeps, stdio(("", "1")), limits=limits)
            wait_until(lambda paused=paused, before=before: paused.done() or programs() - before)
            computing = threads.submit(service.score, computes, stdio(("", "")))
            assert (paused.result()["score"], computing.result()["score"]) == (1.0, 1.0)
            if (queue_ms := paused.result()["timing_ms"]["queue"]) > 1200:
                break
    assert queue_ms > 1200


@pytest.mark.slow
def test_a_paused_program_ends_when_its_caller_disconnects():
    sleep_then_loop = "import time\ntime.sleep(0.2)\nwhile True: pass"
    body = {"tests": stdio(("", "")), "limits": {"cpu_s": 30}}
    before = programs()
    with served_code(workers=1) as service, ThreadPoolExecutor(3) as threads:

        def disconnect(number: int) -> None:
            revision = f"x = {number}\n{sleep_then_loop}"
            with pytest.raises(httpx.ReadTimeout):
                service.client.post("/score", json={"revision": revision, **body}, timeout=1)

        list(threads.map(disconnect, range(3)))
        assert service.verdict("print(1)", stdio(("", "1"))) == "accepted"
        wait_until(lambda: not programs() - before)
        watch = Stopwatch()
        endless = service.verdict("while True: pass", stdio(("", "x")), limits=SHORT_LIMITS)
        assert endless == "time_limit"
        assert watch.seconds < 20  # no other program uses the core


# Isolation levels


def test_landlock_is_used_if_bubblewrap_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isolation.shutil, "which", lambda _: None)
    with served_code(workers=1) as service:
        assert service.score("print(1)", stdio(("", "1")))["isolation"] == "landlock"


def test_the_service_does_not_start_if_no_level_works(monkeypatch: pytest.MonkeyPatch, capsys):
    levels = property(lambda _: ("bubblewrap",))
    monkeypatch.setattr(CodeSettings, "isolation_levels", levels)
    monkeypatch.setattr(isolation.shutil, "which", lambda _: None)
    assert main(["serve", "code"]) == 2
    message = capsys.readouterr().err
    assert "apt-get install bubblewrap" in message
    assert "none-unsafe" in message


def test_a_jail_that_does_not_isolate_is_not_used(monkeypatch: pytest.MonkeyPatch):
    """Without seccomp filters, a program can send signals. `none-unsafe` only permits reading."""
    settings = CodeSettings(workers=1, isolation="none-unsafe")
    allow_all = b"\x06\0\0\0\0\0\xff\x7f"
    monkeypatch.setattr(pool, "compiled_filters", lambda **_: Filters(allow_all, allow_all))
    with pytest.raises(ValueError, match="could signal"):
        pool.build(settings)


@pytest.mark.slow
def test_a_service_without_isolation_must_be_requested_explicitly():
    with served_code("none-unsafe", workers=1) as service:
        assert service.client.get("/readyz").json()["isolation"] == "none-unsafe"
        score = service.score("print(open('/etc/passwd').read()[:4])", stdio(("", "root")))
        assert (score["score"], score["isolation"]) == (1.0, "none-unsafe")
        assert service.verdict("import os\nos.fork()", stdio(("", ""))) == "runtime_error"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder in /tmp that the user of the jails can read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "deep")
        folder.mkdir()
        folder.parent.chmod(0o755)
        yield folder


def make_environment(folder: Path) -> Path:
    """Make a virtual environment with the module `in_environment`; return its interpreter."""
    base = isolation.find_python(None).path
    subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "in_environment.py").write_text("number = 7\n")
    (packages / "raises.py").write_text("raise RuntimeError('not today')\n")
    return folder / "bin" / "python"


@pytest.mark.slow
def test_an_environment_in_the_hosts_tmp_can_be_used(open_folder: Path):
    """Though programs have a /tmp of their own, which is emptied after each run."""
    python = make_environment(open_folder / "environment")
    before = descendants()
    with served_code(python=python, workers=1) as service:
        jails = descendants() - before
        seen = f"7 ['{python.parent.parent}']"
        score = service.score(sources("service")["leaves files"], stdio(*[("", seen)] * 3))
        assert (score["score"], score["isolation"]) == (1.0, "bubblewrap"), score
        assert jails <= descendants()  # none had to be replaced


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [False, True])
def test_a_program_cannot_replace_an_environment_in_tmp(open_folder: Path, hidden: bool):
    """It can rename the folders above. Then the next program gets a new jail."""
    python = make_environment(open_folder / "environment")
    above = open_folder.parent
    attack = f"import os\nos.rename('{above}', '/tmp/moved')\n"
    if hidden:
        attack += f"os.makedirs('{python.parent.parent}')\n"
        attack += f"os.rename('/tmp/moved', '{python.parent.parent}/moved')\n"
    with served_code(python=python, workers=1) as service:
        honest = "import os, in_environment as m\nprint(m.number, os.listdir('/tmp'))"
        for _ in range(2):
            assert service.verdict(attack + "print(1)", stdio(("", "1"))) == "accepted"
            score = service.score(honest, stdio(("", f"7 ['{above.name}']")))
            assert score["score"] == 1.0, score


def unfit(kind: str, folder: Path) -> Path:
    """Return an interpreter that programs cannot use."""
    python = folder / "python"
    if kind == "it cannot run":
        python.write_text("#!/bin/false\n")
    elif kind == "programs cannot reach it":
        python.symlink_to(isolation.find_python(None).path)
    else:
        python = make_environment(folder / "environment")
        closed = folder / "environment" / "pyvenv.cfg" if "configuration" in kind else folder
        closed.chmod(0o600)
    return python


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="programs run as the service's user")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("it cannot run", "--python"),
        ("programs cannot reach it", r"--python {}: programs cannot reach it"),
        pytest.param("of root", "nobody .*{}: Permission denied.*--python", marks=root_only),
        # It would run, without the packages of its environment.
        pytest.param("with a configuration of root", r"pyvenv\.cfg", marks=root_only),
    ],
)
def test_an_interpreter_that_programs_cannot_use_is_refused(
    open_folder: Path, kind: str, reason: str
):
    """The reason is given, instead of a lower isolation level."""
    python = unfit(kind, open_folder)
    with pytest.raises(ValueError, match=reason.format(python)) as caught:
        pool.build(CodeSettings(workers=1, python=python))
    assert "\n" not in str(caught.value)


def test_an_interpreter_is_found_from_the_current_folder(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    make_environment(open_folder / "environment")
    monkeypatch.chdir(open_folder)
    found = isolation.find_python(Path("environment/bin/python"))
    assert found.path == str(open_folder / "environment/bin/python")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [("no_such_module", "No module named"), ("raises", "RuntimeError: not today")],
)
def test_a_module_that_cannot_be_preloaded_fails_the_start(
    open_folder: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
):
    python = make_environment(open_folder / "environment")
    assert main(["serve", "code", "--python", str(python), "--preload", name]) == 2
    message = capsys.readouterr().err.strip()
    assert f"--preload {name}: " in message
    assert reason in message
    assert "\n" not in message


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_no_process_outlives_a_service_that_is_killed(level: str):
    with service_process("code", "--isolation", level) as (server, _):
        jails = descendants(server.pid)
        assert len(jails) >= 2
        server.kill()
        server.wait(60)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in jails))
