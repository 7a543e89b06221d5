"""The `rewardfleet` command: its help, its errors, its settings."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rewardfleet_server.cli import main
from rewardfleet_server.flags import read_settings, unknown_variable_warnings
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import LONG_CLIP

SETTINGS = {name: entry.load_settings() for name, entry in SERVICES.items()}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("REWARDFLEET_")}
    return subprocess.run(
        [sys.executable, "-m", "rewardfleet_server", *arguments],
        env={**own, **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "video", "--host", "0.0.0.0"], "--allow-unauthenticated"),
        (["serve", "video", "--host", "example.com"], "--api-key-file"),
        (["serve", "video", "--max-queue-depth", "-3"], "--max-queue-depth -3: "),
        (["serve", "video", "--port", "70000"], "--port 70000: "),
        (["serve", "video", "--port", "abc"], "--port abc: give a whole number"),
        (["serve", "video", "--deadline-s", "soon"], "--deadline-s soon: give a number"),
        (["serve", "video", "--readout", "x"], "--readout x: input should be 'text'"),
        (["serve", "video", "--gpu-ids", "x"], "--gpu-ids x: "),
        (["serve", "video", "--backend", "oracle"], "known: PRIMO-R1, openai"),
        (["serve", "video", "--model-path", "/models/qwen"], "no such folder"),
        (["serve", "video", "--api-key-file", "/none"], "--api-key-file /none: no such file"),
        (["serve", "video", "--video-root", "data/x"], "--video-root data/x: no such directory"),
        (["serve", "video", "--references", "/none"], "--references /none: no such directory"),
        (["serve", "video", "--cache-file", "/none/cache"], "--cache-file /none/cache: "),
        (["serve", "video", "--cache-url", "ftp://x"], "--cache-url"),
        (["serve", "code", "--python", "/none"], "--python /none: no such file"),
        (["serve", "episode", "--run-state-file", "/none/x"], "run-state file x"),
        (["score", "video", "/none.mp4", "task"], "/none.mp4: No such file"),
        (
            ["score", "video", str(LONG_CLIP), "t", "--url", "http://127.0.0.1:1", "--timeout=1"],
            "reached",
        ),
        (["score", "video", str(LONG_CLIP), "task", "--url", "nonsense"], "give a URL"),
        (["references", "add", "x", "/none.mp4", "task", "--success"], "/none.mp4"),
        (["references", "add", "x", "/none.mp4", "task"], "--success"),
        (["score", "video"], "CLIP"),
    ],
    ids=lambda value: " ".join(value[1:])[:50] if isinstance(value, list) else None,
)
def test_an_error_names_the_flag_and_its_value_in_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("rewardfleet_server.serve.configure_logging", lambda _: None)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1 and error.startswith("rewardfleet: ")


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["serve", "video", "--prot", "3"], "--port"),
        (["serve", "code", "--max-wal-s", "3"], "--max-wall-s"),
        (["score", "video", "a", "b", "--nfrmes", "3"], "--nframes"),
        (["serve", "vido"], "video"),
        (["serv"], "serve"),
        (["docter"], "doctor"),
    ],
)
def test_a_typo_suggests_what_was_meant_in_two_lines(arguments, suggestion, capsys):
    assert main(arguments) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "no such" in first
    assert second == f"did you mean {suggestion}?"


def test_what_resembles_nothing_gets_no_suggestion(capsys):
    assert main(["serve", "video", "--xyzzy"]) == 2
    assert capsys.readouterr().err == "rewardfleet: no such option: --xyzzy\n"


def test_a_variable_error_names_the_variable(monkeypatch):
    monkeypatch.setenv("REWARDFLEET_PORT", "abc")
    with pytest.raises(ValueError, match=r"^REWARDFLEET_PORT abc: give a whole number$"):
        read_settings(VideoSettings, {})


def test_every_setting_comes_from_the_environment_too_and_a_flag_wins(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.setenv("REWARDFLEET_VIDEO_ROOT", f"{tmp_path}/a:{tmp_path}/b")
    monkeypatch.setenv("REWARDFLEET_MAX_QUEUE_DEPTH", "7")
    monkeypatch.setenv("REWARDFLEET_OPEN_METRICS", "true")
    settings = read_settings(VideoSettings, {})
    assert settings.video_root == [tmp_path / "a", tmp_path / "b"]
    assert (settings.max_queue_depth, settings.open_metrics) == (7, True)
    roots = (f"{tmp_path}/b", f"{tmp_path}/a")
    flags = {"video_root": roots, "max_queue_depth": "9", "open_metrics": False}
    settings = read_settings(VideoSettings, flags)
    assert settings.video_root == [tmp_path / "b", tmp_path / "a"]
    assert (settings.max_queue_depth, settings.open_metrics) == (9, False)


def test_an_unknown_variable_causes_a_warning(monkeypatch):
    monkeypatch.setenv("REWARDFLEET_XYZZY", "7")
    monkeypatch.setenv("REWARDFLEET_MAX_QUEUE_DETH", "7")
    monkeypatch.setenv("REWARDFLEET_API_KEY", "known")
    monkeypatch.setenv("REWARDFLEET_ISOLATION", "of another service, known")
    warnings = unknown_variable_warnings(SETTINGS.values())
    assert warnings == [
        (
            "the environment variable REWARDFLEET_MAX_QUEUE_DETH is not a setting; "
            "did you mean REWARDFLEET_MAX_QUEUE_DEPTH?"
        ),
        "the environment variable REWARDFLEET_XYZZY is not a setting",
    ]


@pytest.mark.parametrize("service", SERVICES)
def test_help_lists_the_ten_most_used_flags_first_then_every_other_once(service, capsys):
    assert main(["serve", service, "--help"]) == 0
    text = capsys.readouterr().out
    assert SERVICES[service].description.split()[0] in text
    settings = SETTINGS[service]
    flags = re.findall(r"(?m)^  (--[\w-]+)", text)
    expected = [f"--{name.replace('_', '-')}" for name in settings.model_fields]
    assert sorted(flags) == sorted([*expected, "--help"])
    assert flags[:10] == [f"--{name.replace('_', '-')}" for name in settings.most_used]
    for artifact in (
        "default factory",
        "list[",
        "PydanticUndefined",
        "<class",
        "PosixPath",
        "None",
    ):
        assert artifact not in text


def test_help_of_the_command_has_one_sentence_per_service(capsys):
    assert main(["serve", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for entry in SERVICES.values():
        assert entry.description in text


def test_without_its_extra_the_server_says_how_to_install_it():
    """In an interpreter that cannot import FastAPI."""
    program = """
import sys
sys.modules["fastapi"] = sys.modules["uvicorn"] = None
from rewardfleet_server.cli import main
sys.exit(main(["serve", "video"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert f"{sys.executable} -m pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_judge_without_its_extra_says_how_to_install_it(tmp_path: Path):
    pytest.importorskip("fastapi")
    done = run("serve", "video", "--backend", "transformers", "--port", "0")
    if done.returncode == 2:  # otherwise transformers is installed here
        assert "-m pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_occupied_port_is_reported_before_anything_is_loaded(tmp_path: Path):
    (tmp_path / "slow_judge.py").write_text("raise SystemExit('the judge was loaded')")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(
            *("serve", "video", "--port", port, "--backend", "mine"),
            *("--custom-backend-factory", "slow_judge:build"),
            PYTHONPATH=str(tmp_path),
        )
    assert done.returncode == 2
    assert f"--port {port}: 127.0.0.1 cannot be bound: Address already in use" in done.stderr
    assert "the judge was loaded" not in done.stderr


@pytest.mark.slow
def test_doctor_reports_what_works_and_how_to_fix_the_rest():
    done = run("doctor", REWARDFLEET_PROT="1")
    lines = done.stdout.splitlines()
    assert done.returncode == 1, "an unknown variable is a failure"
    assert any(line.startswith("ok      code: isolation bubblewrap") for line in lines)
    assert any(line.startswith("ok      code: packages in the jail") for line in lines)
    assert any("REWARDFLEET_PROT" in line for line in lines)
    for number, line in enumerate(lines):
        assert line.startswith(("ok", "missing", "failed", "        fix: ")), line
        if line.startswith("failed"):
            assert lines[number + 1].startswith("        fix: ")
