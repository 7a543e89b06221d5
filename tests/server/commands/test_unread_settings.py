"""Settings that no loaded judge or sandbox reads stop the command."""

import re
import sys
from pathlib import Path

import pytest

from rewardfleet.commands.main import main
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.up.settings import plan, read_config
from rewardfleet_server.video.judges.loading import find_judge
from rewardfleet_server.video.judges.settings import built_in
from rewardfleet_server.video.judges.vlm import families
from rewardfleet_server.video.settings import VideoSettings

URL = "http://127.0.0.1:9/v1"
VLLM = "qwen2_5_vl_vllm"
#: Flags, what is loaded, and one of its readers.
UNREAD = [
    ("video --set readout=probability", "reference", "openai"),
    ("video --temperature 0", "reference", VLLM),
    ("video --prompt-template {task}", "reference", "transformers"),
    ("video --openai-model m", "reference", "openai"),
    ("video --set media=video --backend reference", "reference", "openai"),
    ("video --primo-top-p 0.9 --model-path m", VLLM, "PRIMO-R1"),
    ("video --gpu-ids 0", "reference", "robometer"),
    ("video --set engine=vllm --model-path m", VLLM, "topreward"),
    ("video --set device=cpu --backend sole-r1", "sole-r1", "sole-r1 with engine=transformers"),
    ("video --set data_parallel_size=2 --backend transformers", "transformers", VLLM),
    ("video --backend PRIMO-R1 --set readout=text", "PRIMO-R1", "openai"),
    ("video --backend primo_r1_vllm --temperature 1", "PRIMO-R1", "transformers"),
    (
        f"video --openai-url {URL} --openai-model m --set readout=probability --max-tokens 9",
        "openai",
        "openai with readout=text",
    ),
    ("video --set enforce_eager=false", "reference", VLLM),
    ("video --primo-top-p 0.9 --judge openai --judge transformers", "openai and transformers", "P"),
    ("video --set PRIMO-R1.top_p=0.9 --model-path m", VLLM, "PRIMO-R1"),
    (
        "video --judge roboreward --set engine=transformers --tensor-parallel-size 2",
        "roboreward",
        "roboreward with engine=vllm",
    ),
    (
        "video --backend reference --custom-backend-factory m:f",
        "reference",
        "a judge of your own, which --backend names",
    ),
    (f"video --openai-url {URL} --openai-model m --set library=/tmp", "openai", "reference"),
    ("code --fusion-url http://127.0.0.1:9 --packages numpy", "fusion", "jail"),
    ("code --fusion-url http://127.0.0.1:9 --isolation auto", "fusion", "jail"),
]


@pytest.mark.parametrize(("flags", "loaded", "reader"), UNREAD)
def test_a_setting_that_nothing_reads_stops_the_command(flags, loaded, reader, capsys):
    assert main(["serve", *flags.split()]) == 2
    found = re.search(r"is not read by ([^,]*), but by: ([^;\n]*)", capsys.readouterr().err)
    assert found is not None
    assert found[1] == loaded
    assert reader in found[2]


def test_environment_variables_and_files_are_checked_as_well(monkeypatch, capsys, tmp_path: Path):
    config = tmp_path / "fleet.toml"
    config.write_text("[video]\ntemperature = 0.5\n")
    with pytest.raises(ValueError, match=r"\[video\] --temperature 0\.5 .* read by reference, but"):
        plan(read_config(config, {}))
    monkeypatch.setenv("REWARDFLEET_PRELOAD", "numpy")
    assert main(["serve", "code", "--fusion-url", "http://127.0.0.1:9"]) == 2
    assert "--preload numpy (or REWARDFLEET_PRELOAD)" in capsys.readouterr().err
    monkeypatch.setenv("REWARDFLEET_SET", "media=video,readout=text")
    assert main(["serve", "video"]) == 2
    assert "--set media=video is not read by reference, but by: openai" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "judges"),
    [
        ({}, ["reference"]),
        ({"model_path": "m"}, [VLLM]),
        ({"openai_url": URL}, ["openai"]),
        ({"custom_backend_factory": "m:f", "model_path": "m", "top_p": 0.5}, ["custom"]),
        ({"custom_backend_factory": "m:f", "backend": ["mine"], "primo_top_p": 0.5}, ["mine"]),
        ({"openai_url": URL, "model_path": "m", "backend": ["openai", VLLM]}, ["openai", VLLM]),
        ({"backend": ["PRIMO-R1"], "model_path": "m"}, ["PRIMO-R1"]),
    ],
)
def test_flags_select_their_judge(given, judges):
    assert VideoSettings(**given).backends == judges


def test_the_url_of_a_sandbox_selects_it():
    assert CodeSettings(fusion_url="http://127.0.0.1:9").sandbox == "fusion"
    assert CodeSettings().sandbox == "jail"


def test_flags_variables_and_files_set_the_same(monkeypatch, tmp_path: Path):
    """Of several ways, `--set` comes before a flag, and a flag before the file."""
    file = tmp_path / "judges.toml"
    file.write_text('[primo_r1_vllm]\ntop_p = 0.5\n"temperature" = 0.5\nmax_tokens = 5\n')
    given = {
        "backend": ["PRIMO-R1", "openai"],
        "judge_config": file,
        "primo_temperature": 0.25,
        "primo_max_tokens": 6,
        "temperature": 1.0,
        "set": ["PRIMO-R1.max_tokens=7", "openai.url=http://h/v1"],
    }
    settings = VideoSettings(**given)
    primo, openai = (settings.judge_settings(name) for name in settings.backends)
    assert (primo.top_p, primo.temperature, primo.max_tokens) == (0.5, 0.25, 7)
    assert (openai.temperature, str(openai.url)) == (1.0, "http://h/v1")
    monkeypatch.setenv("REWARDFLEET_SET", "top_p=0.5,user_prompt=Is {task} done, or not?")
    primo = VideoSettings(backend=["primo_r1_vllm"]).judge_settings("PRIMO-R1")
    assert (primo.top_p, primo.user_prompt) == (0.5, "Is {task} done, or not?")
    monkeypatch.setenv("REWARDFLEET_SET", "")
    assert VideoSettings().set == []


def test_a_fleet_sets_the_same(tmp_path: Path):
    config = tmp_path / "fleet.toml"
    config.write_text(
        '[video]\nbackend = ["sole-r1"]\nset = ["device=cpu", "engine=transformers"]\n'
    )
    (video,) = plan(read_config(config, {"only": ["video"]}))
    assert video.settings.judge_settings("sole-r1").device == "cpu"
    flags = " ".join(video.flags)
    assert "--backend sole-r1 --set device=cpu --set engine=transformers" in flags


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("top_p = 0.5", "top_p is in no table"),
        ("[PRIMO-R1]\ntop_p = 2", r"\[PRIMO-R1\] top_p = 2: input should be less than"),
        ("[PRIMO-R1]\ntop_q = 1", r"top_q = 1: PRIMO-R1 has no such setting; did you mean top_p\?"),
        ("[openai]\nmodel = 'm'", "model = m is not read by PRIMO-R1, but by: openai"),
        ("[absent]\nmodel = 'm'", "model = m: no judge absent is loaded, but PRIMO-R1"),
        ("[", "--judge-config .*judges.toml: "),
    ],
)
def test_a_file_of_judges_is_checked(tmp_path: Path, content: str, reason: str):
    file = tmp_path / "judges.toml"
    file.write_text(content)
    with pytest.raises(ValueError, match=reason):
        VideoSettings(backend=["PRIMO-R1"], judge_config=file)


def test_a_flag_for_all_judges_that_have_values_of_their_own_is_refused():
    own = {"backend": ["PRIMO-R1"], "set": ["model_path=a"]}
    with pytest.raises(ValueError, match=r"--model-path b .*: PRIMO-R1 has model_path from --set"):
        VideoSettings(**own, model_path="b")
    both = VideoSettings(backend=["PRIMO-R1", VLLM], set=["PRIMO-R1.model_path=a"], model_path="b")
    assert [both.judge_settings(name).model_path for name in both.backends] == ["a", "b"]


def test_an_empty_variable_sets_nothing(monkeypatch: pytest.MonkeyPatch):
    for name in ("MODEL_PATH", "OPENAI_MODEL", "PRIMO_USER_PROMPT"):
        monkeypatch.setenv(f"REWARDFLEET_{name}", "")
    assert VideoSettings().backends == ["reference"]
    given = VideoSettings(backend=["roboreward"]).judge_settings("roboreward")
    assert given.model_path == "teetone/RoboReward-8B"


FAMILY = """
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.judges.settings import BuiltInJudge, own
from rewardfleet_server.video.judges.vlm.settings import VllmSettings

class NewSettings(VllmSettings):
    tiles: int = own(12, "Tiles per frame.")

JUDGE = BuiltInJudge("New-VL", NewSettings, lambda own, service: FakeJudge(own.tiles / 100), "New.")
"""


def test_a_family_of_models_is_one_module(tmp_path: Path, monkeypatch):
    """Its name, settings, GPUs and engine are found in it."""
    (tmp_path / "new_vl.py").write_text(FAMILY)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    monkeypatch.setitem(sys.modules, f"{families.__name__}.new_vl", None)  # removed afterwards
    del sys.modules[f"{families.__name__}.new_vl"]
    built_in.cache_clear()
    try:
        given = {"backend": ["New-VL"], "model_path": "m", "max_model_len": 9, "gpu_ids": "0"}
        settings = VideoSettings(set=["tiles=50", "tensor_parallel_size=3"], **given)
        own = settings.judge_settings("New-VL")
        assert (own.model_path, own.max_model_len, own.gpus, own.runs_on) == ("m", 9, 3, "vllm")
        judge = find_judge("New-VL", settings)
        assert isinstance(judge, FakeJudge) and judge.provenance["score"] == 0.5
        with pytest.raises(ValueError, match="is not read by New-VL, but by: openai"):
            VideoSettings(set=["readout=text"], **given)
        with pytest.raises(ValueError, match="is not read by reference, but by: New-VL"):
            VideoSettings(set=["tiles=50"])
    finally:
        built_in.cache_clear()
