"""The judges in OpenAI's format, with the payloads of stock RLinf and readers like its parsers."""

import base64
import io
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from rewardfleet_server import admission
from rewardfleet_server.testing import FakeJudge, serving
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.chat_api import TREND_DEAD_ZONE, task_of
from rewardfleet_server.video.clip.frames import Clip, DecodeSpec, decode_video
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import DATA, Serve, client_of, table
from ...gateways import fleet_of
from ...measure import Stopwatch
from ..test_engine import item_metrics
from .conftest import separation
from .test_bad_input import check_problem

PATH = "/v1/chat/completions"
TASK = "put the bowl on the plate"
#: Own words in the forms of RLinf's prompts.
SCORE_PROMPT = "Task: {task}\n\nJudge it and return a reward between 0 and 1."
TREND_PROMPT = (
    "You are currently performing the task: {task}. You are given two synchronized {n}-frame "
    "videos of one window. Is its trend positive, negative, or unclear? Answer in one word."
)
LABELS = ("positive", "negative", "unclear")


def data_url(frame: np.ndarray) -> str:
    """Encode a frame as RLinf does."""
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG", quality=95)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def gray(level: int, size: int = 32) -> np.ndarray:
    return np.full((size, size, 3), level, np.uint8)


def payload(frames: Sequence[np.ndarray], prompt: str, **fields: object) -> dict[str, Any]:
    """Build a request as RLinf does: the frames of all cameras, the text, sampling parameters."""
    images = [{"type": "image_url", "image_url": {"url": data_url(each)}} for each in frames]
    content = [*images, {"type": "text", "text": prompt}]
    return {
        "model": "Qwen3-VL-4B-Instruct",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 16,
        "temperature": 0.0,
        **fields,
    }


def score_payload(*levels: int, **fields: object) -> dict[str, Any]:
    return payload([gray(level) for level in levels], SCORE_PROMPT.format(task=TASK), **fields)


def trend_payload(*levels: int, n: int = 5, **fields: object) -> dict[str, Any]:
    prompt = TREND_PROMPT.format(task=TASK, n=n)
    return payload([gray(level) for level in levels], prompt, **fields)


def item_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the item of `/score` with the frames of a request."""
    urls = [part["image_url"]["url"] for part in body["messages"][0]["content"][:-1]]
    return {"task_text": TASK, "frames_base64": [url.partition(",")[2] for url in urls]}


def content_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    content = answer.json()["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


def read_trend(text: str) -> str | None:
    """Read a label as RLinf's parser does: from JSON, else the last label in the text."""
    try:
        label = str(json.loads(text).get("trend", "")).lower()
    except (ValueError, AttributeError):
        label = ""
    found = re.findall(r"\b(positive|negative|unclear)\b", text.lower())
    return label if label in LABELS else found[-1] if found else None


def read_number(text: str) -> float | None:
    """Read the first number in a text."""
    found = re.search(r"[-+]?\d+(?:\.\d+)?", text)
    return float(found[0]) if found else None


class LevelJudge(FakeJudge):
    """The score of a clip is the mean gray level of its last frame, as a share of 255."""

    async def judge(self, task_text: str, clip: Clip, options: Mapping) -> Judgment:
        await super().judge(task_text, clip, options)
        return Judgment(float(clip.frames[-1].mean()) / 255, "the level")


class ProgressJudge(LevelJudge):
    """Its score is 0 until the end; the level is its progress."""

    async def judge(self, task_text: str, clip: Clip, options: Mapping) -> Judgment:
        level = await super().judge(task_text, clip, options)
        assert level.score is not None
        return Judgment(0.0, "", {"progress": level.score})


# The answer


def test_the_score_of_a_clip_is_a_plain_number(serve: Serve):
    client = serve(LevelJudge())
    answer = client.post(PATH, json=score_payload(0, 100, 255)).json()
    message = {"role": "assistant", "content": "1.000000", "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    tokens = ("prompt_tokens", "completion_tokens", "total_tokens")
    same = {"object": "chat.completion", "model": "fake", "task_text": TASK, "choices": [choice]}
    assert answer.items() >= {**same, "usage": dict.fromkeys(tokens, 0)}.items()
    assert answer["id"].startswith("chatcmpl-")
    assert abs(answer["created"] - time.time()) < 60
    [score] = answer["scores"]
    assert (score["score"], score["status"], score["backend"]) == (1.0, "ok", "fake")
    assert score["provenance"]["judge"] == "fake"
    assert score["provenance"]["frames"]["total"] == 3
    # Of 9.9e-05, a reader of plain numbers would take 9.9.
    answer = serve(FakeJudge(9.9e-5)).post(PATH, json=score_payload(1))
    assert content_of(answer) == "0.000099"


@pytest.mark.parametrize("judge", [LevelJudge, ProgressJudge])
def test_the_trend_is_the_change_from_the_first_to_the_last_frame(
    serve: Serve, judge: type[FakeJudge]
):
    """Unless it is within the dead zone."""
    client = serve(judge())
    for change, label in ((0, "unclear"), (0.8, "unclear"), (1.2, "positive"), (-1.2, "negative")):
        request = trend_payload(100, 100 + round(change * TREND_DEAD_ZONE * 255), n=2)
        answer = client.post(PATH, json=request)
        assert json.loads(content_of(answer)) == {"trend": label}
        assert len(answer.json()["scores"]) == 2
    assert read_trend(content_of(client.post(PATH, json=trend_payload(90, n=1)))) == "unclear"


def test_a_trend_looks_at_single_frames_and_shares_them_with_later_windows(serve: Serve):
    judge = LevelJudge()
    client = serve(judge)
    for first in range(0, 60, 10):
        levels = range(first, first + 50, 10)  # windows of five frames, one step apart
        client.post(PATH, json=trend_payload(*levels, n=5))
    assert judge.seen == [(0,)] * 10  # ten frames in six windows


def test_the_frames_of_the_second_camera_are_not_judged(serve: Serve):
    client = serve(LevelJudge())
    rising, falling = (0, 100, 200), (200, 100, 0)
    for n in (3, 5):  # the prompt says 5, whatever the length of the window
        request = trend_payload(*rising, *falling, n=n)
        assert read_trend(content_of(client.post(PATH, json=request))) == "positive"
    frames = [gray(0), gray(255), gray(9, size=16), gray(8, size=16)]  # of another size
    for request in (
        payload(frames, TREND_PROMPT.format(task=TASK, n=2)),
        trend_payload(0, 50, 100, 150, 250, n=5),  # one camera, although the prompt names two
    ):
        assert read_trend(content_of(client.post(PATH, json=request))) == "positive"
    answer = client.post(PATH, json=trend_payload(1, 2, 3, n=5))
    assert answer.status_code == 422
    assert "even number of frames" in answer.json()["error"]["message"]


@pytest.mark.parametrize("request_body", [score_payload(1), trend_payload(1, 2, n=2)])
def test_an_abstention_is_neither_a_number_nor_a_label(serve: Serve, request_body: dict[str, Any]):
    answer = serve(FakeJudge(None)).post(PATH, json=request_body)
    content = content_of(answer)
    assert read_trend(content) is None
    assert read_number(content) is None
    with pytest.raises((ValueError, TypeError)):
        float(json.loads(content))
    assert "abstained" in answer.json()["choices"][0]["message"]["refusal"]
    assert {score["status"] for score in answer.json()["scores"]} == {"abstained"}


@pytest.mark.parametrize(
    ("prompt", "task"), [(TREND_PROMPT.replace("{n}", "5"), TASK), *table("tasks_in_prompts")]
)
def test_the_task_is_read_from_the_prompt(prompt: str, task: str | None):
    text = prompt.format(task=TASK)
    assert task_of(text) == (text if task is None else task)


# Judges and models


def test_the_model_selects_a_loaded_judge_and_other_names_the_default(
    caplog: pytest.LogCaptureFixture,
):
    judges = {"low": FakeJudge(0.25), "PRIMO-R1": FakeJudge(0.75)}
    expected = {
        "low": ("low", "0.250000"),
        "PRIMO-R1": ("PRIMO-R1", "0.750000"),
        "primo_r1_vllm": ("PRIMO-R1", "0.750000"),  # its alias
        "Qwen3-VL-4B-Instruct": ("low", "0.250000"),
    }
    with client_of(create_app(VideoSettings(), judges)) as client, caplog.at_level(logging.WARNING):
        models = client.get("/v1/models").json()
        assert models["object"] == "list"
        assert [each["id"] for each in models["data"]] == ["low", "PRIMO-R1"]
        for model, (judge, content) in [*expected.items(), *expected.items()]:
            answer = client.post(PATH, json=score_payload(1, model=model))
            assert (answer.json()["model"], content_of(answer)) == (judge, content)
        request = score_payload(1)
        del request["model"]
        assert content_of(client.post(PATH, json=request)) == "0.250000"
    warnings = [line.getMessage() for line in caplog.records if "no judge" in line.getMessage()]
    assert len(warnings) == 1 and "'Qwen3-VL-4B-Instruct'" in warnings[0] and "low" in warnings[0]


def test_warnings_about_unknown_models_are_limited(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rewardfleet_server.video.chat_api._MAX_UNKNOWN_MODELS", 3)
    client = serve(FakeJudge())
    for number in range(6):
        model = f"{number}\n" + "x" * 10_000
        assert client.post(PATH, json=score_payload(1, model=model)).status_code == 200
    warnings = [line.getMessage() for line in caplog.records if "no judge" in line.getMessage()]
    assert len(warnings) == 3 and all(len(text) < 300 and "\n" not in text for text in warnings)


# Requests


def test_sampling_parameters_system_prompts_and_unknown_fields_are_ignored(serve: Serve):
    client = serve(LevelJudge())
    expected = content_of(client.post(PATH, json=score_payload(40)))
    fields = {"top_p": 0.1, "seed": 3, "stop": ["x"], "logprobs": True, "n": 1, "stream": False}
    request = score_payload(40, **fields, user="me", extra_body={"a": [1]})
    request["messages"].insert(0, {"role": "system", "content": "You are strict. Task: other"})
    request["messages"][1]["content"][0]["image_url"]["detail"] = "high"
    assert content_of(client.post(PATH, json=request)) == expected


def messages(*content: object, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(content)}]}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


TEXT = {"type": "text", "text": TASK}
IMAGE = image(data_url(gray(1)))
USER = {"role": "user", "content": [IMAGE, TEXT]}


def filled(rows: list[Any]) -> list[Any]:
    """Replace the names of valid parts and turns by these."""
    text = json.dumps(rows)
    for name, part in (("USER", USER), ("IMAGE", IMAGE), ("TEXT", TEXT)):
        text = text.replace(f'"{name}"', json.dumps(part))
    return list(json.loads(text))


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        *filled(table("refused_chats")),
        ({"messages": json.loads("[" * 300 + "]" * 300)}, "not valid JSON"),
        (messages(*[IMAGE] * 1025, TEXT), "1 to 1024 frames"),
        (messages(IMAGE, image(data_url(gray(1, size=8))), TEXT), "differ in size"),
        (messages(IMAGE, {"type": "text", "text": "x" * 1_000_000}), "at most 4096 characters"),
    ],
)
def test_a_refused_request_says_what_is_accepted(refusing: httpx.Client, body: Any, detail: str):
    answer = refusing.post(PATH, json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert [error[name] for name in ("code", "param")] == ["invalid", None]
    assert error["type"] == "invalid_request_error"
    assert detail in error["message"]
    assert len(answer.text) < 2000


@pytest.fixture(scope="module")
def refusing():
    """A service that still scores when all tests that use it are done."""
    with client_of(create_app(VideoSettings(), {"fake": FakeJudge()})) as client:
        yield client
        assert content_of(client.post(PATH, json=score_payload(1))) == "1.000000"


def test_only_the_first_of_many_invalid_parts_is_reported(refusing: httpx.Client):
    """Collecting the errors of all would take seconds, and a gigabyte of memory."""
    for body in (messages(*[{}] * 500_000), {"messages": [1] * 500_000}):
        answer = refusing.post(PATH, json=body)
        assert answer.status_code == 422
        assert "more" not in answer.json()["error"]["message"]


def test_reading_a_prompt_takes_linear_time(refusing: httpx.Client):
    watch = Stopwatch()
    for text, times in (("performing the task: ", 5), ("two synchronized 5", 5), ("Task:", 20)):
        body = messages(IMAGE, {"type": "text", "text": text * 10_000 * times})
        assert refusing.post(PATH, json=body).status_code == 422
    assert watch.seconds < 10


# Failures, keys and metrics


def test_failures_have_the_usual_statuses_and_headers_in_openais_format(
    serve: Serve, tmp_path: Path
):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    client = serve(FakeJudge(), api_key_file=keys, max_body_mb=1)
    for answer in (client.post(PATH, json=score_payload(1)), client.get("/v1/models")):
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["error"]["type"] == "authentication_error"
    client.headers["authorization"] = "Bearer secret"
    assert client.get("/v1/models").status_code == 200
    assert client.post(PATH, json=score_payload(1)).status_code == 200
    answer = client.post(PATH, json=score_payload(1, user="x" * 2**20))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    check_problem(client.post("/score", json={}), "invalid")  # other routes have their own format
    failing = serve(FakeJudge(error=RuntimeError("broken")))
    for body in (score_payload(1), trend_payload(1, 2, n=2)):
        answer = failing.post(PATH, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "backend_failed")
        assert answer.json()["error"]["type"] == "server_error"
        assert "broken" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_a_service_at_capacity_says_when_to_try_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(admission, "MAX_WAITING", 1)
    limits = {"max_in_flight": 1, "max_queue_depth": 1}
    client = serve(FakeJudge(wait_s=1, deterministic=False), **limits)
    with ThreadPoolExecutor(6) as pool:
        requests = [trend_payload(level, level + 1, n=2) for level in range(6)]
        answers = list(pool.map(lambda body: client.post(PATH, json=body), requests))
    refused = [answer for answer in answers if answer.status_code != 200]
    assert 0 < len(refused) <= 3, "two are admitted, and one waits in line"
    for answer in refused:
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert "at capacity" in answer.json()["error"]["message"]


@pytest.mark.parametrize("score", [0.5, None])
def test_a_chat_request_is_counted_and_cached_like_an_item_of_score(
    serve: Serve, score: float | None
):
    chat_body = score_payload(1, 2)
    found = []
    for path, body in ((PATH, chat_body), ("/score", item_of(chat_body))):
        client = serve(FakeJudge(score))
        for _ in range(2):
            assert client.post(path, json=body).status_code == 200
        found.append(item_metrics(client))
        shared = client.post("/score", json=item_of(chat_body)).json()["cached"]
        assert shared is (score is not None)
    assert found[0] == found[1]


def test_it_works_behind_the_gateway_and_with_keys(tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    app = create_app(VideoSettings(api_key_file=keys), {"fake": LevelJudge()})
    with (
        serving(app) as video,
        fleet_of(video=video) as fleet,
        httpx.Client(base_url=fleet, trust_env=False, timeout=30) as client,
    ):
        answer = client.post("/video" + PATH, json=score_payload(1))
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
        client.headers["authorization"] = "Bearer secret"
        answer = client.post("/video" + PATH, json=trend_payload(0, 250, n=2))
        assert read_trend(content_of(answer)) == "positive"
        assert client.get("/video/v1/models").json()["data"][0]["id"] == "fake"


# Real rollouts

LIBERO = DATA / "libero"


@pytest.mark.slow
def test_real_rollouts_get_the_numbers_of_score_and_their_trends_point_the_right_way():
    lines = (LIBERO / "manifest.jsonl").read_text().splitlines()
    rollouts = [json.loads(line) for line in lines[::4]]
    numbers: dict[bool, list[float]] = {True: [], False: []}
    trends: list[str | None] = []
    with client_of(create_app(VideoSettings())) as client:
        for rollout in rollouts:
            path = str(LIBERO / rollout["file"])
            frames = decode_video(path, DecodeSpec(16, 200_704)).frames
            body = payload(frames, SCORE_PROMPT.format(task=rollout["task_text"]))
            number = read_number(content_of(client.post(PATH, json=body)))
            assert number is not None
            item = {**item_of(body), "task_text": rollout["task_text"]}
            score = client.post("/score", json=item).json()["score"]
            assert number == pytest.approx(score, abs=1e-6)
            numbers[rollout["success"]].append(number)
            if rollout["success"]:
                prompt = TREND_PROMPT.format(task=rollout["task_text"], n=5)
                window = [frames[i] for i in (0, 4, 8, 12, 15)]
                answer = client.post(PATH, json=payload([*window, *window[::-1]], prompt))
                trends.append(read_trend(content_of(answer)))
                answer = client.post(PATH, json=payload([*window[::-1], *window], prompt))
                assert read_trend(content_of(answer)) != "positive"
    assert separation(numbers[True], numbers[False]) > 0.95
    assert trends.count("positive") >= 0.9 * len(trends)
