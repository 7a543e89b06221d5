"""The judges with a model, over HTTP."""

import asyncio
import base64
import math
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest

from rewardfleet import RewardFleet
from rewardfleet_server.testing import wait_until
from rewardfleet_server.video.clip.frames import Clip

from ..conftest import table
from .conftest import CLIPS, TASK, RunningService, in_flight, next_logprobs

JUDGES = ["qwen2_5_vl_vllm", "PRIMO-R1", "transformers"]
_YES, _NO = ("Yes", "yes", "YES"), ("No", "no", "NO")
READOUTS = ["text", "constrained", "probability", "rubric"]


@pytest.mark.parametrize("backend", ["qwen2_5_vl_vllm", "transformers"])
@pytest.mark.parametrize("readout", READOUTS)
def test_each_readout_scores_or_abstains(service: RunningService, backend: str, readout: str):
    """The free text of a random model has no score; restricted output has one."""
    answer = service.judge(backend, readout=readout)
    assert answer["provenance"]["readout"].startswith(readout), answer
    if readout == "text":
        assert (answer["status"], answer["score"]) == ("abstained", None)
        assert "token limit" in answer["model_output"]
    else:
        assert answer["status"] == "ok" and 0 <= answer["score"] <= 1
    if readout == "constrained":
        assert answer["score"] == int(answer["model_output"]) / 100


def test_32_concurrent_requests_share_the_batch(service: RunningService):
    """Their results are those of single requests, and together they take far less time."""
    url = str(service.client.base_url)

    async def score(fleet: RewardFleet, number: int) -> tuple[str, float]:
        result = await fleet.video.score(f"{TASK} {number}", CLIPS[number], max_pixels=12544)
        return result.model_output, result.timing_ms.total

    async def score_all() -> tuple[list, list]:
        async with RewardFleet(video=url) as fleet:
            single = [await score(fleet, number) for number in range(8)]
            concurrent = await asyncio.gather(*(score(fleet, number) for number in range(32)))
        return single, concurrent

    for _ in range(3):  # until the machine does not pause meanwhile
        single, concurrent = asyncio.run(score_all())
        # The size of the batch may change a near tie of a random model.
        same = [one == other for (one, _), (other, _) in zip(single, concurrent, strict=False)]
        assert sum(same) >= 6
        together, one_by_one = max(time for _, time in concurrent), sum(time for _, time in single)
        if together < 0.75 * 4 * one_by_one:
            break
    assert together < 0.75 * 4 * one_by_one


def test_probabilities_are_those_of_a_plain_forward_pass(
    service: RunningService, clip: Clip, checkpoint: Path
):
    """The log-probabilities of both engines agree to 1e-2."""
    yes, no = _direct_logprobs(clip, checkpoint)
    for backend in ("qwen2_5_vl_vllm", "transformers"):
        answer = service.judge(backend, readout="probability")
        total = math.log(answer["details"]["label_mass"])
        assert math.log(answer["score"]) + total == pytest.approx(yes, abs=1e-2), backend
        assert math.log(1 - answer["score"]) + total == pytest.approx(no, abs=1e-2), backend


def _direct_logprobs(clip: Clip, folder: Path) -> tuple[float, float]:
    """Return those of yes and of no, by transformers alone, from the original frames."""
    import torch

    from rewardfleet_server.video.prompts import YES_OR_NO

    content = [{"type": "video"}, {"type": "text", "text": YES_OR_NO.render(TASK)}]
    size = {"shortest_edge": 12544, "longest_edge": 12544}
    messages, frames = [{"role": "user", "content": content}], np.stack(clip.frames)
    tokenizer, logprobs = next_logprobs(folder, messages, clip, frames, size=size)

    def of(*spellings: str) -> float:
        tokens = [tokenizer.encode(text, add_special_tokens=False) for text in spellings]
        ids = [token for token, *more in tokens if not more]
        return float(torch.logsumexp(logprobs[ids], 0))

    marks = ("", " ", "\n", "**", '"')
    yes, no = ([mark + word for mark in marks for word in each] for each in (_YES, _NO))
    return of(*yes), of(*no)


@pytest.mark.parametrize("backend", ["qwen2_5_vl_vllm", "transformers"])
def test_the_source_of_the_video_does_not_matter(service: RunningService, backend: str):
    """A path, the file's bytes, and all its frames as PNG with their rate."""
    capture = cv2.VideoCapture(CLIPS[0])
    frames = []
    while (frame := capture.read()[1]) is not None:
        frames.append(base64.b64encode(cv2.imencode(".png", frame)[1]).decode())
    sent = {"frames_base64": frames, "fps": capture.get(cv2.CAP_PROP_FPS)}
    file = {"video_base64": base64.b64encode(Path(CLIPS[0]).read_bytes()).decode()}
    kwargs = {"backend_kwargs": {"readout": "probability"}}
    scores = [service.score(backend, **each, **kwargs).json()["score"] for each in ({}, file, sent)]
    assert None not in scores
    assert scores[1:] == pytest.approx([scores[0]] * 2, abs=1e-3)


@pytest.mark.parametrize("backend", JUDGES)
@pytest.mark.parametrize("nframes", [1, 2, 3, 5, 15])
def test_any_number_of_frames_can_be_judged(service: RunningService, backend: str, nframes: int):
    """The original LIBERO reward server failed on 1, 3, 7, 11 and 15."""
    answer = service.score(backend, 1, nframes=nframes)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["provenance"]["frames"]["indices"]) == nframes


@pytest.mark.parametrize("backend", ["qwen2_5_vl_vllm", "transformers"])
def test_a_curve_has_ascending_frames_and_ends_in_the_score(service: RunningService, backend: str):
    answer = service.judge(backend, readout="probability", curve=4)
    curve = answer["curve"]
    assert curve["frames"] == sorted(curve["frames"]) and len(curve["values"]) == 4
    assert curve["frames"][-1] == answer["provenance"]["frames"]["total"] - 1
    assert curve["values"][-1] == answer["score"]
    assert -1 <= answer["details"]["value_order_correlation"] <= 1


def test_a_prefix_has_the_same_score_in_every_curve(service: RunningService):
    """Reuse of the prefix cache changes nothing: a curve of fewer points agrees."""
    answers = (service.judge(readout="probability", curve=count) for count in (8, 4))
    long, short = (answer["curve"] for answer in answers)
    for frame, value in zip(short["frames"], short["values"], strict=True):
        assert long["values"][long["frames"].index(frame)] == pytest.approx(value, abs=5e-3)


def test_primo_abstains_if_its_thinking_is_truncated(service: RunningService):
    answer = service.judge("primo_r1_vllm")
    assert (answer["status"], answer["backend"]) == ("abstained", "PRIMO-R1")
    assert "cut by the token limit" in answer["model_output"]
    sampling = {"temperature": 0.1, "top_p": 0.001, "max_tokens": 48}
    assert answer["provenance"]["sampling"] == sampling


def test_a_disconnected_request_is_cancelled_and_the_next_is_scored(service: RunningService):
    body = {"task_text": TASK, "video_path": CLIPS[2], "nframes": 64}
    with pytest.raises(httpx.ReadTimeout):
        service.client.post("/score", json=body, timeout=0.4)
    url = str(service.client.base_url)
    # The service may read the request only after the client has left.
    wait_until(lambda: '"status":499' in service.log.read_text().replace(" ", ""), 60)
    wait_until(lambda: in_flight(url) == 0, 60)
    assert service.judge(video=2, readout="rubric")["status"] == "ok"


@pytest.mark.parametrize("backend", JUDGES)
@pytest.mark.parametrize("hostile", table("hostile_texts"))
def test_texts_of_callers_cannot_add_an_image(service: RunningService, backend: str, hostile: dict):
    """They stay text, and the next request is scored."""
    kwargs = dict(hostile.get("backend_kwargs", {}))
    if backend == "PRIMO-R1":
        kwargs.pop("readout", None)
    answer = service.score(backend, **{**hostile, "backend_kwargs": kwargs})
    assert answer.status_code == 200, answer.text
    assert service.score(backend).status_code == 200


@pytest.mark.parametrize(("backend", "kwargs", "detail"), table("options_of_vlms"))
def test_invalid_options_are_named(
    service: RunningService, backend: str, kwargs: dict, detail: str
):
    answer = service.score(backend, backend_kwargs=kwargs)
    assert answer.status_code == 422, answer.text
    assert detail in answer.json()["detail"]


def test_more_frames_than_the_context_holds_are_rejected(service: RunningService):
    answer = service.score(video=-1, nframes=128, max_pixels=1_605_632)
    assert answer.status_code == 422
    assert "send fewer nframes or a smaller max_pixels" in answer.json()["detail"]
