"""`rewardfleet explain` and `rewardfleet report`, of requests and score logs of real services."""

import asyncio
import io
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardfleet import RewardFleet, code_request, episode_request, tools_request
from rewardfleet.commands.main import main
from rewardfleet.services import SERVICES
from rewardfleet.story import story_of
from rewardfleet.wire.errors import ErrorKind
from rewardfleet_server.testing import FakeJudge

from ...conftest import image_base64, served, table
from ...running import output_of
from ...score_log.conftest import service_at
from ...server.code.conftest import asserts, stdio
from ...server.tools.conftest import TRUTH

TESTS = stdio(("2 3", "5"), ("2 4\n", "6"))


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(service_at(name)) for name in SERVICES}


@pytest.mark.parametrize("case", table("stories"), ids=lambda each: each["id"])
def test_the_story_of_a_request(case, urls, capsys, tmp_path):
    file = tmp_path / "request.json"
    file.write_text(json.dumps(case["request"]))
    assert main(["explain", str(file), "--url", urls[case["service"]]]) == 0
    story = capsys.readouterr().out
    assert all(line.isprintable() for line in story.splitlines())
    assert not [part for part in case["parts"] if part not in story], story


def test_the_tests_of_a_row_are_read_without_the_packages_of_the_server():
    program = "import sys, rewardfleet_server.code.datasets.rows; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in output_of(sys.executable, "-c", program).split()}
    assert not loaded & {"msgspec", "orjson", "uvicorn", "starlette", "prometheus_client", "cv2"}


def test_a_request_from_standard_input_and_its_failures(urls, capsys, monkeypatch):
    def explained(text: str, url: str = urls["video"]) -> tuple[int, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return main(["explain", "-", "--url", url]), "".join(capsys.readouterr())

    missing = json.dumps({"task_text": "x", "video_path": "missing.mp4"})
    status, story = explained(missing)
    said = "no score, error, cause forbidden", "What would have to change", "under the request id"
    assert status == 2 and all(each in story for each in said)
    clip = json.dumps({"task_text": "x", "frames_base64": [image_base64()]})
    with served(FakeJudge(None)) as client:
        status, story = explained(clip, str(client.base_url))
        assert status == 3 and "no score by fake, abstained, cause no_verdict" in story
    other = ('{"uid": "a"}', "is the video service, not the episode service")
    for text, reason in [*table("no_requests"), ("[" * 100_000, "not JSON"), other]:
        status, story = explained(text)
        assert status == 2 and reason in story, story


@pytest.fixture(scope="module")
def log(urls, tmp_path_factory) -> Path:
    """A score log with two steps of a run."""
    folder = tmp_path_factory.mktemp("log")

    async def fill() -> None:
        async with RewardFleet(**urls, score_log=folder) as fleet:
            programs = ["print(5)", "Sorry.", "Sorry.", "print(sum(map(int, input().split())))"]
            for step in range(2):
                written = [code_request(e, TESTS, run="r", step=step) for e in programs[step:]]
                await fleet.code.score_batch(written)
                inside = asserts("import gc\nassert gc.get_objects() and f")
                await fleet.code.score("def f(): 0", inside, run="r", step=step)
                texts = [tools_request(each, TRUTH, step=step) for each in ("no", TRUTH)]
                await fleet.tools.score_batch(texts)
                episodes = [episode_request(f"e{n}", group="g", success=False) for n in range(3)]
                await fleet.episode.score_batch(episodes, run="r", step=step)
                frames = np.zeros((2, 32, 32, 3), np.uint8)
                await fleet.video.score("x\x1b", frames, run="r", step=step)
            (failed,) = await fleet.code.score_batch([code_request("1", asserts("no assert"))])
            assert failed.error is not None

    asyncio.run(fill())
    return folder


def ids(log: Path, capsys, *given: str) -> list[str]:
    main(["log", "list", str(log), "--json", "--limit", "1000", *given])
    return [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]


def test_the_story_of_each_record(log: Path, capsys):
    found = ids(log, capsys)
    assert len(found) > 10
    for each in set(found):
        assert main(["explain", str(log), "--id", each[:16]]) == 0
        story = capsys.readouterr().out
        assert story.startswith(f"Record {each[:12]}: ")
        assert all(line.isprintable() for line in story.splitlines())
        ends = ("What would have to change", " score 1", "score 4")
        assert any(each in story for each in ends), story
    (wrong,) = set(ids(log, capsys, "--where", "score = 0.5"))
    main(["explain", str(log), "--id", wrong])
    story = capsys.readouterr().out
    assert "run r, step 0" in story and 'actual output:   "5\\n"' in story


def test_a_record_must_be_named(log: Path, capsys, tmp_path):
    for given_, reason in [
        ([str(log)], "give --id"),
        ([str(log), "--id", "zz\x1b"], r"no record whose id begins with zz\x1b"),
        ([str(log), "--id", ""], "several ids begin"),
        ([str(log.parent), "--id", "a"], "no score log"),
        ([str(tmp_path / "none")], "No such file"),
    ]:
        assert main(["explain", *given_]) == 2
        assert reason in capsys.readouterr().err


def test_a_report(log: Path, capsys):
    assert main(["report", str(log)]) == 0
    story = capsys.readouterr().out
    assert all(line.isprintable() for line in story.splitlines())
    lines = {" ".join(line.split()) for line in story.splitlines()}
    assert {
        "22 records of 1 runs, steps 0 to 1",
        "code 0 5 40.0% no_code_block 100.0%",
        "episode 0 3 100.0% failed 100.0%",
        "tools 1 2 50.0% format 100.0%",
        "episode 2 100.0% 100.0%",  # groups
        "tools 2 0.0% 0.0%",
    } <= lines, story
    assert "code error invalid 1 " in " ".join(story.split())
    assert "decided by the program's process" in story and "by `jail`" in story
    assert main(["report", str(log), "--service", "video", "--where", "step = 1"]) == 0
    story = capsys.readouterr().out
    assert "1 records of 1 runs" in story and "Zeros" in story and "Groups" not in story
    assert main(["report", str(log), "--run", "none"]) == 1
    assert main(["report", str(log), "--where", "score <"]) == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(-9, 9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=9,
)


@settings(deadline=None)
@given(
    service=st.sampled_from(sorted(SERVICES)),
    text=st.text(),
    tests=JSON,
    cause=st.sampled_from(
        [*(c for each in SERVICES.values() for c in each.causes), *ErrorKind, None]
    ),
)
def test_no_text_breaks_a_story(service: str, text: str, tests: object, cause: str | None):
    request = {
        "revision": text, "response": text, "ground_truth": text, "task_text": text, "uid": text,
        "tests": {"kind": "dataset", "row": tests},
    }  # fmt: skip
    verdict = {"verdict": "wrong_answer", "stdout": text, "stderr": text, "returned": text}
    score = {
        "score": 0.0, "status": "ok", "cause": cause and str(cause), "code": text,
        "verdicts": [verdict] * 2, "model_output": text, "suspicions": [text],
    }  # fmt: skip
    assert all(line.isprintable() for line in story_of(service, request, score))
