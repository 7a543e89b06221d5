"""`/rlinf/score` and `--profile rlinf-rlaif`: the original LIBERO server's format and defaults.

What the original answers is in tests/third_party/recorded/rlinf_rlaif.json, which
tests/third_party/test_rlinf_rlaif.py records with its own code.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from rewardfleet.commands.main import main
from rewardfleet.wire.errors import Overloaded
from rewardfleet_server.flags import read_settings
from rewardfleet_server.serve import announce
from rewardfleet_server.testing import FakeJudge, serving
from rewardfleet_server.video import settings as settings_module
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.clip.frames import floor_indices
from rewardfleet_server.video.judges.loading import load_judges
from rewardfleet_server.video.judges.score_parser import parse_score
from rewardfleet_server.video.judges.vlm.families import primo_r1, qwen
from rewardfleet_server.video.judges.vlm.families.primo_r1 import authors_prompts
from rewardfleet_server.video.judges.vlm.families.qwen2_5_vl_vllm import QwenVllmSettings
from rewardfleet_server.video.prompts import PERCENTAGE, YES_OR_NO
from rewardfleet_server.video.prompts.authors import original_prompt
from rewardfleet_server.video.settings import VideoSettings, select_gpus

from ...conftest import Serve, client_of, table
from ..http.test_requests import metric
from .test_abstention import original_request
from .test_bad_input import check_problem
from .test_openai import Endpoint

RECORDED = json.loads(
    (Path(__file__).parents[2] / "third_party/recorded/rlinf_rlaif.json").read_text()
)
PROFILE: dict[str, Any] = {"profile": "rlinf-rlaif"}
QWEN = "Qwen/Qwen2.5-VL-7B-Instruct"

MakeVideo = Callable[..., Path]


def replaced(client: httpx.Client) -> float:
    return metric(client, 'rewardfleet_replaced_abstentions_total{backend="fake"}')


# The route


@pytest.mark.parametrize("path", ["/rlinf/score", "/rlinf"])
def test_an_abstention_is_the_number_there_and_null_elsewhere(
    serve: Serve, make_video: MakeVideo, path: str
):
    client = serve(FakeJudge(None), abstention="0.25")
    body = original_request(make_video(20), anything="is ignored")
    assert client.post(path, json=body).json() == {
        "score": 0.25,
        "model_output": "fake judgment of 16 frames",
        "backend": "fake",
        "abstained": True,
        "cause": "no_verdict",
    }
    assert replaced(client) == 1
    del body["anything"]
    single = client.post("/score", json=body).json()
    (item,) = client.post("/score/batch", json={"items": [body]}).json()["results"]
    for score in (single, item):
        assert (score["score"], score["status"]) == (None, "abstained")
    assert replaced(client) == 1
    results = 'rewardfleet_results_total{backend="fake",service="video",status="abstained"}'
    assert metric(client, results) == 3


@pytest.mark.parametrize(
    ("error", "status"), [(None, 200), (RuntimeError("broken"), 502), (Overloaded("busy"), 429)]
)
def test_a_score_is_that_of_the_judge_and_a_failure_stays_an_error(
    serve: Serve, make_video: MakeVideo, error: Exception | None, status: int
):
    client = serve(FakeJudge(0.75, error=error), abstention=0)
    body = original_request(make_video(20), backend="fake", backend_kwargs={})
    answer = client.post("/rlinf/score", json=body)
    assert answer.status_code == status
    if error is None:
        assert (answer.json()["score"], answer.json()["abstained"]) == (0.75, False)
        assert answer.json().keys() > RECORDED["answer"].keys()
    assert ("score" in answer.json()) == (error is None)
    assert replaced(client) == 0


def test_what_the_original_refuses_is_refused(serve: Serve, make_video: MakeVideo):
    client = serve(abstention=0)
    body = original_request(make_video(20))
    for changes in table("refused_by_rlinf"):
        answer = client.post("/rlinf/score", json={**body, **changes})
        assert answer.status_code in {403, 404, 422} and answer.json()["detail"], changes


@pytest.mark.parametrize("abstention", ["null", "error"])
def test_without_a_number_the_route_is_closed_and_says_once_how_to_open_it(
    serve: Serve, make_video: MakeVideo, abstention: str, caplog: pytest.LogCaptureFixture
):
    client = serve(FakeJudge(None), abstention=abstention)
    said = "/rlinf/score is closed: start the service with --abstention"
    for _ in range(3):
        answer = client.post("/rlinf/score", json=original_request(make_video(20)))
        check_problem(answer, "not_found", said)
    [message] = [each for each in caplog.messages if "REQUESTS ARE REFUSED" in each]
    assert "--abstention" in message


@pytest.mark.parametrize("given", ["2", "nan", "-0.1", "inf", "", "0,5", "true", "1e-400x", True])
def test_only_null_error_and_numbers_from_0_to_1_are_accepted(given: object):
    with pytest.raises(ValueError, match=r"--abstention .*give null, error, or a number in \[0, 1"):
        read_settings(VideoSettings, {"abstention": given})


def test_the_start_warns_what_the_number_means():
    for abstention in ("null", "error", "1"):
        app = create_app(VideoSettings(abstention=abstention), {"fake": FakeJudge()})
        said = [each for each in app.service.warnings if "ABSTENTIONS ARE SCORED 1 ON" in each]
        assert len(said) == (abstention == "1")


# What is refused is reported


def test_each_cause_of_refusals_is_reported_once_with_the_setting(
    serve: Serve, make_video: MakeVideo, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    clip = make_video(20)
    (inside := tmp_path / "root").mkdir()
    closed, rooted = serve(), serve(abstention=0, video_root=[inside])
    for client, path in ((closed, "/score"), (rooted, "/rlinf/score")):
        for changes in (
            {"backend": "qwen2_5_vl_vllm"},
            {"backend_kwargs": {"system_prompt": "x"}},
            {"video_path": "/no such file"},
            {"video_path": str(inside / "none.mp4")},
        ) * 3:
            client.post(path, json=original_request(clip, **changes))
    found = [each for each in caplog.messages if "REQUESTS ARE REFUSED" in each]
    assert len(found) == 8
    for messages in (found[:4], found[4:]):
        for message, setting in zip(
            messages, ("--backend", "no options", "--video-root", "temp_video_dir"), strict=True
        ):
            assert setting in message and "SIMULATOR'S SUCCESS" in message
            assert "no such file" not in message  # logs do not show paths outside


# The profile


def test_the_profile_has_the_defaults_of_the_original():
    of_qwen, of_primo = table("profile_defaults")
    settings = VideoSettings(**PROFILE)
    assert settings.backends == ["qwen2_5_vl_vllm"]
    judge = settings.judge_settings("qwen2_5_vl_vllm")
    assert judge.model_dump().items() >= of_qwen.items()
    primo = VideoSettings(**PROFILE, backend=["PRIMO-R1"], model_path="m")
    assert primo.judge_settings("primo_r1_vllm").model_dump().items() >= of_primo.items()
    assert primo.selected_gpus == settings.selected_gpus == ["0", "1"]
    assert (settings.host, settings.port, settings.abstention) == ("127.0.0.1", 18080, "null")


def test_flags_and_variables_come_before_the_profile(monkeypatch: pytest.MonkeyPatch):
    primo = {**PROFILE, "backend": ["PRIMO-R1"], "model_path": "m", "set": ["max_tokens=7"]}
    given = VideoSettings(**primo).judge_settings("PRIMO-R1")
    assert (given.model_path, given.max_tokens, given.top_p) == ("m", 7, 0.9)
    monkeypatch.setenv("REWARDFLEET_MODEL_PATH", "from the environment")
    monkeypatch.setenv("REWARDFLEET_GPU_IDS", "3")
    monkeypatch.setenv("REWARDFLEET_PROFILE", "rlinf-rlaif")
    settings = VideoSettings()
    assert settings.judge_settings("qwen2_5_vl_vllm").model_path == "from the environment"
    assert settings.selected_gpus == ["3"]
    monkeypatch.delenv("REWARDFLEET_MODEL_PATH")
    monkeypatch.delenv("REWARDFLEET_GPU_IDS")
    assert VideoSettings(openai_url="http://a", openai_model="m").backends == ["openai"]


def test_the_profile_selects_gpus_where_there_are_some(monkeypatch: pytest.MonkeyPatch):
    for count, visible, expected in (
        (8, None, "0,1"), (8, "4,5,6", "4,5"), (0, None, "0,1"), (None, None, "0,1"), (0, "", ""),
    ):  # fmt: skip
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        monkeypatch.setattr(settings_module, "gpu_count", lambda count=count: count)
        select_gpus(VideoSettings(**PROFILE))
        assert settings_module.os.environ["CUDA_VISIBLE_DEVICES"] == expected
    monkeypatch.setattr(settings_module, "gpu_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ValueError, match="--gpu-ids 0,1: CUDA finds 1 of these GPUs"):
        select_gpus(VideoSettings(**PROFILE))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    select_gpus(VideoSettings(**PROFILE, backend=["reference"]))
    assert "CUDA_VISIBLE_DEVICES" not in settings_module.os.environ


def test_the_profile_is_printed_and_says_whose_prompts_it_has(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    file = write_server(tmp_path)
    with caplog.at_level(logging.INFO):
        for given in ({}, {"set": [f"prompts={file}"]}, {"gpu_ids": "7", "abstention": 0}):
            settings = VideoSettings(**PROFILE, **given)
            announce(create_app(settings, {"fake": FakeJudge()}), settings, "http://a")
    lines = [each for each in caplog.messages if each.startswith("--profile rlinf-rlaif: backend=")]
    model = f"qwen2_5_vl_vllm.model_path={QWEN}"
    assert [each.partition(";")[0] for each in lines] == [
        f"--profile rlinf-rlaif: backend=qwen2_5_vl_vllm gpu_ids={ids} {model}"
        for ids in ("0,1", "0,1", "7")
    ]
    assert sum("libero_reward_server.py" in each for each in caplog.messages) == 2
    assert sum("--abstention 0" in each for each in caplog.messages) == 2


def test_an_unknown_profile_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "video", "--profile", "x"]) != 0
    assert "--profile x: input should be 'rlinf-rlaif'" in capsys.readouterr().err


def test_the_profile_selects_frames_as_the_client_of_the_original():
    selections = [
        list(floor_indices(length, count)) for count in (8, 16, 32) for length in range(1, 513)
    ]
    digest = hashlib.sha256(json.dumps(selections).encode()).hexdigest()
    assert digest == RECORDED["selections"]["sha256"]


@pytest.mark.parametrize(("given", "frame"), [({}, 9), (PROFILE, 8)])
def test_all_kinds_of_clips_are_selected_from_by_the_profile(
    serve: Serve, make_video: MakeVideo, frames_request: dict, given: dict, frame: int
):
    client, clip = serve(**given), make_video(131)
    task = {"task_text": "t", "nframes": 16}
    images = frames_request["frames_base64"] * 131
    for answer in (
        client.post("/score", json={**task, "video_path": str(clip)}),
        client.post("/score", json={**task, "frames_base64": images}),
        client.post("/score", data=task, files={"video": clip.read_bytes()}),
    ):
        provenance = answer.json()["provenance"]
        assert provenance["frames"]["indices"][1] == frame
        assert ("frame_selection" in provenance) == bool(given)
        if given:
            assert provenance["frames"]["indices"] == RECORDED["selections"]["131 of 16"]


# Prompts and answers


def write_server(folder: Path, user: str = "Task: {task_instruction}\\nHow far?") -> Path:
    """Write a file with own texts in the form of the original server."""
    (file := folder / "libero_reward_server.py").write_text(
        "import vllm_that_is_not_installed\n"
        'DEFAULT_QWEN_PROMPT_TEMPLATE = """Task:\n{task_instruction}\n\nHow far?\n"""\n'
        'PRIMO_R1_SYSTEM_PROMPT = ("Think {first}. " "Then answer.")\n'
        f'PRIMO_R1_USER_PROMPT = ("{user}" "")\n'
        "raise SystemExit\n"
    )
    return file


def test_judges_ask_with_the_prompts_of_a_copy_of_the_original_server(tmp_path: Path):
    file = write_server(tmp_path)
    assert original_prompt(file).render("fold {it}") == "Task:\nfold {it}\n\nHow far?\n"
    system, user = authors_prompts(file)
    assert system.render("fold") == "Think {first}. Then answer."
    assert user.render("fold") == "Task: fold\nHow far?"
    checkpoint = SimpleNamespace(tokens=lambda _: (1,))
    for given, expected in (({"prompts": file}, "How far?\n"), ({}, PERCENTAGE.template)):
        spec = qwen.judge_spec("any", QwenVllmSettings(**given), checkpoint)
        for name in ("text", "constrained"):
            assert spec.readouts[name].prompt.template.endswith(expected)
        assert spec.readouts["probability"].prompt is YES_OR_NO
    primo = primo_r1.judge_spec(primo_r1.PrimoSettings(prompts=file))
    assert primo.readouts["text"].prompt.name == "primo_user_original"
    assert primo.system is not None and primo.system.name == "primo_system_original"


@pytest.mark.parametrize(("user", "reason"), table("unusable_prompts"))
def test_prompts_that_cannot_be_used_are_refused(tmp_path: Path, user: str, reason: str):
    with pytest.raises(ValueError, match="libero_reward_server.py") as error:
        authors_prompts(write_server(tmp_path, user))
    assert reason in str(error.value)
    (tmp_path / "other.py").write_text("A = 1")
    with pytest.raises(ValueError, match="DEFAULT_QWEN_PROMPT_TEMPLATE"):
        original_prompt(tmp_path / "other.py")


def test_answers_that_the_prompts_ask_for_have_the_scores_of_the_original():
    for text, score in RECORDED["scores"]:
        ours = parse_score(text, mode="percentage").score
        if score == 0 and "0" not in text:  # the original's score of no number
            assert ours is None, text
        else:
            assert ours is not None and math.isclose(ours, score), text


def test_the_route_answers_a_model_s_text_as_the_original(make_video: MakeVideo, tmp_path: Path):
    """Where the original has 0.0 for a text without a number, `--abstention 0` has it as well."""
    endpoint = Endpoint()
    endpoint.answers = [text for text, _ in RECORDED["scores"]]
    body = original_request(make_video(8))
    with serving(endpoint.app) as url:
        settings = VideoSettings(
            **PROFILE, openai_url=f"{url}/v1", openai_model="m", abstention=0, video_root=[tmp_path]
        )
        with client_of(create_app(settings, load_judges(settings))) as client:
            for number, (text, score) in enumerate(RECORDED["scores"]):
                answer = client.post("/rlinf/score", json={**body, "task_text": str(number)})
                assert answer.json()["score"] == pytest.approx(score), text
