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

from ...conftest import table

VLLM = "qwen2_5_vl_vllm"


@pytest.mark.parametrize(("flags", "loaded", "reader"), table("unread_settings"))
def test_a_setting_that_no_judge_has_stops_the_command(flags, loaded, reader, capsys):
    assert main(["serve", "video", *flags.split()]) == 2
    found = re.search(r"no such setting of ([^;]*); those with it: (.*)", capsys.readouterr().err)
    assert found is not None
    assert (found[1], reader in found[2]) == (loaded, True)


@pytest.mark.parametrize(("arguments", "reason"), table("settings_of_others"))
def test_a_setting_that_nothing_reads_stops_the_command(arguments, reason, capsys):
    assert main(["serve", *arguments.split()]) == 2
    assert reason in capsys.readouterr().err


def test_environment_variables_and_files_are_checked_as_well(monkeypatch, capsys, tmp_path: Path):
    config = tmp_path / "fleet.toml"
    config.write_text('[video]\nset = ["temperature=0.5"]\n')
    with pytest.raises(ValueError, match=r"\[video\] --set temperature=0\.5: no such setting"):
        plan(read_config(config, {}))
    monkeypatch.setenv("REWARDFLEET_PRELOAD", "numpy")
    assert main(["serve", "code", "--fusion-url", "http://127.0.0.1:9"]) == 2
    assert "remove preload" in capsys.readouterr().err
    monkeypatch.setenv("REWARDFLEET_SET", "media=video,readout=text")
    assert main(["serve", "video"]) == 2
    assert "--set media=video: no such setting of reference" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "judges"), table("flags_of_judges"))
def test_flags_select_their_judge(given, judges):
    assert VideoSettings(**given).backends == judges


def test_the_url_of_a_sandbox_selects_it():
    assert CodeSettings(fusion_url="http://127.0.0.1:9").sandbox == "fusion"
    assert CodeSettings().sandbox == "jail"


def test_flags_and_variables_set_the_same(monkeypatch):
    """Of several ways, `--set` comes before a flag, and the flag of a judge before one for all."""
    given = {
        "backend": ["PRIMO-R1", "openai", VLLM],
        "tensor_parallel_size": 2,
        "primo_tensor_parallel_size": 3,
        "model_path": "b",
        "openai_url": "http://other/v1",
        "set": ["primo_r1_vllm.model_path=a", "openai.url=http://h/v1"],
    }
    settings = VideoSettings(**given)
    primo, openai, qwen = (settings.judge_settings(name) for name in settings.backends)
    assert (primo.tensor_parallel_size, primo.model_path) == (3, "a")
    assert (qwen.tensor_parallel_size, qwen.model_path) == (2, "b")
    assert str(openai.url) == "http://h/v1"
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


def test_an_empty_variable_sets_nothing(monkeypatch: pytest.MonkeyPatch):
    for name in ("MODEL_PATH", "OPENAI_MODEL"):
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
        with pytest.raises(ValueError, match="no such setting of New-VL; those with it: openai"):
            VideoSettings(set=["readout=text"], **given)
        with pytest.raises(ValueError, match="no such setting of reference; those with it: New"):
            VideoSettings(set=["tiles=50"])
    finally:
        built_in.cache_clear()
