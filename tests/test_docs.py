"""What is written is true: links, commands, code blocks, tables, and the list of files."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rewardfleet_server.code.app import create_app as create_code_app
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.episode.app import create_app as create_episode_app
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.testing import serving
from rewardfleet_server.video.app import create_app as create_video_app
from rewardfleet_server.video.settings import VideoSettings

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=str)

_BLOCK = re.compile(r"(?:<!-- ([^\n]*?) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")

#: What a page's Python may use without defining it.
_GIVEN = "import numpy as np\nframes = np.zeros((20, 64, 64, 3), np.uint8)\n"
#: In addition, where the page is about a trainer.
_TRAINER = "from tests.adapters.standin import *\n"


@dataclass(frozen=True)
class Block:
    """A code block of a page, and the comment in front of it."""

    page: Path
    note: str
    language: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text[:40]}"


def blocks(language: str) -> list[Block]:
    found = []
    for page in PAGES:
        for match in _BLOCK.finditer(page.read_text()):
            block = Block(page, match[1] or "", match[2], match[3])
            if block.language == language:
                found.append(block)
    return found


def runnable(language: str) -> list[Block]:
    return [block for block in blocks(language) if not block.note.startswith("not run")]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"(?m)^#+ (.+)$", text)
    return {
        re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for match in _LINK.finditer(text):
        target = match[1] or match[2]
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


def test_generated_files_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"run `make docs`: {done.stdout}{done.stderr}"


def test_the_readme_is_short_and_names_every_page():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    linked = {match[1] for match in _LINK.finditer(readme) if match[1]}
    for page in PAGES:
        place = str(page.relative_to(ROOT))
        if place != "README.md" and not place.startswith("docs/benchmarks/"):
            assert place in linked, place


def test_the_architecture_lists_every_file_and_no_other():
    page = (ROOT / "docs" / "architecture.md").read_text()
    listing = "\n".join(re.findall(r"```text\n(.*?)```", page, re.DOTALL))
    listed = set(re.findall(r"[\w-]+\.pyi?\b", listing))
    packages = (ROOT / "clients" / "rewardfleet", ROOT / "services" / "rewardfleet_server")
    files = {
        path.name
        for package in packages
        for path in [*package.rglob("*.py"), *package.rglob("*.pyi")]
        if path.name not in {"__init__.py", "__main__.py"}
    }
    assert files - listed == set(), "not listed"
    assert listed - files == set(), "listed, but does not exist"


def test_make_targets_that_are_named_exist():
    makefile = (ROOT / "Makefile").read_text()
    for page in [*PAGES, ROOT / ".ci" / "run"]:
        for target in re.findall(r"(?m)(?:^|`)make ([\w-]+)", page.read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (page, target)


def test_flags_that_are_named_exist():
    """Of our own commands; lines of other programs are in blocks that are not ours."""
    known = {
        f"--{name.replace('_', '-')}"
        for entry in SERVICES.values()
        for name in entry.load_settings().model_fields
    }
    known |= {"--success", "--failure", "--help", "--version", "--url", "--nframes"}
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        for flag in re.findall(r"`(--[a-z][\w-]+)", page.read_text()):
            assert flag in known, (page, flag)


def test_the_lock_names_no_registry():
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert "--hash=sha256:" in lock


# Code blocks


@pytest.fixture(scope="module")
def at_services() -> Iterator[Callable[[str], str]]:
    """Replace the default addresses by those of running services."""
    settings = VideoSettings(video_root=[ROOT / "tests" / "data" / "libero"])
    with (
        serving(create_video_app(settings)) as video,
        serving(create_code_app(CodeSettings(cache_file=None))) as code,
        serving(create_episode_app(EpisodeSettings())) as episode,
    ):
        urls = {"18080": video, "18081": code, "18082": episode}

        def replace(text: str) -> str:
            for port, url in urls.items():
                text = text.replace(f"http://127.0.0.1:{port}", url)
            return text

        yield replace


@pytest.mark.slow
@pytest.mark.parametrize("block", runnable("python"), ids=lambda block: block.id)
def test_python_blocks_run(block: Block, at_services: Callable[[str], str]):
    program = at_services(block.text)
    if "await " in program and "asyncio.run" not in program:
        program = f"import asyncio\nasync def main():\n{textwrap.indent(program, '    ')}\n"
        program += "asyncio.run(main())\n"
    given = _GIVEN + (_TRAINER if block.note == "fixtures: trainer" else "")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", given + program],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.id)
def test_python_blocks_compile_and_import_what_exists(block: Block):
    """Also those that need a trainer."""
    program = block.text
    if "await " in program:
        program = f"async def main():\n{textwrap.indent(program, '    ')}\n"
    compile(program, str(block.page), "exec")
    for line in re.findall(r"(?m)^(from rewardfleet\S* import (?:\([^)]*\)|.*))$", block.text):
        exec(line, {})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "block",
    [block for block in runnable("sh") if block.text.startswith("curl")],
    ids=lambda block: block.id,
)
def test_curl_lines_are_answered(block: Block, at_services: Callable[[str], str]):
    strict = 'set -e; curl() { command curl --fail-with-body --silent --show-error "$@"; }\n'
    done = subprocess.run(
        ["bash", "-c", strict + at_services(block.text)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "no_proxy": "*"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    [block for block in blocks("sh") if "rewardfleet " in block.text],
    ids=lambda block: block.id,
)
def test_command_lines_are_accepted(block: Block):
    """Every flag of every command in the pages exists, and every value is of its form."""
    text = block.text.replace("\\\n", " ")
    for line in re.findall(r"(?m)^(?:\.venv/bin/)?rewardfleet (serve \w+[^#\n]*)", text):
        words = [word for word in line.split() if word]
        flags = [word for word in words if word.startswith("--")]
        done = subprocess.run(
            [sys.executable, "-m", "rewardfleet_server", *words[:2], "--help"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        for flag in flags:
            assert re.search(rf"(?m)^  {flag}\b", done.stdout), (line, flag)
