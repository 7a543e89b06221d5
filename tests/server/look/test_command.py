"""The command `rewardfleet look` with the URLs of running services."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rewardfleet import blocking, tools_request
from rewardfleet.commands.main import main
from rewardfleet_server.testing import serving, wait_until
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings

from ...gateways import fleet_of


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "log-keys"
    path.write_text("# of the log\nopen sesame\n")
    return path


@pytest.fixture
def fleet(tmp_path: Path, key_file: Path) -> Iterator[str]:
    """A gateway of a service that shows its score log."""
    settings = ToolsSettings(
        score_log=tmp_path / "log", score_log_sample=1, score_log_key_file=key_file
    )
    with serving(create_app(settings)) as url, fleet_of(tools=url) as fleet:
        yield fleet


def test_the_scores_of_a_running_fleet_are_shown(fleet: str, key_file: Path, tmp_path: Path):
    command = [sys.executable, "-m", "rewardfleet", "look", fleet, "--port", "0"]
    command += ["--score-log-key-file", str(key_file), "--labels", str(tmp_path / "labels")]
    environment = {"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            page = process.stdout.readline().split()[0]
            for uid in ("first", "second"):
                with blocking.RewardFleet(fleet) as client:
                    client.tools.score_batch(
                        [tools_request("a", "<response>a</response>", uid=uid)]
                    )
                wait_until(lambda uid=uid: uid in httpx.get(page, trust_env=False).text, 60)
            shown = httpx.get(page, trust_env=False).text
            assert "2 scores" in shown and f'<option value="{fleet}">' in shown
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert not [*tmp_path.glob("rewardfleet-look-*")]


def test_what_to_do_is_said_if_there_is_nothing_to_show(
    fleet: str, key_file: Path, tmp_path: Path, capsys
):
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong\n")
    (tmp_path / "empty").write_text("# none\n")
    with serving(create_app(ToolsSettings())) as plain:
        for arguments, expected in (
            ([fleet], "give --score-log-key-file FILE"),
            ([fleet, "--score-log-key-file", str(wrong)], "does not accept the key"),
            ([fleet, "--score-log-key-file", str(tmp_path / "empty")], "no key in it"),
            ([plain, "--score-log-key-file", str(key_file)], "start it with --score-log FOLDER"),
            (["http://127.0.0.1:9", "--score-log-key-file", str(key_file)], "there is no service"),
            (["ftp://x", "--score-log-key-file", str(key_file)], "give a URL such as"),
            (["scores://none"], "give a URL such as"),
            ([fleet, "--score-log-key-file", str(tmp_path / "none")], "No such file"),
            (["none"], "no such folder"),
            ([str(tmp_path), "--video-root", "none"], "none: no such folder of clips"),
        ):
            assert main(["look", "--port", "0", *arguments]) == 2
            error = capsys.readouterr().err
            assert expected in error and "open sesame" not in error
