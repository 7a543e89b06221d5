"""The judge `openai` against a real HTTP server, which also fails."""

import asyncio
import base64
import gzip
import io
import math
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import av
import cv2
import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from rewardfleet.commands.main import main
from rewardfleet.wire.calibration import bound_provenance
from rewardfleet_server.testing import serving, wait_until
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.judges import chat_endpoint, openai
from rewardfleet_server.video.judges.labels import score_interval
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import client_of, image_base64, table
from ...measure import Stopwatch

pytestmark = pytest.mark.slow  # retries wait

TASK = "put the bowl on the plate"


class Endpoint:
    """An OpenAI-compatible endpoint with given answers, which records the requests."""

    def __init__(self) -> None:
        self.requests: list[dict[str, object]] = []
        self.proofs: list[int] = []  #: how many frames were sent to see how many arrive
        self.keys: list[str | None] = []
        self.times: list[float] = []
        self.answers: list[Response | str | dict[str, float]] = ["80"]
        self.finish_reason = "stop"
        #: The number of frames that the model sees of those that are sent; None to count nothing.
        self.sees: Callable[[int], int] | None = lambda sent: sent
        self.template = [151644, 872]  #: tokens around frames
        self.usage: object = None  #: what is said instead of their number
        self.refused: set[str] = set()  #: fields that are not accepted
        self.honors_format = False
        self.honors_labels = False
        self.vocabulary: list[str] = []  #: texts that are one token; what knows none is not vLLM
        self.wait_s = 0.0
        self.concurrent = self.max_concurrent = 0
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self._complete)
        self.app.post("/v1/completions")(self._tokens)
        self.models_status = 404  # as of endpoints that list no models
        self.app.get("/v1/models")(lambda: Response(status_code=self.models_status))

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        if self.refused & body.keys():
            return Response("Unrecognized request argument", status_code=400)
        if "Ready?" in body["messages"][0]["content"][-1]["text"]:
            return self._proof(body)
        self.requests.append(body)
        self.keys.append(request.headers.get("authorization"))
        self.times.append(time.monotonic())
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        await asyncio.sleep(self.wait_s)
        self.concurrent -= 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            return completion(answer, self.finish_reason)
        return answer if isinstance(answer, Response) else completion("", logprobs=answer)

    async def _tokens(self, request: Request) -> Response:
        """Answer with the ids of prompts."""
        choices = [
            {"index": index, "prompt_token_ids": [self.vocabulary.index(each)]}
            if each in self.vocabulary else {"index": index, "prompt_token_ids": [0, 0]}
            for index, each in enumerate((await request.json())["prompt"])
        ]  # fmt: skip
        return JSONResponse({"choices": choices} if self.vocabulary else {"error": "no such model"})

    def _proof(self, body: dict) -> Response:
        """Answer what shows how many frames reach the model."""
        answer: dict[str, object] = {"choices": [{"message": {}, "finish_reason": "length"}]}
        if "response_format" in body:
            return completion('{"score": 1}' if self.honors_format else "I am ready.")
        if "logprob_token_ids" in body:
            asked = [self.vocabulary[each] for each in body["logprob_token_ids"]]
            likely = dict.fromkeys(asked if self.honors_labels else ["I"], 0.01)
            return completion("", logprobs=likely)
        self.proofs.append(frames_of(body))
        if self.sees is not None:
            ids = self.template + [0] * 64 * self.sees(frames_of(body))
            answer["usage"] = self.usage or {"prompt_tokens": len(ids)}
            answer |= {"prompt_token_ids": ids} if body.get("return_token_ids") else {}
        return JSONResponse(answer)


def completion(
    text: str,
    end: str | None = "stop",
    positions: Sequence[dict[str, object]] = (),
    logprobs: dict[str, float] | None = None,
    **message: object,
) -> Response:
    """Return a completion that ended so, behind a complete one that is the second choice.

    Args:
        positions: The log-probabilities of tokens, whose text is that of the answer.
        logprobs: Those of the only token, the likeliest one.
    """
    if logprobs:
        positions, text = [position(logprobs)], max(logprobs, key=lambda token: logprobs[token])
    text = text or "".join(str(each["token"]) for each in positions)
    first = {"index": 0, "message": {"content": text, **message}, "finish_reason": end}
    first |= {"logprobs": {"content": positions}} if positions else {}
    second = {"index": 1, "message": {"content": "90"}, "finish_reason": "stop"}
    return JSONResponse({"choices": [second, first]})


def frames_of(body: dict) -> int:
    """Return how many frames a request has."""
    parts = body["messages"][0]["content"][:-1]
    return sum(len(mp4_levels(each)[1]) if "video_url" in each else 1 for each in parts)


def mp4_levels(part: dict) -> tuple[float, list[float]]:
    """Return the rate of an mp4 and the mean level of each of its frames."""
    content = part["video_url"]["url"].removeprefix("data:video/mp4;base64,")
    with av.open(io.BytesIO(base64.b64decode(content))) as video:
        rate = float(video.streams.video[0].average_rate or 0)
        return rate, [
            float(frame.to_ndarray(format="rgb24").mean()) for frame in video.decode(video=0)
        ]


def position(tokens: dict[str, float]) -> dict[str, object]:
    """Return the log-probabilities of a position, whose token is the first one."""
    tops = [{"token": t, "logprob": math.log(p), "bytes": None} for t, p in tokens.items()]
    return {**tops[0], "top_logprobs": tops}


def failed(status: int, **headers: str) -> Response:
    return Response("<html>sorry</html>", status_code=status, headers=headers)


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def post_score(endpoint: Endpoint, tmp_path) -> Iterator:
    """Send a request to a video service whose judge `openai` uses `endpoint`."""
    with serving_judge(endpoint) as post_score:
        yield post_score


@contextmanager
def serving_judge(endpoint: Endpoint | str, **settings: object):
    is_url = isinstance(endpoint, str)
    with nullcontext(endpoint) if is_url else serving(endpoint.app) as url:
        settings = {"backend": ["openai"], "openai_url": f"{url}/v1", **settings}
        settings = VideoSettings(openai_model="judge-7b", **settings)
        with client_of(create_app(settings)) as client:

            def post_score(**fields: object) -> httpx.Response:
                frames = [image_base64(level=level) for level in (0, 100, 200)]
                body = {"task_text": TASK, "frames_base64": frames, "fps": 10, **fields}
                return client.post("/score", json=body)

            post_score.metrics = lambda: client.get("/metrics").text
            post_score.ready = lambda: client.get("/readyz")
            yield post_score


def test_frames_are_sent_as_images_before_the_question(post_score, endpoint):
    score = post_score().json()
    assert (score["score"], score["status"], score["model_output"]) == (0.8, "ok", "80")
    [message] = endpoint.requests[0]["messages"]
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["image_url"] * 3 + ["text"]
    levels = [_level(part["image_url"]["url"]) for part in message["content"][:3]]
    assert levels == pytest.approx([0, 100, 200], abs=3)
    assert TASK in message["content"][3]["text"]
    assert endpoint.requests[0]["model"] == "judge-7b"
    assert (endpoint.requests[0]["temperature"], endpoint.requests[0]["max_tokens"]) == (0, 64)


def _level(url: str) -> float:
    content = base64.b64decode(url.removeprefix("data:image/jpeg;base64,"))
    return float(cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR).mean())


def test_frames_are_sent_as_one_video_if_set(endpoint):
    """In real time, and an odd last one twice, as models merge frames in pairs."""
    with serving_judge(endpoint, set=["media=video"]) as post_score:
        assert post_score().json()["score"] == 0.8
        one = post_score(frames_base64=[image_base64(level=90)], fps=None).json()
    assert (one["score"], one["provenance"]["frames"]["indices"]) == (0.8, [0])
    for request, expected in zip(endpoint.requests, ([0, 100, 200, 200], [90, 90]), strict=True):
        video, question = request["messages"][0]["content"]
        assert (video["type"], question["type"]) == ("video_url", "text")
        rate, levels = mp4_levels(video)
        assert rate == (10 if len(levels) == 4 else 20)
        assert levels == pytest.approx(expected, abs=6)


# Structured output


def test_answers_are_structured_where_the_endpoint_honors_that(endpoint):
    """It is verified at the start, by a question that nobody answers so without it."""
    endpoint.honors_format, endpoint.answers = True, ['{"score": 85}']
    with serving_judge(endpoint) as post_score:
        answer = post_score().json()
        own = post_score(backend_kwargs={"prompt_template": "Think about {task} first."}).json()
    assert (answer["score"], answer["provenance"]["honored"]) == (0.85, ["response_format"])
    assert (own["score"], own["provenance"]["honored"]) == (0.85, [])
    assert "response_format" not in endpoint.requests[1]
    schema = endpoint.requests[0]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["score"]["type"] == "number"
    assert (schema["required"], schema["additionalProperties"]) == (["score"], False)


@pytest.mark.parametrize(
    ("readout", "refused", "honors"),
    [
        ("structured", set(), False),
        ("structured", {"response_format"}, True),
        ("text", set(), True),
    ],
)
def test_answers_are_parsed_as_text_elsewhere(endpoint, readout, refused, honors, caplog):
    endpoint.refused, endpoint.honors_format = refused, honors
    endpoint.answers = ["The task is about 80% complete."]
    with serving_judge(endpoint, set=[f"readout={readout}"]) as post_score:
        answer = post_score().json()
    assert (answer["score"], answer["provenance"]["honored"]) == (0.8, [])
    assert "response_format" not in endpoint.requests[0]
    assert ("honors no response_format" in caplog.text) == (readout == "structured")


@pytest.mark.parametrize(
    ("text", "end", "cause"),
    [
        ("The task is about 80% complete.", "stop", "no_verdict"),
        ("80", "stop", "no_verdict"),
        ('{"score": 8, "scale": 10}', "stop", "no_verdict"),
        ('{"score": 8', "length", "answer_cut"),
    ],
)
def test_an_answer_in_another_form_than_the_honored_one_is_not_parsed(endpoint, text, end, cause):
    endpoint.honors_format, endpoint.answers, endpoint.finish_reason = True, [text], end
    with serving_judge(endpoint) as post_score:
        answer = post_score().json()
    assert (answer["score"], answer["cause"]) == (None, cause)
    assert text in answer["model_output"]


# What the model is shown


def at_2_fps(sent: int) -> int:
    """Sample what plays at 20 frames per second again, as vLLM does."""
    return min(max(sent // 10, 4), sent)


@pytest.mark.parametrize("media", ["images", "video"])
@pytest.mark.parametrize("refused", [set(), {"return_token_ids"}])
def test_that_all_frames_are_shown_is_proved_at_the_start(endpoint, media, refused):
    """And again for longer clips only; also where fields of vLLM are refused, as by OpenAI."""
    endpoint.refused = refused
    with serving_judge(endpoint, set=[f"media={media}"]) as post_score:
        assert endpoint.proofs == [0, 2, 4, 16]
        provenance = post_score().json()["provenance"]
        assert len(endpoint.proofs) == 4
        post_score(frames_base64=[image_base64()] * 33, nframes=33)
        assert endpoint.proofs[4:] == [0, 2, 4, 34 if media == "video" else 33]
    assert provenance["shown"] == "proved"
    assert len(provenance["rendered_prompt"]) == 16


@pytest.mark.parametrize("sees", [at_2_fps, lambda sent: min(sent, 15), lambda sent: min(sent, 2)])
def test_a_judge_whose_model_is_not_shown_all_frames_is_not_ready(endpoint, sees, monkeypatch):
    """Until the endpoint is restarted with the flags that the reason names."""
    monkeypatch.setattr(openai, "_CHECK_SECONDS", 0.05)
    endpoint.sees = sees
    with serving_judge(endpoint, set=["media=video"]) as post_score:
        answer, ready = post_score(), post_score.ready()
        assert (answer.status_code, answer.json()["kind"]) == (502, "backend_failed")
        assert f"about {sees(16)} of 16 frames" in answer.json()["detail"]
        assert "--mm-processor-kwargs '{\"do_sample_frames\": false}'" in answer.json()["detail"]
        assert ready.status_code == 503 and "of 16 frames" in ready.text
        endpoint.sees = lambda sent: sent
        wait_until(lambda: post_score.ready().status_code == 200)
        assert post_score().json()["provenance"]["shown"] == "proved"


@pytest.mark.parametrize(
    ("counts", "usage"),
    [(False, None), (True, None), (True, {"prompt_tokens": None}), (True, {"prompt_tokens": "9.5"}),
     (True, [1])],
)  # fmt: skip
def test_an_endpoint_that_counts_no_frames_is_served_with_a_warning(
    endpoint, counts, usage, caplog
):
    endpoint.sees, endpoint.usage = (lambda _: 0) if counts else None, usage
    with serving_judge(endpoint) as post_score:
        for _ in range(2):
            answer = post_score(frames_base64=[image_base64()] * 33, nframes=33).json()
            assert (answer["score"], answer["provenance"]["shown"]) == (0.8, "unproved")
        assert endpoint.proofs == [0, 2, 4, 16]
    assert "not known whether the model sees all frames" in caplog.text


def test_what_is_shown_is_proved_again_after_a_restart(endpoint):
    """An answer after it does not count before; scores of another template are not mixed."""
    with serving_judge(endpoint) as post_score:
        first = post_score().json()
        endpoint.template = [151644, 872, 198]
        endpoint.answers = [failed(503), "80"]
        again = post_score(fps=3)
        assert (again.status_code, again.json()["kind"]) == (503, "unavailable")
        third = post_score(fps=3).json()
        assert third["provenance"]["rendered_prompt"] != first["provenance"]["rendered_prompt"]
        assert post_score(fps=3).json()["cached"] and not post_score().json()["cached"]
        endpoint.sees, endpoint.answers = at_2_fps, [failed(502), "80"]
        answer = post_score(fps=4)
        assert answer.status_code == 502 and "of 16 frames" in answer.json()["detail"]


def test_a_calibration_is_bound_to_the_tokens_of_the_prompt(endpoint, write_calibration):
    """Also if the endpoint gets another template while the service runs."""
    with serving(endpoint.app) as url:
        with serving_judge(url) as post_score:
            provenance = bound_provenance(post_score().json()["provenance"])
        path = write_calibration(backend="openai", provenance=provenance, frame_sizes=[])
        with serving_judge(url, calibration=path) as post_score:
            assert post_score().json()["details"]["raw_score"] == 0.8
            endpoint.template, endpoint.answers = [151644], [failed(503), "80"]
            assert [post_score(fps=3).status_code for _ in range(2)] == [503, 502]
            assert "its rendered_prompt is" in post_score(fps=3).json()["detail"]
        with serving_judge(url, calibration=path) as post_score:
            assert post_score(fps=3).status_code == 502


REFUSAL = "I will not judge this."
REFUSED = [
    (completion("80", "content_filter"), "refused", "content filter"),
    (completion("80", refusal=REFUSAL), "refused", REFUSAL),
]
WIDE = [{"yes": 0.2, "the": 0.2}, {"the": 0.9, "a": 0.05}, {"no": 0.3, "a": 0.3}]


@pytest.mark.parametrize(
    ("readout", "answer", "cause", "words"),
    [
        ("text", "I cannot tell", "no_verdict", "I cannot tell"),
        ("text", "", "no_verdict", ""),
        ("text", completion("80", "length"), "answer_cut", "80"),
        ("text", "140%", "no_verdict", "140%"),
        *((readout, *each) for readout in ("text", "probability") for each in REFUSED),
        *(("probability", tokens, "no_verdict", "lies between") for tokens in WIDE),
    ],
)
def test_an_answer_without_a_score_is_an_abstention(endpoint, readout, answer, cause, words):
    endpoint.answers = [answer]
    with serving_judge(endpoint, set=[f"readout={readout}"]) as post_score:
        for _ in range(2):
            score = post_score().json()
            assert (score["score"], score["status"], score["cached"]) == (None, "abstained", False)
            assert score["cause"] == cause and words in score["model_output"]


def test_numbers_are_parsed_by_the_score_mode(post_score, endpoint):
    endpoint.answers = ["1"]
    assert post_score().json()["score"] == 0.01  # the shipped prompt asks for a percentage
    endpoint.answers = ["0.9"]
    assert post_score(backend_kwargs={"score_mode": "unit"}).json()["score"] == 0.9
    endpoint.answers = ["85"]
    assert post_score(backend_kwargs={"score_mode": "unit"}, fps=3).json()["status"] == "abstained"
    answer = post_score(backend_kwargs={"score_mode": "sideways"})
    assert answer.status_code == 422
    assert "score_mode" in answer.json()["detail"]


# Probability


@pytest.mark.parametrize(("tokens", "score"), table("yes_probabilities"))
def test_the_probability_is_that_of_yes_against_no(endpoint, tokens, score):
    endpoint.answers = [tokens]
    with serving_judge(endpoint, set=["readout=probability"]) as post_score:
        answer = post_score().json()
    assert answer["status"] == "ok"
    assert answer["score"] == pytest.approx(score, abs=2e-3)
    assert answer["details"]["label_mass"] >= 0.1
    request = endpoint.requests[0]
    assert (request["logprobs"], request["top_logprobs"], request["max_tokens"]) == (True, 20, 8)


@pytest.mark.parametrize("logprobs", [None, (18.0, 17.0), (-0.1, -0.2), (0.5, -3.0)])
def test_an_answer_without_log_probabilities_is_a_failure(endpoint, logprobs):
    """As of vLLM with `--logprobs-mode raw_logits`: above 0, or with a sum above 1."""
    if logprobs:
        tops = [{"token": t, "logprob": p} for t, p in zip(("Yes", "No"), logprobs, strict=True)]
        endpoint.answers = [completion("", positions=[{**tops[0], "top_logprobs": tops}])]
    with serving_judge(endpoint, set=["readout=probability"]) as post_score:
        answer = post_score()
    assert answer.status_code == 502 and "no log-probabilities" in answer.json()["detail"]


YES = position({"Yes": 0.8, "No": 0.2})
UNSURE = position({"Yes": 0.5, "No": 0.5})


@pytest.mark.parametrize(
    ("positions", "score", "mass"),
    [
        ([position({"**": 0.9, "No": 0.1}), YES], 0.72, 1.0),
        ([position({"\n\n": 1.0}), YES, UNSURE], 0.8, 1.0),
        ([position({"<think>": 0.99, "Yes": 0.005, "No": 0.004}), UNSURE,
          position({"</think>": 1.0}), position({"\n\n": 0.9, "The": 0.1}), YES], 0.8, 0.9),
    ],
)  # fmt: skip
def test_a_label_is_looked_for_behind_thoughts_and_marks(endpoint, positions, score, mass):
    endpoint.answers = [completion("", "length", positions)]
    with serving_judge(endpoint, set=["readout=probability"]) as post_score:
        answer = post_score().json()
    assert answer["score"] == pytest.approx(score)
    assert answer["details"]["label_mass"] == pytest.approx(mass)


@pytest.mark.parametrize(
    ("positions", "cause"),
    [
        ([position({"<think>": 0.99, "Yes": 0.005, "No": 0.004})], "answer_cut"),
        ([position({"The": 0.99, "Yes": 0.005, "No": 0.004}), YES], "no_verdict"),
        ([position({"the": 0.9, "yes": 1e-10, "no": 3e-10})], "no_verdict"),
    ],
)
def test_labels_with_little_probability_are_an_abstention(endpoint, positions, cause):
    """Whatever their share is. The mass is a detail, and in a metric."""
    endpoint.answers = [completion("", "length", positions)]
    settings = ["readout=probability", "max_tokens=2"]
    with serving_judge(endpoint, set=settings) as post_score:
        answer = post_score().json()
        assert (answer["score"], answer["cause"]) == (None, cause)
        assert endpoint.requests[0]["max_tokens"] == 2
        assert cause == "answer_cut" or answer["details"]["label_mass"] < 0.01
    with serving_judge(endpoint, set=[*settings, "min_label_mass=0"]) as post_score:
        before = label_masses(post_score)
        is_scored = post_score().json()["status"] == "ok"
        assert is_scored == (label_masses(post_score) > before) == (cause == "no_verdict")


def label_masses(post_score: Callable[..., httpx.Response]) -> float:
    """Return how many masses the metric has."""
    lines = post_score.metrics().splitlines()
    name = 'rewardfleet_label_mass_count{backend="openai"}'
    return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)


VOCABULARY = ["Yes", " yes", "No", "NO"]


@pytest.mark.parametrize(
    ("vocabulary", "honors", "refused"),
    [
        (VOCABULARY, True, set()),
        (VOCABULARY, False, set()),
        (VOCABULARY, True, {"logprob_token_ids"}),
        ([], True, set()),
    ],
)
def test_the_exact_values_of_labels_are_requested_where_they_are_returned(
    endpoint, vocabulary, honors, refused
):
    """By vLLM, as an answer at the start shows. If none is missing, nothing is unseen."""
    endpoint.vocabulary, endpoint.honors_labels, endpoint.refused = vocabulary, honors, refused
    is_exact = bool(vocabulary) and honors and not refused
    likely = {"The": 0.5, "Yes": 0.2, "No": 1e-9}
    asked = {"The": 0.5, "Yes": 0.2, "No": 1e-9, " yes": 0.1, "NO": 0.1}
    endpoint.answers = [asked if is_exact else likely, likely]
    with serving_judge(endpoint, set=["readout=probability"]) as post_score:
        first, second = post_score().json(), post_score(fps=3).json()
    assert first["provenance"]["honored"] == ["logprob_token_ids"] * is_exact
    ids = [[0, 1, 2, 3]] * 2 if is_exact else [None] * 2
    assert [
        sorted(each.get("logprob_token_ids") or []) or None for each in endpoint.requests
    ] == ids
    if is_exact:
        assert first["score"] == pytest.approx(0.75)
        assert first["details"] == {"label_mass": pytest.approx(0.4)}
    assert second["details"]["uncertainty"] == pytest.approx(0.0)


def test_the_interval_covers_all_unseen_tokens():
    """Both ends are reached by some assignment of the remaining probability."""
    low, high = score_interval({1.0: 0.6, 0.0: 0.0}, 0.3)
    assert low == pytest.approx(0.6 / 0.9)
    assert high == 1.0
    assert score_interval({1.0: 0.0, 0.0: 0.0}, 1.0) == (0.0, 1.0)


# Failures


def test_temporary_failures_are_retried_when_the_endpoint_says(post_score, endpoint):
    endpoint.answers = [failed(500), failed(503), failed(429, **{"retry-after": "1"}), "80"]
    assert post_score().json()["score"] == 0.8
    assert len(endpoint.requests) == 4
    assert endpoint.times[3] - endpoint.times[2] >= 0.95


#: Of its content, not of what is sent.
TOO_LARGE = Response(gzip.compress(b" " * 20_000_000 + b"{}"), headers={"content-encoding": "gzip"})
INVALID = ["<html>welcome</html>", "{}", '{"choices": []}', '{"choices": [{}]}', "[]", ""]


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        *((failed(status), str(status)) for status in (400, 401, 404, 422)),
        *((Response(body), "a valid chat completion") for body in INVALID),
        *((completion("8", end), repr(str(end))) for end in (None, "max_tokens", "tool_calls")),
        (TOO_LARGE, "more than 16777216 bytes"),
    ],
)
def test_a_permanent_failure_is_not_retried(post_score, endpoint, answer, detail):
    endpoint.answers = [answer]
    answer = post_score()
    assert (answer.status_code, answer.json()["kind"]) == (502, "backend_failed")
    assert detail in answer.json()["detail"]
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_interrupted_answer_is_asked_for_again(post_score, endpoint, monkeypatch, reason):
    """As by vLLM at an update of weights: "8" of "85" is not 0.08, and is not cached."""
    endpoint.answers = [completion("8", reason), "85"]
    score = post_score().json()
    assert (score["score"], score["cached"], len(endpoint.requests)) == (0.85, False, 2)
    assert post_score().json()["cached"]
    monkeypatch.setattr(chat_endpoint, "_FIRST_WAIT", 0.001)
    endpoint.answers = [completion("8", reason)]  # always
    answer = post_score(fps=3)
    assert (answer.status_code, answer.json()["kind"]) == (503, "unavailable")
    assert reason in answer.json()["detail"]


@pytest.mark.parametrize(
    ("answer", "wait_s"), [(failed(503, **{"retry-after": "60"}), 0), ("", 30)]
)
def test_the_deadline_ends_a_call_and_its_retries(endpoint, answer, wait_s):
    endpoint.answers, endpoint.wait_s = [answer], wait_s
    with serving_judge(endpoint, deadline_s=0.5) as post_score:
        watch = Stopwatch()
        assert post_score().status_code == 504
        assert watch.seconds < 15  # less than the 20 s that it waits to retry


def test_a_truncated_response_is_retried():
    """Every connection breaks in the middle of its response."""
    requests = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            requests.append(self.request.recv(1 << 20))
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with serving_judge(url, deadline_s=6) as post_score:
            assert post_score().status_code in {503, 504}
        server.shutdown()
    assert len(requests) > 1


def test_an_unreachable_endpoint_is_an_error_and_the_service_not_ready():
    with serving_judge("http://127.0.0.1:9", deadline_s=1) as post_score:
        assert post_score().status_code in {503, 504}
        ready = post_score.ready()
    assert ready.status_code == 503
    assert "http://127.0.0.1:9/v1 does not answer: ConnectError" in ready.json()["detail"]


def test_concurrent_requests_are_limited(endpoint):
    endpoint.wait_s = 0.5
    with (
        serving_judge(endpoint, set=["concurrency=3"]) as post_score,
        ThreadPoolExecutor(12) as pool,
    ):
        list(pool.map(lambda index: post_score(task_text=f"task {index}"), range(12)))
    assert len(endpoint.requests) == 12
    assert endpoint.max_concurrent == 3


# Keys and prompts


def test_the_key_comes_from_a_file_or_the_environment(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    with serving_judge(endpoint) as post_score:
        post_score()
    (tmp_path / "key").write_text("from-file\n")
    with serving_judge(endpoint, set=[f"api_key_file={tmp_path}/key"]) as post_score:
        answer = post_score()
    assert endpoint.keys == ["Bearer from-environment", "Bearer from-file"]
    assert "from-file" not in answer.text


def test_settings_and_requests_may_give_a_prompt(endpoint):
    prompt = "prompt_template=Did the robot {task}? {{}} {task_instruction}"
    with serving_judge(endpoint, set=[prompt]) as post_score:
        first = post_score().json()
        post_score(backend_kwargs={"prompt_template": "Well: {task}"}, fps=3)
    texts = [request["messages"][0]["content"][-1]["text"] for request in endpoint.requests]
    assert texts == [f"Did the robot {TASK}? {{}} {TASK}", f"Well: {TASK}"]
    task = "put {task.__class__} on {task_instruction} {0} {"  # its braces are not expanded
    with serving_judge(endpoint) as post_score:
        answer = post_score(task_text=task).json()
        assert answer["provenance"]["prompt"] != first["provenance"]["prompt"]
    assert task in endpoint.requests[-1]["messages"][0]["content"][-1]["text"]


TEMPLATES = ["{task.__class__}", "{task[0]}", "{0}", "{}", "{task!r}", "{task:>100000}", "{x}", "{"]


def test_a_template_with_other_fields_is_rejected(endpoint, post_score):
    """At start and in a request."""
    for template in (*TEMPLATES, " "):
        with pytest.raises(ValueError, match="prompt_template="):
            VideoSettings(backend=["openai"], set=[f"prompt_template={template}"])
        answer = post_score(backend_kwargs={"prompt_template": template})
        assert answer.status_code == 422 and "template" in answer.json()["detail"]
    assert endpoint.requests == []


def test_the_judge_needs_url_and_model():
    with pytest.raises(ValueError, match="--openai-url and --openai-model"):
        create_app(VideoSettings(backend=["openai"]))


def test_readiness_and_status_say_that_the_endpoint_is_down(endpoint, monkeypatch, capsys):
    """And that it is up again. Any other answer than that of a proxy in front shows that it is."""
    monkeypatch.setattr(openai, "_CHECK_SECONDS", 0.05)
    with serving(endpoint.app) as url:
        settings = VideoSettings(openai_url=f"{url}/v1", openai_model="m")
        with serving(create_app(settings)) as service:

            def answer() -> tuple[int, str]:
                response = httpx.get(f"{service}/readyz", trust_env=False)
                return response.status_code, response.text

            for status, expected in ((404, 200), (503, 503), (401, 200), (502, 503)):
                endpoint.models_status = status
                wait_until(lambda expected=expected: answer()[0] == expected)
            reason = f"the endpoint {url}/v1 does not answer: HTTP 502"
            assert reason in answer()[1]
            assert main(["status", service]) == 1
            assert "does not answer: HTTP 502" in capsys.readouterr().out
