"""The rules of the house: who imports whom, and that what is written about it is so."""

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rewardfleet
from rewardfleet.endpoint import ERROR_OF_STATUS
from rewardfleet.wire.errors import ERRORS, RETRYABLE, STATUS, ErrorKind
from rewardfleet_server.cli import SERVICES
from rewardfleet_server.code.app import create_app as create_code_app
from rewardfleet_server.code.sandboxes import SANDBOXES
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.episode.app import create_app as create_episode_app
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.testing import FakeSandbox, serving
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.judges import JUDGES
from rewardfleet_server.video.settings import VideoSettings

HOUSE = Path(__file__).parent.parent
CLIENT = HOUSE / "clients" / "rewardfleet"
SERVER = HOUSE / "services" / "rewardfleet_server"
README = (HOUSE / "README.md").read_text()

#: A slice is a folder of the server.
SLICES = sorted(path.name for path in SERVER.iterdir() if (path / "__init__.py").exists())

#: The only file in which what was received is run: it runs in a jail, and nowhere else.
WARDEN = SERVER / "code" / "sandboxes" / "jail" / "warden.py"

#: The only files of the server that use the client: a command and a demo are its users.
CLIENT_USERS = {"cli.py", "video/demo.py"}


#: What adapters may import beside, once a function of theirs is called: the trainer's side has it.
TRAINERS = {"torch", "verl"}
#: What a file of the client may import beside the rest, inside of the functions that need it.
LAZY = {
    CLIENT / "adapters" / "ctrl.py": TRAINERS,
    CLIENT / "adapters" / "verl.py": TRAINERS,
    CLIENT / "adapters" / "simplevla.py": TRAINERS,
    CLIENT / "episodes" / "similar.py": {"dtaidistance"},
}


def imports(path: Path, package: Path) -> Iterator[str]:
    """The absolute names of the modules that a file imports."""
    here = [package.name, *path.relative_to(package).with_suffix("").parts][:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts]


@pytest.mark.parametrize("path", files(CLIENT), ids=lambda path: str(path.relative_to(CLIENT)))
def test_the_client_imports_httpx_numpy_and_pydantic_alone(path: Path):
    """And never the server; the wire imports pydantic alone, and nobody of the house."""
    room = path.relative_to(CLIENT).parts[0]
    in_wire = room == "wire"
    allowed = {"pydantic"} if in_wire else {"pydantic", "httpx", "numpy"}
    allowed |= TRAINERS if room == "adapters" else set()
    for name in imports(path, CLIENT):
        top = name.partition(".")[0]
        if top == "rewardfleet":
            assert not in_wire or name.startswith("rewardfleet.wire"), name
        else:
            assert top in allowed | LAZY.get(path, set()) | set(sys.stdlib_module_names), name


@pytest.mark.parametrize("path", LAZY, ids=lambda path: path.name)
def test_what_may_be_missing_is_imported_where_it_is_used(path: Path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in [alias.name for alias in node.names] + [getattr(node, "module", "")]:
                assert name.partition(".")[0] not in LAZY[path], name


@pytest.mark.parametrize("path", files(SERVER), ids=lambda path: str(path.relative_to(SERVER)))
def test_the_server_keeps_to_its_rooms(path: Path):
    place = path.relative_to(SERVER)
    own_slice = place.parts[0] if place.parts[0] in SLICES else None
    for name in imports(path, SERVER):
        parts = name.split(".")
        if parts[0] == "rewardfleet" and str(place) not in CLIENT_USERS:
            # The arithmetic of episodes is one for the service, the adapters and a notebook.
            shared = {"wire", "episodes"} if own_slice == "episode" else {"wire"}
            assert name in {"rewardfleet", "rewardfleet.__version__"} or parts[1] in shared, name
        if parts[0] == "rewardfleet_server" and len(parts) > 1 and parts[1] in SLICES:
            ships_the_fakes = str(place) == "testing.py"
            assert parts[1] == own_slice or ships_the_fakes, f"{place} imports {name}"


def test_the_environment_is_read_in_settings_alone():
    """In the command too, for where the service is and its caller's key; never in the client."""
    readers = {
        str(path.relative_to(package))
        for package in (SERVER, CLIENT)
        for path in files(package)
        if re.search(r"os\.(environ\b(?!\.(setdefault|clear\())|getenv)", path.read_text())
    }
    assert readers <= {"cli.py", "settings.py", "code/settings.py", "video/settings.py"}


def test_clients_and_services_are_folders_not_packages():
    assert not (HOUSE / "clients" / "__init__.py").exists()
    assert not (HOUSE / "services" / "__init__.py").exists()
    for path in [*files(CLIENT), *files(SERVER), *files(HOUSE / "tests")]:
        assert not re.search(r"(from|import) (clients|services)\b", path.read_text()), path


def test_nothing_that_is_received_can_run():
    """No pickle, no eval, no shell; but for programs, in the jail."""
    for path in {*files(CLIENT), *files(SERVER)} - {WARDEN}:
        for name in imports(path, CLIENT if CLIENT in path.parents else SERVER):
            assert name.partition(".")[0] not in {"pickle", "marshal", "shelve", "yaml"}, path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile"}, path
            if isinstance(node, ast.keyword) and node.arg == "shell":
                raise AssertionError(path)


def test_the_warden_is_imported_by_nobody_and_imports_the_standard_library_alone():
    """Its source is handed to the jail as it is."""
    for name in imports(WARDEN, SERVER):
        assert name.partition(".")[0] in sys.stdlib_module_names, name
    for path in {*files(CLIENT), *files(SERVER)} - {WARDEN}:
        for name in imports(path, CLIENT if CLIENT in path.parents else SERVER):
            assert not name.endswith("warden"), path


def test_importing_the_client_loads_nothing_of_the_server_or_of_a_trainer():
    program = """
import importlib, sys
import rewardfleet, rewardfleet.blocking
for name in sys.argv[1:]:
    importlib.import_module(f"rewardfleet.adapters.{name}")
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""
    adapters = [path.stem for path in files(CLIENT / "adapters")]
    done = subprocess.run(
        [sys.executable, "-c", program, *adapters], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"httpx", "numpy", "pydantic"} <= loaded
    assert not loaded & {
        "rewardfleet_server",
        "fastapi",
        "uvicorn",
        "cv2",
        "PIL",
        "vllm",
        *TRAINERS,
    }


def test_importing_a_service_loads_no_model_library():
    program = """
import sys
import rewardfleet_server.video.app, rewardfleet_server.video.main
import rewardfleet_server.code.app, rewardfleet_server.code.main
import rewardfleet_server.episode.app, rewardfleet_server.episode.main
import rewardfleet.adapters.verl, rewardfleet.adapters.simplevla
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.split()) & {"torch", "vllm", "transformers", "scipy", "dtaidistance"}


def test_all_names_everything_public_in_order():
    public = {
        name
        for name, value in vars(rewardfleet).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("rewardfleet")
    }
    assert set(rewardfleet.__all__) == public | {"ClipLike"}
    assert rewardfleet.__all__ == sorted(rewardfleet.__all__)
    assert set(ERRORS.values()) <= {getattr(rewardfleet, name) for name in rewardfleet.__all__}


def test_the_tables_of_errors_are_equal():
    """Each kind has one status and one class, and each status leads back to that class."""
    assert set(STATUS) == set(ERRORS) == set(ErrorKind)
    assert len(set(STATUS.values())) == len(STATUS)
    assert {status: ERRORS[kind] for kind, status in STATUS.items()} == ERROR_OF_STATUS
    assert set(ErrorKind) >= RETRYABLE
    for kind, error in ERRORS.items():
        problem = error("why", retry_after=3, request_id="r").problem()
        again = ERRORS[problem.kind].of(problem)
        assert type(again) is error
        assert (again.kind, again.status) == (kind, STATUS[kind])
        assert (again.detail, again.retry_after, again.request_id) == ("why", 3, "r")


def test_every_lazy_name_leads_somewhere():
    for target in [*SERVICES.values(), *JUDGES.values(), *SANDBOXES.values()]:
        module, _, attribute = target.partition(":")
        path = HOUSE / "services" / Path(*module.split(".")).with_suffix(".py")
        assert f"def {attribute}(" in path.read_text()


# What is written


def test_every_error_setting_metric_and_endpoint_is_documented():
    for kind, status in STATUS.items():
        assert f"| `{kind}` | {status} |" in README
    settings = (VideoSettings, CodeSettings, EpisodeSettings)
    for name, field in {n: f for each in settings for n, f in each.model_fields.items()}.items():
        flag = f"--{name.replace('_', '-')}"
        assert re.search(rf"^\| `{flag}` \|", README, re.MULTILINE), flag
        assert field.description
    source = (SERVER / "telemetry.py").read_text()
    for metric in re.findall(r'"(rewardfleet_\w+)"', source):
        assert metric in README, metric
    video = create_app(VideoSettings(_cli_parse_args=False, references=None))
    code = create_code_app(CodeSettings(_cli_parse_args=False), FakeSandbox())
    episode = create_episode_app(EpisodeSettings(_cli_parse_args=False))
    apps = (video, code, episode)
    for path in [path for app in apps for path in app.openapi()["paths"]]:
        assert f" {path}" in README, path


def test_every_file_of_the_house_is_in_the_readmes_list():
    for path in [*files(CLIENT), *files(SERVER)]:
        if path.name not in {"__init__.py", "__main__.py"}:
            assert path.name in README, path.name


def test_the_make_targets_that_are_named_exist():
    makefile = (HOUSE / "Makefile").read_text()
    for document in ("README.md", "CONTRIBUTING.md", ".ci/run"):
        for target in re.findall(r"(?m)(?:^|`)make (\w+)", (HOUSE / document).read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_lock_names_no_registry():
    lock = (HOUSE / "requirements.lock").read_text()
    assert "://" not in lock
    assert "--hash=sha256:" in lock


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def at_the_services() -> Iterator[Callable[[str], str]]:
    settings = VideoSettings(
        _cli_parse_args=False, video_root=[HOUSE / "tests" / "data" / "libero"]
    )
    with (
        serving(create_app(settings)) as video,
        serving(create_code_app(CodeSettings(_cli_parse_args=False))) as code,
        serving(create_episode_app(EpisodeSettings(_cli_parse_args=False))) as episode,
    ):
        yield (
            lambda text: (
                text.replace("http://127.0.0.1:18080", video)
                .replace("http://127.0.0.1:18081", code)
                .replace("http://127.0.0.1:18082", episode)
            )
        )


@pytest.mark.slow
@pytest.mark.parametrize("program", blocks("python"), ids=lambda program: program[:30])
def test_the_readmes_programs_run(
    program: str, at_the_services: Callable[[str], str], tmp_path: Path
):
    program = at_the_services(program)
    if "await " in program and "asyncio.run" not in program:
        program = f"import asyncio\nasync def main():\n{textwrap.indent(program, '    ')}\n"
        program += "asyncio.run(main())\n"
    given = "import numpy as np\nframes = np.zeros((20, 64, 64, 3), np.uint8)\n"
    given += "from tests.adapters.standin import *\n"  # what a trainer has
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", given + program],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=HOUSE,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "commands", [block for block in blocks("sh") if block.startswith("curl")], ids=lambda x: x[:60]
)
def test_the_readmes_curl_lines_are_answered(commands: str, at_the_services: Callable[[str], str]):
    strict = 'set -e; curl() { command curl --fail-with-body --silent --show-error "$@"; }\n'
    done = subprocess.run(
        ["bash", "-c", strict + at_the_services(commands)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=HOUSE,
        env={**os.environ, "no_proxy": "*"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
