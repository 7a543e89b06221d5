"""The command as a whole: how it starts, ends by Ctrl-C, and what a shell completes."""

import json
import signal
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from rewardfleet import __version__
from rewardfleet.commands.main import command, main
from rewardfleet_server.testing import FakeJudge

from ...conftest import LONG_CLIP
from ...gateways import fleet_of
from ...running import output_of

#: How the command is started.
STARTS = {
    "script": ["-c", "import sys; from rewardfleet_command import main; sys.exit(main())"],
    "client": ["-m", "rewardfleet"],
    "server": ["-m", "rewardfleet_server"],
}


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_the_command_has_several_names(start: list[str]):
    for flag in ("-V", "--version"):
        assert output_of(sys.executable, *start, flag) == f"rewardfleet {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["status"], ["score"], ["serve", "code"]], ids=" ".join)
def test_h_is_help(arguments: list[str], capsys):
    assert main([*arguments, "-h"]) == 0
    shown = capsys.readouterr().out
    assert "-h, --help" in shown
    assert main([*arguments, "--help"]) == 0
    assert capsys.readouterr().out == shown


#: A library whose import does not end.
SLOW = "import sys\nprint('importing', flush=True)\nsys.stdin.read()\n"


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize(
    ("library", "arguments"),
    [("httpx", ["status"]), ("click", ["-h"]), ("uvicorn", ["serve", "tools"])],
)
def test_ctrl_c_during_an_import_prints_no_traceback(
    start: list[str], library: str, arguments: list[str], tmp_path, monkeypatch
):
    (tmp_path / f"{library}.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    with subprocess.Popen(
        [sys.executable, *start, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(60), process.stderr.read()) == (130, b"")


def completions(line: str) -> list[tuple[str, str]]:
    *words, incomplete = line.split(" ")[1:]
    shell = ShellComplete(command, {}, "rewardfleet", "_REWARDFLEET_COMPLETE")
    return [(each.value, each.type) for each in shell.get_completions(words, incomplete)]


def test_a_shell_completes_commands_flags_and_paths():
    assert completions("rewardfleet sta") == [("status", "plain")]
    assert completions("rewardfleet sco") == [("score", "plain")]
    assert completions("rewardfleet serve code --iso") == [("--isolation", "plain")]
    assert completions("rewardfleet serve video --api-key-file ke") == [("ke", "file")]


def test_a_clip_is_scored_by_a_service_and_by_a_fleet(serve, capsys, monkeypatch):
    service = str(serve(FakeJudge(0.25)).base_url)
    with fleet_of(video=service) as fleet:
        for url in (service, fleet, f"{fleet}/", f"{fleet}/video"):
            arguments = ["score", "video", str(LONG_CLIP), "a task", "--url", url]
            assert main(arguments) == 0
            assert json.loads(capsys.readouterr().out)["score"] == 0.25
