"""`rewardfleet judges`: what is printed about each judge is true, and works."""

import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import get_args

import click
import pytest

from rewardfleet.commands.main import main
from rewardfleet_server.commands import judges as command
from rewardfleet_server.commands.serve import command as serve_group
from rewardfleet_server.flags import read_settings
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.video.judges.loading import find_judge
from rewardfleet_server.video.judges.settings import ENGINES, BuiltInJudge, all_built_in, built_in
from rewardfleet_server.video.judges.vlm.families import primo_r1, roboreward, sole_r1
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import table

JUDGES = all_built_in()


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine is installed, on whatever machine the tests run."""
    for modules in ENGINES.values():
        for module in modules:
            monkeypatch.setitem(sys.modules, module, None)


def install(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENGINES[engine]:
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["judges", *arguments]) == 0
    return capsys.readouterr().out


def words(text: str) -> str:
    return " ".join(text.split())


def without_spaces(text: str) -> str:
    return "".join(text.split())


def example(text: str) -> VideoSettings:
    """Return the settings that a shown example gives, as the command reads them."""
    shown = text.partition("Example:\n")[2].partition("\n\n")[0]
    program, serve, service, *arguments = words(shown).split()
    assert (program, serve, service) == ("rewardfleet", "serve", "video")
    found = serve_group.get_command(click.Context(serve_group), service)
    assert found is not None
    with found.make_context(service, arguments) as parsed:
        given = {name: value for name, value in parsed.params.items() if value not in (None, ())}
    settings = read_settings(SERVICES["video"].settings.load(), given)
    assert isinstance(settings, VideoSettings)
    return settings


def test_the_list_has_what_each_judge_needs(capsys):
    text = words(output(capsys))
    for judge in JUDGES:
        assert f"{judge.name} {judge.summary}" in text
        if judge.has_model:
            model = judge.settings.model_fields["model_path"].default
            assert (model or "a checkpoint (--model-path)") in text
    assert text.count("Can be loaded here.") == 2  # reference and openai
    assert text.count("Cannot be loaded here: ") == len(JUDGES) - 2


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("name", [None, *(judge.name for judge in JUDGES)])
def test_the_output_fits_the_terminal(name, width, capsys, monkeypatch):
    """Except for commands, which are on one line, to be copied."""
    monkeypatch.setenv("COLUMNS", str(width))
    lines = output(capsys, *([name] if name else [])).splitlines()
    assert max(len(line) for line in lines if "rewardfleet serve" not in line) <= width
    assert len(lines) <= 60 or width < 100


@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.name)
def test_a_judge_is_shown_with_all_options_and_an_example_that_loads_it(judge, capsys):
    text = output(capsys, judge.name)
    options = re.findall(r"(?m)^  (\w+)  ", text.partition("Options")[2].partition("Readouts")[0])
    assert [*judge.settings.model_fields] == options
    for option in command.options_of(judge):
        shown = f"{option.text} [{option.value}; default: {option.default}]"
        assert without_spaces(shown) in without_spaces(text)
    settings = example(text)
    assert settings.backends == [judge.name]
    settings.judge_settings(judge.name)
    if judge.name == "openai":
        find_judge(judge.name, settings)


def readouts(judge: BuiltInJudge) -> list[str]:
    """Return the readouts that a judge has."""
    if (setting := judge.settings.model_fields.get("readout")) is not None:
        return [*get_args(setting.annotation)]
    specs = {
        "PRIMO-R1": lambda: primo_r1.judge_spec(primo_r1.PrimoSettings()),
        "roboreward": lambda: roboreward.judge_spec(roboreward.RoboRewardSettings()),
        "sole-r1": lambda: sole_r1.judge_spec(sole_r1.SoleSettings()),
    }
    return [*specs[judge.name]().readouts]


@pytest.mark.parametrize(
    "name",
    ["PRIMO-R1", "openai", "qwen2_5_vl_vllm", "roboreward", "sole-r1", "transformers"],
)
def test_the_readouts_of_a_judge_are_shown_with_the_default_first(name, capsys):
    judge = built_in(name)
    assert judge is not None
    shown = output(capsys, name).partition("Readouts")[2].partition("Example")[0]
    assert re.findall(r"(?m)^  (\w+)  ", shown) == readouts(judge)


def test_an_engine_that_is_installed_is_the_one_of_the_example(capsys, monkeypatch):
    install("transformers", monkeypatch)
    text = output(capsys, "roboreward")
    assert "Can be loaded here by transformers;" in text
    own = example(text).judge_settings("roboreward")
    assert own.runs_on == "transformers"
    install("vllm", monkeypatch)
    monkeypatch.setattr(command, "gpu_count", lambda: 0)
    assert "Cannot be loaded here: no GPU found" in words(output(capsys, "qwen2_5_vl_vllm"))
    monkeypatch.setattr(command, "gpu_count", lambda: 1)
    text = output(capsys, "roboreward")
    assert "Can be loaded here by vllm;" in text
    assert example(text).judge_settings("roboreward").runs_on == "vllm"


@pytest.mark.parametrize(("name", "near"), table("judge_typos"))
def test_an_unknown_judge_suggests_the_nearest(name, near, capsys):
    assert main(["judges", name]) == 2
    error = capsys.readouterr().err
    assert f"no such judge: {name}; known: PRIMO-R1, openai, " in error
    assert error.endswith(f"did you mean {near}?\n")


def test_a_name_that_is_near_to_none_lists_the_known_ones(capsys):
    assert main(["judges", "xyzzy"]) == 2
    error = capsys.readouterr().err
    assert "did you mean" not in error and "robometer" in error


def test_another_name_of_a_judge_shows_it(capsys):
    assert output(capsys, "primo_r1_vllm") == output(capsys, "PRIMO-R1")
