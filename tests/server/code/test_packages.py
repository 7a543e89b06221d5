"""Packages of the jail: built once, for the user of the jails."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardfleet_server.code.running import packages
from rewardfleet_server.code.running.packages import environment_of, jail_python
from rewardfleet_server.code.sandboxes.jail.isolation import find_python, jail_user
from rewardfleet_server.code.settings import CodeSettings, environments_folders
from rewardfleet_server.flags import read_settings
from rewardfleet_server.testing import wait_until

from ...conftest import table
from .conftest import LEVELS, served_code, stdio

pytestmark = pytest.mark.slow

COMMAND = str(Path(sys.executable).with_name("rewardfleet"))
BUILD = [COMMAND, "packages", "build", "--packages", "rf-sample"]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use an empty cache folder that nobody can read. Jails have a /tmp of their own."""
    folder = Path(tempfile.mkdtemp(prefix="rewardfleet-test-", dir="/var/tmp"))
    folder.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    yield folder
    # A process that was killed may write until it has ended.
    wait_until(lambda: shutil.rmtree(folder, ignore_errors=True) or not folder.exists())


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip and uv find the package `rf-sample` in versions 1.0 and 2.0, and no other."""
    for version in ("1.0", "2.0"):
        name = f"rf_sample-{version}"
        with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("rf_sample.py", f"VERSION = {version!r}\n")
            metadata = f"Metadata-Version: 2.1\nName: rf-sample\nVersion: {version}\n"
            wheel.writestr(f"{name}.dist-info/METADATA", metadata)
            tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            wheel.writestr(f"{name}.dist-info/WHEEL", tags)
            files = ("rf_sample.py", *(f"{name}.dist-info/{n}" for n in ("METADATA", "WHEEL")))
            record = "".join(f"{file},,\n" for file in (*files, f"{name}.dist-info/RECORD"))
            wheel.writestr(f"{name}.dist-info/RECORD", record)
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")  # it has no variable for the other
    return tmp_path


def settings_with(*requirements: str, **settings: object) -> CodeSettings:
    return read_settings(CodeSettings, {"packages": requirements, **settings})


def built(folder: Path) -> list[str]:
    """Return the environments in a cache folder, complete or not."""
    found = (folder / "rewardfleet" / "jails").iterdir()
    return sorted(path.name for path in found if path.suffix != ".lock")


# Requirements


def test_requirements_have_a_normal_form_also_from_the_environment(monkeypatch):
    given = ("Numpy >= 1.26, <3,scipy", "A_b")
    assert settings_with(*given).packages == ["a-b", "numpy<3,>=1.26", "scipy"]
    monkeypatch.setenv("REWARDFLEET_PACKAGES", "scipy,numpy>=1,<3")
    assert read_settings(CodeSettings, {}).packages == ["numpy<3,>=1", "scipy"]


@pytest.mark.parametrize("requirement", table("invalid_requirements"))
def test_what_is_not_a_name_with_versions_is_refused(requirement):
    with pytest.raises(ValueError, match="^--packages .*: give names of packages"):
        settings_with(requirement)


# Builds


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_an_environment_is_built_once_and_can_be_used_by_the_user_of_the_jails(
    cache, wheels, monkeypatch, tool
):
    settings = settings_with("rf-sample<2")
    umask = os.umask(0o077)
    try:
        with monkeypatch.context() as patch:
            if tool == "uv":
                patch.setattr(packages.importlib.util, "find_spec", lambda name: None)  # no pip
            environment_of(settings).build()
    finally:
        os.umask(umask)
    monkeypatch.setattr(packages, "_run", None)  # nothing is installed again
    for level in LEVELS:
        with served_code(level, packages=["rf-sample<2"]) as service:
            program = "import rf_sample\nprint(rf_sample.VERSION)"
            assert service.verdict(program, stdio(("", "1.0\n"))) == "accepted"
    assert len(built(cache)) == 1
    module = next((environments_folders()[0] / built(cache)[0]).rglob("rf_sample.py"))
    assert module.with_name("__pycache__").is_dir(), "compiled, as jails cannot write"


#: Modules by what they do when they are imported, and whether jails may do that for programs.
IMPORTED = {
    "rf_prints": "print('from', __name__)",
    "rf_fails": "raise ImportError",
    "rf_threads": "import threading, time\nthreading.Thread(target=time.sleep, args=[0.1]).start()",
    "rf_large": "data = bytearray(b'x') * (200 << 20)",
    "rf_plain": "",
}


@pytest.mark.parametrize("level", LEVELS)
def test_jails_import_what_many_programs_do_unless_that_changes_something(cache, wheels, level):
    with zipfile.ZipFile(wheels / "rf_sample-2.0-py3-none-any.whl", "a") as wheel:
        for name, source in IMPORTED.items():
            wheel.writestr(f"{name}/__init__.py", f"import os\nPID = os.getpid()\n{source}\n")
    with served_code(level, packages=["rf-sample"], workers=1) as service:
        for name in IMPORTED:
            program = f"import os\nimport {name}\nprint({name}.PID == os.getpid())"
            scores = [service.score(program, stdio(("", ""))) for _ in range(5)]
            shown = [score["verdicts"][0]["stdout"] for score in scores]
            before = {"rf_prints": f"from {name}\n", "rf_fails": None}.get(name, "")
            usual = "" if before is None else f"{before}True\n"
            assert shown == [usual] * 2 + ["False\n" if name == "rf_plain" else usual] * 3
        both = "import rf_plain\nimport rf_threads\nprint('rf_plain' in sys.modules)"
        assert service.verdict(f"import sys\n{both}", stdio(("", "True"))) == "accepted"
        alone = "import sys\nprint('rf_plain' in sys.modules)"
        assert service.verdict(alone, stdio(("", "False"))) == "accepted"
    with served_code(level, packages=["rf-sample"], preload=["rf_sample"]) as service:
        shown = {service.score(program, stdio(("", "True")))["score"] for _ in range(5)}
        assert shown == {1.0}, "off with --preload"


def new_venv(folder: Path) -> Path:
    """Make an environment without packages; return its interpreter."""
    command = [find_python(None).path, "-m", "venv", "--without-pip", folder]
    subprocess.run(command, check=True)
    return folder / "bin" / "python"


def test_thousands_of_packages_are_part_of_the_provenance_of_verdicts(cache):
    """A jail names them to the service, in messages of limited size."""
    python, digests = new_venv(cache / "environment"), []
    (folder,) = cache.glob("environment/lib/python*/site-packages")
    packages = [folder / f"a_package_{number}-1.0.dist-info" for number in range(5000)]
    for each in packages:
        each.mkdir()
    for _ in range(2):
        with served_code("landlock", python=python) as service:
            score = service.score("print(1)", stdio(("", "1")))
        assert score["score"] == 1
        digests.append(score["provenance"]["packages"])
        packages[-1].rename(folder / "a_package_4999-1.1.dist-info")
        packages.append(folder / "a_package_4999-1.1.dist-info")
    assert digests[0] != digests[1]


def test_two_builds_at_once_wait_for_each_other(cache, wheels):
    processes = [subprocess.Popen(BUILD, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = [(process.communicate()[0], process.returncode) for process in processes]
    assert outputs[0] == outputs[1]
    assert outputs[0][1] == 0
    assert len(built(cache)) == 1


def test_a_killed_build_leaves_nothing_that_is_used(cache, wheels, monkeypatch):
    """What the killed build started ends with it, and the next build begins again."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        slow = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": index, "PIP_RETRIES": "0", "NO_PROXY": "*"}
        killed = subprocess.Popen(BUILD, env={**os.environ, **slow})
        connection, _ = silent.accept()
        with connection:  # pip waits for an answer
            killed.kill()
            killed.wait()
            assert not environment_of(settings_with("rf-sample")).is_built
            (partial,) = built(cache)
            assert subprocess.check_output(BUILD).endswith(b": rf-sample\n")
    assert built(cache) == [partial.removesuffix(".partial")]


def test_a_package_that_cannot_be_installed_ends_the_start_in_one_line(cache, wheels):
    flags = ["--port", "0", "--packages", "rf-sample,rf-absent", "--set", "log_level=warning"]
    done = subprocess.run([COMMAND, "serve", "code", *flags], stderr=subprocess.PIPE, check=False)
    reason = b"rewardfleet: --packages: No matching distribution found for rf-absent\n"
    assert (done.returncode, done.stderr) == (2, reason)
    assert built(cache) == []


def test_a_cache_folder_that_cannot_be_used_is_refused_before_a_download(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "_installer", None)
    tmp_path.chmod(0o700 if jail_user() else 0o500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"^--packages: .*XDG_CACHE_HOME"):
        jail_python(settings_with("rf-sample"))


def test_an_interpreter_of_a_virtual_environment_cannot_be_combined_with_packages(cache):
    settings = settings_with("rf-sample", python=new_venv(cache / "mine"))
    with pytest.raises(ValueError, match="--packages: --python .* is one of a virtual environment"):
        jail_python(settings)


# Defaults


def test_the_default_packages_are_used_if_they_are_installed_and_missed_in_one_line(
    cache, wheels, monkeypatch, caplog
):
    caplog.set_level("WARNING")
    monkeypatch.setattr(packages, "DEFAULT_PACKAGES", ("rf-sample",))
    settings = CodeSettings()
    python = jail_python(settings)
    packages.warn_without_packages(settings, python)
    (line,) = caplog.messages
    assert line == "programs cannot import rf-sample; to install them: rewardfleet packages build"
    caplog.clear()

    environment = environment_of(settings)
    environment.build()
    used = jail_python(settings)
    packages.warn_without_packages(settings, used)
    assert used.prefixes == (str(environment.folder), *python.prefixes)
    assert not caplog.messages

    (environment.folder / "bin" / "python").unlink()
    find_python.cache_clear()
    assert jail_python(settings) == python, "as without it"
    (line,) = caplog.messages
    assert str(environment.folder.parent) in line


def test_what_root_built_is_used_by_the_services_of_all_users(cache, monkeypatch):
    """E.g. of an image, whose service has another user. It need not be able to write there."""
    folders = (cache / "own", cache / "system")
    monkeypatch.setattr(packages, "environments_folders", lambda: folders)
    settings = settings_with("rf-sample")
    environment = environment_of(settings)
    assert environment.folder.parent == folders[0]
    theirs = new_venv(folders[1] / environment.folder.name).parent.parent
    monkeypatch.setattr(packages, "_make_folders", None)
    assert jail_python(settings).prefixes[0] == str(theirs)


def test_without_packages_an_interpreter_is_used_as_it_is(cache, monkeypatch):
    monkeypatch.setattr(packages, "environment_of", None)
    path = Path(find_python(None).path)
    assert jail_python(CodeSettings(python=path)).path == str(path)


def test_doctor_installs_nothing(cache, wheels):
    environment = {**os.environ, "REWARDFLEET_PACKAGES": "rf-sample<2"}
    done = subprocess.run([COMMAND, "doctor"], env=environment, stdout=subprocess.PIPE, check=False)
    assert (
        b"note    code: --packages rf-sample<2: installed when the service starts\n"
        b"        fix: rewardfleet packages build --packages 'rf-sample<2'\n"
    ) in done.stdout
    assert not (cache / "rewardfleet").exists()


def test_the_message_says_how_to_add_a_module_to_the_sandbox_in_use():
    given = CodeSettings(packages=["scipy"])
    own = CodeSettings(python=Path(sys.executable))
    assert packages.how_to_add(given, "x") == "rewardfleet serve code --packages scipy,x"
    assert packages.how_to_add(given, "PIL").endswith(" scipy,pillow")
    assert "environment of --python" in packages.how_to_add(own, "x")
    assert "SandboxFusion server" in packages.how_to_add(CodeSettings(fusion_url="http://h"), "x")
