"""The `rewardfleet` command: its help, its errors, its settings."""

import inspect
import itertools
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from rewardfleet.commands.main import command as main_command
from rewardfleet.commands.main import main
from rewardfleet.wire.urls import redact
from rewardfleet_server.flags import read_settings
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.settings import unknown_variable_warnings
from rewardfleet_server.testing import FakeJudge, serving
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import LONG_CLIP, table
from ...running import own_environment

SETTINGS = {name: entry.settings.load() for name, entry in SERVICES.items()}


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, by default the command."""
    given = {"capture_output": True, "text": True, "env": {**own_environment(), **environment}}
    return subprocess.run([sys.executable, *command], timeout=150, check=False, **given)


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), table("command_errors"))
def test_an_error_names_the_flag_and_its_value_in_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.setenv("REWARDFLEET_PORT", "0")
    line, error = (
        text.replace("{python}", sys.executable).replace("{file}", __file__)
        for text in (arguments, f"rewardfleet: {message}\n")
    )
    assert main(shlex.split(line)) == 2
    assert capsys.readouterr().err == error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "message"), [("http://127.0.0.1:1", "no service video"), ("nonsense", "give a URL")]
)
def test_a_url_that_is_not_a_service_is_reported_in_one_line(url, message, capsys):
    assert main(["score", "video", str(LONG_CLIP), "task", "--url", url, "--timeout", "9"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1 and error.startswith("rewardfleet: ")


@pytest.mark.parametrize("arguments", [[], ["serve"], ["score"]], ids=" ".join)
def test_a_command_without_a_subcommand_prints_its_help(arguments, capsys):
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert main([*arguments, "--help"]) == 0
    assert shown == capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "suggestion"), table("typos"))
def test_a_typo_suggests_what_was_meant_in_two_lines(arguments, suggestion, capsys):
    assert main(arguments) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "no such" in first
    assert second == f"did you mean {suggestion}?"


def commands_of(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands_of(command)
        else:
            yield command


def test_commands_have_few_options_and_their_functions_few_arguments():
    """Hidden ones count as well; a setting of a service needs none, as `--set` gives it."""
    commands = list(commands_of(main_command))
    params = [param for command in commands for param in command.params]
    assert sum(isinstance(param, click.Option) for param in params) <= 225
    for command in commands:
        assert len(inspect.signature(inspect.unwrap(command.callback)).parameters) <= 6, command


def test_what_resembles_nothing_gets_no_suggestion(capsys):
    assert main(["serve", "video", "--xyzzy"]) == 2
    assert capsys.readouterr().err == "rewardfleet: no such option: --xyzzy\n"


@pytest.mark.parametrize(("variable", "value", "message"), table("invalid_variables"))
def test_the_error_about_a_variable_names_the_variable(variable, value, message, monkeypatch):
    monkeypatch.setenv(f"REWARDFLEET_{variable}", value)
    with pytest.raises(ValueError, match=f"^{message}$"):
        read_settings(VideoSettings, {})


@pytest.mark.parametrize("user", ["", "user", "john.doe"])
@pytest.mark.parametrize(
    "password", ["X", "12/X", "80/X", "X#X", "12?X", "X@X", "1.2/X", "[::1]/X"]
)
def test_a_url_in_a_message_has_no_password(user: str, password: str):
    for host in ("host/0", "host:6379/0", "h.n/p@h", "h.n:80/p?X#X"):
        for scheme in ("redis", "http"):
            shown = redact(f"{scheme}://{user}:{password}@{host}")
            assert shown.startswith(f"{scheme}://***@") and "X" not in shown


def test_a_url_in_a_message_says_where_it_leads():
    assert redact("redis://host:6379/0?password=secret") == "redis://host:6379/0?***"
    assert redact("redis://host:6379/0") == "redis://host:6379/0"
    assert redact("https://videos.example/a@b.mp4#secret") == "https://videos.example/a@b.mp4?***"


def test_every_setting_comes_from_the_environment_too_and_a_flag_wins(tmp_path, monkeypatch):
    first, second = roots = [tmp_path / "a", tmp_path / "b"]
    for folder in roots:
        folder.mkdir()
    monkeypatch.setenv("REWARDFLEET_VIDEO_ROOT", f"{first}:{second}")
    monkeypatch.setenv("REWARDFLEET_MAX_QUEUE_DEPTH", "7")
    monkeypatch.setenv("REWARDFLEET_OPEN_METRICS", "true")
    flags = {"video_root": (second, first), "set": ["max_queue_depth=9", "open_metrics=false"]}
    for given, *expected in (({}, roots, 7, True), (flags, [second, first], 9, False)):
        found = read_settings(VideoSettings, given)
        assert [found.video_root, found.max_queue_depth, found.open_metrics] == expected


def test_an_unknown_variable_causes_a_warning(monkeypatch):
    monkeypatch.setenv("REWARDFLEET_XYZZY", "7")
    monkeypatch.setenv("REWARDFLEET_MAX_QUEUE_DETH", "7")
    monkeypatch.setenv("REWARDFLEET_API_KEY", "known")
    monkeypatch.setenv("REWARDFLEET_ISOLATION", "of another service, known")
    near, far = unknown_variable_warnings(SETTINGS.values())
    assert near == (
        "the environment variable REWARDFLEET_MAX_QUEUE_DETH is not a setting; "
        "did you mean REWARDFLEET_MAX_QUEUE_DEPTH?"
    )
    assert far == "the environment variable REWARDFLEET_XYZZY is not a setting"


@pytest.mark.parametrize("store", ["localhost:6379", "redis:6379/0"])
def test_an_address_of_redis_without_its_scheme_is_no_file(store):
    with pytest.raises(ValueError, match=f"--run-state {store}: give redis://{store} for a Redis"):
        read_settings(SETTINGS["tools"], {"run_state": store})
    assert read_settings(SETTINGS["tools"], {"run_state": f"./{store}"}).run_state == f"./{store}"


@pytest.mark.parametrize("service", SERVICES)
def test_the_help_of_a_service_lists_flags_and_other_settings_once_on_a_page(
    service, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["serve", service, "--help"]) == 0
    text = capsys.readouterr().out
    assert SERVICES[service].description.split()[0] in text
    assert text.count("\n") <= 62
    options, settings = text.split("Settings, by --set NAME=VALUE:\n")
    flags = re.findall(r"(?m)^  (?:-h, )?--([\w-]+)", options)
    names = re.findall(r"(?m)^  (\w+)", settings)
    shown = [each.replace("-", "_") for each in flags] + names
    assert sorted(shown) == sorted({*SETTINGS[service].model_fields, "set", "help"})
    assert re.search(r"after SIGTERM\.\s+\[default: 30\]", text)
    artifacts = r"TEXT|default factory|list\[|PydanticUndefined|<class|PosixPath|None"
    assert not re.search(artifacts, text)


#: The command in an interpreter without the packages that its first argument lists.
WITHOUT_PACKAGES = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
missing = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Finder())
from rewardfleet.commands.main import main
sys.exit(main(sys.argv[2:]))
"""
#: The modules of the packages of the extra `server`.
SERVER_MODULES = (
    "PIL,aiohttp,cv2,dtaidistance,fastapi,httptools,msgspec,multipart,orjson,packaging,prometheus_client,"
    "pydantic_settings,pyseccomp,python_multipart,starlette,uvicorn,uvloop"
)


def run_without(modules: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("-c", WITHOUT_PACKAGES, modules, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "output"),
    [*table("client_only"), ("serve --help", 0, SERVICES["video"].description[:40])],
)
def test_with_the_client_only_each_command_works_or_says_what_to_install(arguments, status, output):
    done = run_without(SERVER_MODULES, *shlex.split(arguments))
    text = done.stdout + done.stderr
    assert (done.returncode, output in text, "Traceback" in text) == (status, True, False), text
    if "install the" in output:
        assert "pip install '.[server]'" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "service"), [("cv2", "video"), ("orjson", "episode"), ("pyseccomp", "code")]
)
def test_a_service_without_one_of_its_packages_says_how_to_install_it(module, service):
    done = run_without(module, "serve", service, "--port", "0")
    assert done.returncode == 2
    assert f"the package {module} is not installed" in done.stderr
    assert "pip install '.[server]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_judge_without_its_extra_says_how_to_install_it(tmp_path: Path):
    pytest.importorskip("fastapi")
    serve = ("-m", "rewardfleet_server", "serve", "video")
    done = run(*serve, "--backend", "transformers", "--port", "0")
    if done.returncode == 2:  # otherwise transformers is installed here
        assert "pip install '.[transformers]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_occupied_port_is_reported_before_anything_is_loaded(tmp_path: Path):
    (tmp_path / "slow_judge.py").write_text("raise SystemExit('the judge was loaded')")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        serve = ("-m", "rewardfleet_server", "serve", "video", "--port", port)
        judge = ("--backend", "mine", "--custom-backend-factory", "slow_judge:build")
        done = run(*serve, *judge, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert f"--port {port}: 127.0.0.1 cannot be bound: Address already in use" in done.stderr
    assert "the judge was loaded" not in done.stderr


@pytest.fixture
def doctor(capsys, monkeypatch) -> Callable[..., tuple[int, str]]:
    """Return the function that runs `rewardfleet doctor`: its status, and what it has printed."""

    def doctor(**environment: str) -> tuple[int, str]:
        with monkeypatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value)
            return main(["doctor"]), capsys.readouterr().out

    return doctor


@pytest.mark.slow
def test_doctor_reports_what_works_and_how_to_fix_the_rest(doctor):
    status, text = doctor(REWARDFLEET_PROT="1")
    lines = text.splitlines()
    assert status == 0, text
    assert "ok      video: decoding with OpenCV" in lines
    assert "ok      code: isolation bubblewrap" in lines
    assert any(line.startswith("ok      code: packages in the jail") for line in lines)
    note = "note    the environment variable REWARDFLEET_PROT is not a setting"
    assert lines[-2].startswith(note)
    assert lines[-1] == "        fix: unset REWARDFLEET_PROT"
    for line, following in itertools.pairwise(lines):
        assert re.match(r"(ok     |extra  |note   |failed |        fix:) ", line), line
        assert not (line.startswith("ok") and following.startswith("        fix: "))


@pytest.mark.slow
def test_doctor_applies_the_environment_and_names_an_occupied_port(doctor):
    app = create_app(VideoSettings(), {"fake": FakeJudge()})
    with serving(app) as url:
        port = url.rpartition(":")[2]
        status, text = doctor(
            REWARDFLEET_PORT=port,
            REWARDFLEET_CACHE="redis://user:secret@127.0.0.1:1/0",
            REWARDFLEET_RUN_STATE="redis://user:secret@127.0.0.1:1/1",
            REWARDFLEET_ISOLATION="landlock",
            REWARDFLEET_GPU_IDS="x",
        )
    assert status == 1
    assert "failed  video: REWARDFLEET_GPU_IDS x: give numbers, each once, like 0 or 0,1\n" in text
    for what in ("cache that replicas share: redis://***@127.0.0.1:1/0",
                 "run state that replicas share: redis://***@127.0.0.1:1/1"):  # fmt: skip
        assert f"failed  {what}: Connection refused\n" in text
    assert "secret" not in text
    assert "code: isolation landlock" in text and "code: isolation bubblewrap" not in text
    assert f"note    episode: --port {port}: 127.0.0.1 cannot be bound: Address" in text
    assert "        fix: rewardfleet serve episode --port 0; " in text


@pytest.mark.slow
def test_doctor_fails_where_packages_that_decode_frames_are_missing():
    packages = {"av": "PyAV", "cv2": "OpenCV", "PIL": "Pillow"}
    done = run_without(",".join(packages), "doctor")
    assert done.returncode == 1
    failures = re.findall(r"(?m)^failed  (.*)\n +fix: (.*)$", done.stdout)[: len(packages)]
    for (module, package), (line, fix) in zip(packages.items(), failures, strict=True):
        assert line == f"video: decoding with {package}: No module named '{module}'"
        assert fix == "pip install '.[server]'"
