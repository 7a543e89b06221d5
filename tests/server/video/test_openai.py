"""The judge `openai` against a real HTTP server, which also misbehaves."""

import asyncio
import base64
import math
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import cv2
import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Request, Response

from rewardfleet_server.testing import serving
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.judges.openai import Token, yes_interval
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import picture

pytestmark = pytest.mark.slow  # services that fail take their time

TASK = "put the bowl on the plate"


class Endpoint:
    """An OpenAI-compatible endpoint that answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []
        self.keys: list[str | None] = []
        self.times: list[float] = []
        self.answers: list[Response | str | dict[str, float]] = ["80"]
        self.finish_reason = "stop"
        self.wait_s = 0.0
        self.now = self.most = 0
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self._complete)

    async def _complete(self, request: Request) -> Response:
        self.asked.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        self.times.append(time.monotonic())
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.wait_s)
        self.now -= 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Response):
            return answer
        return self._completion(answer)

    def _completion(self, answer: str | dict[str, float]) -> Response:
        choice: dict[str, object] = {"index": 0, "finish_reason": self.finish_reason}
        if isinstance(answer, str):
            choice["message"] = {"role": "assistant", "content": answer}
        else:
            said = max(answer, key=lambda token: answer[token])
            choice["message"] = {"role": "assistant", "content": said}
            tops = [{"token": t, "logprob": math.log(p), "bytes": None} for t, p in answer.items()]
            choice["logprobs"] = {"content": [{**tops[0], "top_logprobs": tops}]}
        body = {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]}
        return Response(httpx.Response(200, json=body).content, media_type="application/json")


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def ask(endpoint: Endpoint, tmp_path) -> Iterator:
    """Ask a video service whose judge is `openai`, before `endpoint`."""
    with _asking(endpoint) as ask:
        yield ask


@contextmanager
def _asking(endpoint: Endpoint | str, **settings: object):
    with contextmanager_of(endpoint) as url:
        settings = {"backend": ["openai"], "openai_url": f"{url}/v1", **settings}
        settings = VideoSettings(openai_model="judge-7b", **settings)
        with (
            serving(create_app(settings)) as service,
            httpx.Client(base_url=service, timeout=60, trust_env=False, verify=False) as client,
        ):

            def ask(**fields: object) -> httpx.Response:
                frames = [picture(level=level) for level in (0, 100, 200)]
                body = {"task_text": TASK, "frames_base64": frames, "fps": 10, **fields}
                return client.post("/score", json=body)

            yield ask


@contextmanager
def contextmanager_of(endpoint: Endpoint | str) -> Iterator[str]:
    if isinstance(endpoint, str):
        yield endpoint
    else:
        with serving(endpoint.app) as url:
            yield url


def test_the_text_is_read_as_a_percentage(ask, endpoint):
    score = ask().json()
    assert (score["score"], score["status"], score["model_output"]) == (0.8, "ok", "80")
    endpoint.answers = ["1"]
    assert ask(task_text="another").json()["score"] == 0.01, "our prompt asks for a percentage"


def test_the_frames_go_as_pictures_before_the_question(ask, endpoint):
    ask()
    [message] = endpoint.asked[0]["messages"]
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["image_url"] * 3 + ["text"]
    levels = [_level(part["image_url"]["url"]) for part in message["content"][:3]]
    assert levels == pytest.approx([0, 100, 200], abs=3)
    assert TASK in message["content"][3]["text"]
    assert endpoint.asked[0]["model"] == "judge-7b"
    assert (endpoint.asked[0]["temperature"], endpoint.asked[0]["max_tokens"]) == (0, 64)


def _level(url: str) -> float:
    content = base64.b64decode(url.removeprefix("data:image/jpeg;base64,"))
    return float(cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR).mean())


def test_the_frames_go_as_one_video_where_told(endpoint, tmp_path):
    with _asking(endpoint, openai_media="video") as ask:
        assert ask().json()["score"] == 0.8
    video, question = endpoint.asked[0]["messages"][0]["content"]
    assert (video["type"], question["type"]) == ("video_url", "text")
    path = tmp_path / "sent.mp4"
    path.write_bytes(
        base64.b64decode(video["video_url"]["url"].removeprefix("data:video/mp4;base64,"))
    )
    capture = cv2.VideoCapture(str(path))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(10), "at the true rate"
    levels = []
    while True:
        decoded, frame = capture.read()
        if not decoded:
            break
        levels.append(float(frame.mean()))
    assert levels == pytest.approx([0, 100, 200], abs=6)


@pytest.mark.parametrize(
    ("said", "finish"),
    [("I cannot tell", "stop"), ("", "stop"), ("80", "length"), ("140%", "stop")],
)
def test_an_answer_without_a_verdict_is_an_abstention(ask, endpoint, said, finish):
    endpoint.answers, endpoint.finish_reason = [said], finish
    for _ in range(2):
        score = ask().json()
        assert (score["score"], score["status"], score["cached"]) == (None, "abstained", False)
        assert said in score["model_output"]


def test_the_readout_follows_the_score_mode(ask, endpoint):
    endpoint.answers = ["0.9"]
    assert ask(backend_kwargs={"score_mode": "unit"}).json()["score"] == 0.9
    endpoint.answers = ["85"]
    assert ask(backend_kwargs={"score_mode": "unit"}, fps=3).json()["status"] == "abstained"
    answer = ask(backend_kwargs={"score_mode": "sideways"})
    assert answer.status_code == 422
    assert "score_mode" in answer.json()["detail"]


# Probability


@pytest.mark.parametrize(
    ("tokens", "score"),
    [
        ({"yes": 0.9, "no": 0.1}, 0.9),
        ({"Yes": 0.5, " yes": 0.2, "YES": 0.1, "no": 0.2}, 0.8),
        ({"yes": 0.09, "no": 0.01, "maybe": 0.9}, 0.9),
        ({"yes": 1e-10, "no": 3e-10, "the": 0.9}, 0.25),
        ({"yes": 0.98, "the": 0.01, "a": 0.005}, 0.9975),
        ({"no": 0.98, "the": 0.01, "a": 0.005}, 0.0025),
    ],
)
def test_the_probability_is_that_of_yes_against_no(endpoint, tokens, score):
    endpoint.answers = [tokens]
    with _asking(endpoint, readout="probability") as ask:
        answer = ask().json()
    assert answer["status"] == "ok"
    assert answer["score"] == pytest.approx(score, abs=2e-3)
    asked = endpoint.asked[0]
    assert (asked["logprobs"], asked["top_logprobs"], asked["max_tokens"]) == (True, 20, 1)


@pytest.mark.parametrize(
    "tokens", [{"yes": 0.2, "the": 0.2}, {"the": 0.9, "a": 0.05}, {"no": 0.3, "a": 0.3}]
)
def test_too_much_that_is_not_told_is_an_abstention(endpoint, tokens):
    endpoint.answers = [tokens]
    with _asking(endpoint, readout="probability") as ask:
        answer = ask().json()
    assert (answer["score"], answer["status"]) == (None, "abstained")
    assert "lies between" in answer["model_output"]


def test_an_endpoint_without_log_probabilities_is_a_failure(endpoint):
    with _asking(endpoint, readout="probability") as ask:
        answer = ask()
    assert answer.status_code == 502
    assert "log-probabilities" in answer.json()["detail"]


def test_the_interval_holds_whatever_is_left():
    """Both ends are reached by some way to fill what the tokens leave over."""
    low, high = yes_interval([Token(token="yes", logprob=math.log(0.6)),
                              Token(token="a", logprob=math.log(0.1))])  # fmt: skip
    assert low == pytest.approx(0.6 / 0.9)
    assert high == 1.0
    assert yes_interval([Token(token="the", logprob=-800.0)]) == (0.0, 1.0)


# Misbehaving


def failed(status: int, **headers: str) -> Response:
    return Response("<html>sorry</html>", status_code=status, headers=headers)


def test_what_may_succeed_later_is_tried_again(ask, endpoint):
    endpoint.answers = [failed(500), failed(503), failed(429), "80"]
    assert ask().json()["score"] == 0.8
    assert len(endpoint.asked) == 4


def test_retry_after_is_honoured(ask, endpoint):
    endpoint.answers = [failed(429, **{"retry-after": "1"}), "80"]
    assert ask().json()["score"] == 0.8
    assert endpoint.times[1] - endpoint.times[0] >= 0.95


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_what_cannot_succeed_is_not_tried_again(ask, endpoint, status):
    endpoint.answers = [failed(status)]
    answer = ask()
    assert answer.status_code == 502
    assert str(status) in answer.json()["detail"]
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize(
    "body",
    ["<html>welcome</html>", "{}", '{"choices": []}', '{"choices": [{}]}', "[]", ""],
)
def test_what_is_no_completion_is_a_failure_not_a_zero(ask, endpoint, body):
    endpoint.answers = [Response(body, media_type="application/json")]
    answer = ask()
    assert answer.status_code == 502
    assert "no chat completion" in answer.json()["detail"]


def test_the_requests_deadline_ends_the_tries(endpoint):
    endpoint.answers = [failed(503, **{"retry-after": "60"})]
    with _asking(endpoint, deadline_s=0.5) as ask:
        started = time.monotonic()
        assert ask().status_code == 504
        assert time.monotonic() - started < 5


def test_a_slow_endpoint_is_a_deadline_not_a_hang(endpoint):
    endpoint.wait_s = 30
    with _asking(endpoint, deadline_s=0.3) as ask:
        assert ask().status_code == 504


def test_an_answer_that_is_cut_off_is_tried_again():
    """A connection that breaks in the middle of its answer, every time."""
    asked = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked.append(self.request.recv(1 << 20))
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with _asking(url, deadline_s=2) as ask:
            assert ask().status_code in {503, 504}
        server.shutdown()
    assert len(asked) > 1


def test_an_endpoint_that_is_not_there_is_no_score():
    with _asking("http://127.0.0.1:1", deadline_s=1) as ask:
        assert ask().status_code in {503, 504}


def test_no_more_requests_are_under_way_than_allowed(endpoint):
    endpoint.wait_s = 0.05
    with _asking(endpoint, openai_concurrency=3) as ask:
        threads = [
            threading.Thread(target=ask, kwargs={"task_text": f"task {index}"})
            for index in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(endpoint.asked) == 12
    assert endpoint.most == 3


# Keys and prompts


def test_the_key_comes_from_a_file_or_the_environment(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    with _asking(endpoint) as ask:
        ask()
    (tmp_path / "key").write_text("from-file\n")
    with _asking(endpoint, openai_api_key_file=tmp_path / "key") as ask:
        answer = ask()
    assert endpoint.keys == ["Bearer from-environment", "Bearer from-file"]
    assert "from-file" not in answer.text


def test_a_prompt_of_ones_own(endpoint):
    with _asking(endpoint, prompt_template="Did the robot {task}? {{}} {task_instruction}") as ask:
        first = ask().json()
        ask(backend_kwargs={"prompt_template": "Well: {task}"}, fps=3)
    texts = [asked["messages"][0]["content"][-1]["text"] for asked in endpoint.asked]
    assert texts == [f"Did the robot {TASK}? {{}} {TASK}", f"Well: {TASK}"]
    with _asking(endpoint) as ask:
        assert ask().json()["provenance"]["prompt"] != first["provenance"]["prompt"]


def test_nothing_in_the_task_is_expanded(ask, endpoint):
    task = "put {task.__class__} on {task_instruction} {0} {"
    assert ask(task_text=task).status_code == 200
    assert task in endpoint.asked[0]["messages"][0]["content"][-1]["text"]


TEMPLATES = ["{task.__class__}", "{task[0]}", "{0}", "{}", "{task!r}", "{task:>100000}", "{x}", "{"]


@pytest.mark.parametrize("template", [*TEMPLATES, " "])
def test_a_template_reaches_nothing_but_the_task(endpoint, ask, template):
    """It is refused at start, and in a request."""
    with pytest.raises(ValueError, match="template"), _asking(endpoint, prompt_template=template):
        pass
    answer = ask(backend_kwargs={"prompt_template": template})
    assert answer.status_code == 422
    assert "template" in answer.json()["detail"]
    assert endpoint.asked == []


def test_the_judge_needs_to_know_whom_to_ask():
    with pytest.raises(ValueError, match="--openai-url and --openai-model"):
        create_app(VideoSettings(backend=["openai"]))
