"""What the client says of itself, and of what was written wrongly: the next try is right."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rewardfleet import RewardFleet, blocking, code_request, episode_request, video_request
from rewardfleet.adapters.trl import reward_function
from rewardfleet.wire.errors import RewardFleetError
from rewardfleet_server.episode.app import create_app as create_episode
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.testing import serving

from ..conftest import LONG_CLIP, Serve

URL = "http://127.0.0.1:1"
TESTS = [{"stdin": "", "stdout": "5"}]
FRAMES = np.zeros((2, 8, 8, 3), np.uint8)


def code(**fields: Any) -> Any:
    return code_request("print(5)", **{"tests": TESTS, **fields})


def stdio(case: Any) -> dict[str, Any]:
    return {"kind": "stdio", "cases": [case]}


async def batch(*items: Any) -> Any:
    async with RewardFleet(URL) as fleet:
        return await fleet.code.score_batch(*items)


async def result_of(call: Callable[[], Any]) -> Any:
    result = call()
    return await result if inspect.isawaitable(result) else result


#: What is wrong, and what the message says.
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: RewardFleet(code=5), "code: give a URL such as http://127.0.0.1:18081, not '5'"),
    (lambda: RewardFleet([]), "url: give one URL or more"),
    (lambda: RewardFleet(video=[]), "video: give one URL or more"),
    (RewardFleet, "give the URL of a fleet, or of a service"),
    (lambda: RewardFleet(URL, timeout=5), "timeout; did you mean timeout_s?"),
    (lambda: RewardFleet(URL, timeout_s="5"), "timeout_s: give seconds above 0, not '5'"),
    (lambda: RewardFleet(URL, run=7), "run: give a text, not int"),
    (lambda: RewardFleet(URL, score_log=7), "score_log: give a path, not int"),
    (lambda: blocking.RewardFleet(URL).audio, "the services are video, code"),
    (lambda: RewardFleet(video=URL).code, "give code=..., or the URL of a fleet"),
    (lambda: reward_function("code", URL, timeout=5), "did you mean timeout_s?"),
    (lambda: reward_function("code", URL, columns="mode"), "columns: give a list of names"),
    (lambda: code(timeout=5), "give `timeout_s` to `RewardFleet`"),
    (lambda: code(tests=None), "{'kind': 'dataset', 'dataset': 'auto', 'row': …}"),
    (lambda: code(tests={"tests": TESTS, "mode": "most"}), "Input should be 'pass_rate' or 'all"),
    (lambda: code(tests={"tests": TESTS, "limits": {"cpu": 1}}), "'limits.cpu'; accepted: cpu_s"),
    (lambda: code(tests=stdio({"input": ""})), "cases.0.input'; accepted: stdin, stdout"),
    (lambda: code(tests=stdio(["", "5"])), "cases.0: Input should be an object with stdin, stdout"),
    (lambda: code(program="print(5)"), "another name of `revision`"),
    (lambda: video_request("task", 5), "clip: give a path, the bytes"),
    (lambda: video_request("task", b""), "video_base64: "),
    (lambda: video_request("task", []), "frames_base64: "),
    (lambda: video_request("task", FRAMES[0]), "of a single frame, give frames[None]"),
    (lambda: video_request("task", FRAMES[:0]), "got uint8 [0, 8, 8, 3]"),
    (lambda: video_request("task", [FRAMES[0], FRAMES[0, :4]]), "give frames of one size and type"),
    (lambda: video_request(FRAMES, ""), "task_text: Input should be a valid string (got array("),
    (lambda: batch(code()), "give a list of 1 item or more"),
    (lambda: batch(5), "give a list of 1 item or more"),
    (lambda: batch([5]), "items.0: give a request, or the arguments of `score`"),
    (lambda: batch([code(), {"program": ""}]), "items.1: tests None: give"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[each for _, each in WRONG])
async def test_what_is_wrong_is_named_with_what_is_accepted(wrong: Callable[[], Any], message: str):
    errors = (RewardFleetError, TypeError, ValueError, AttributeError)
    with pytest.raises(errors) as raised:
        await result_of(wrong)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_a_file_that_only_this_machine_has_can_be_sent(serve: Serve):
    async with RewardFleet(video=str(serve().base_url)) as fleet:
        with pytest.raises(RewardFleetError, match=r"give Path\('.*'\).read_bytes\(\)"):
            await fleet.video.score("task", LONG_CLIP)
        with pytest.raises(RewardFleetError) as raised:
            await fleet.video.score("task", "nothing.mp4")
    assert "read_bytes" not in str(raised.value)


async def test_clients_show_their_urls_health_and_options(serve: Serve):
    url = str(serve().base_url)
    with serving(create_episode(EpisodeSettings())) as episodes:
        fleet = RewardFleet(video=url, episode=["http://u:secret@a", episodes], run="r")
        both = f"VideoClient({url}), EpisodeClient(http://***@a, {episodes})"
        assert repr(fleet) == f"RewardFleet({both})"
        assert (await fleet.video.health()).loaded_backends == ["fake"]
        async with RewardFleet(episode=episodes, run="r") as only:
            assert (await only.episode.health()).status == "ready"
            (item,) = (await only.episode.score_batch([{"uid": "a", "success": 1}])).results
            score = await only.episode.score(episode_request("a", success=1))
            assert item.score == score.score == 1
        await fleet.aclose()
    for call in (RewardFleet(code=URL).code.score, blocking.RewardFleet(code=URL).code.reward):
        assert "mode" in inspect.signature(call).parameters
    assert repr(blocking.RewardFleet(code=URL).code) == f"CodeClient({URL})"
