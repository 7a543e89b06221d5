"""Settings that no loaded judge or sandbox reads stop the command."""

import re
from pathlib import Path

import pytest

from rewardfleet.commands.main import main
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.up.settings import plan, read_config
from rewardfleet_server.video.judges import JUDGES
from rewardfleet_server.video.settings import BUILT_IN, VideoSettings

URL = "http://127.0.0.1:9/v1"
VLLM = "qwen2_5_vl_vllm"
#: Flags, what is loaded, and one of its readers.
UNREAD = [
    ("video --readout probability", "reference", "openai"),
    ("video --temperature 0", "reference", VLLM),
    ("video --prompt-template {task}", "reference", "transformers"),
    ("video --openai-model m", "reference", "openai"),
    ("video --openai-media video --backend reference", "reference", "openai"),
    ("video --primo-top-p 0.9 --model-path m", VLLM, "PRIMO-R1"),
    ("video --gpu-ids 0", "reference", "robometer"),
    ("video --engine vllm --model-path m", VLLM, "topreward"),
    ("video --device cpu --backend sole-r1", "sole-r1", "sole-r1 with --engine transformers"),
    ("video --data-parallel-size 2 --backend transformers", "transformers", VLLM),
    ("video --backend PRIMO-R1 --readout text", "PRIMO-R1", "openai"),
    ("video --backend primo_r1_vllm --temperature 1", "PRIMO-R1", "transformers"),
    (
        "video --backend PRIMO-R1 --primo-model-path a --model-path b",
        "PRIMO-R1",
        "PRIMO-R1 without --primo-model-path",
    ),
    (
        f"video --openai-url {URL} --openai-model m --readout probability --max-tokens 9",
        "openai",
        "openai with --readout text",
    ),
    ("video --no-enforce-eager", "reference", VLLM),
    (
        "video --backend reference --custom-backend-factory m:f",
        "reference",
        "a judge of your own, which --backend names",
    ),
    (f"video --openai-url {URL} --openai-model m --references /tmp", "openai", "reference"),
    ("code --fusion-concurrency 2", "jail", "fusion"),
    ("code --fusion-url http://127.0.0.1:9 --packages numpy", "fusion", "jail"),
    ("code --sandbox fusion --fusion-url http://127.0.0.1:9 --isolation auto", "fusion", "jail"),
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
    monkeypatch.setenv("REWARDFLEET_FUSION_CONCURRENCY", "3")
    assert main(["serve", "code"]) == 2
    assert "--fusion-concurrency 3 (or REWARDFLEET_FUSION_CONCURRENCY)" in capsys.readouterr().err


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


def test_the_names_of_the_judges_are_those_that_exist():
    assert set(JUDGES) == BUILT_IN
