"""The documentation is true: links, commands, code blocks, tables, and the list of files."""

import ast
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import click
import pytest
from fastapi.openapi.models import OpenAPI

from rewardfleet import RewardFleet
from rewardfleet.commands import main as cli
from rewardfleet.wire.frames import FRAMES_TYPE
from rewardfleet.wire.video import FILE_REPLACES, VideoRequest
from rewardfleet_router.__main__ import main as router_command
from rewardfleet_server.flags import read_settings
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.http.routes import Service
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.settings import ENV_PREFIX, OTHER_VARIABLES, ServerSettings
from rewardfleet_server.testing import serving

from .gates import ALL, CI
from .gateways import fleet_of
from .running import output_of

ROOT = Path(__file__).parent.parent
LIBERO = ROOT / "tests" / "data" / "libero"
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("contrib/*/README.md")], key=str
)

_BLOCK = re.compile(r"(?:<!-- ([^\n]*?) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)
#: The comment in front of a block that needs what may not be installed.
_NEEDS = re.compile(r"needs: (.+)")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")

#: Files and folders of commands, and existing ones.
_EXISTING = {
    "/data/rollouts": str(LIBERO),
    "runs/router_grpo/baseline_router": str(LIBERO),
    "prompts.jsonl": os.devnull,
    "evaluation": str(LIBERO),
    "testlib_path=testlib/testlib.h": f"testlib_path={__file__}",
    "calibration.json": __file__,
    "prompts=vlm_reward/libero_reward_server.py": f"prompts={__file__}",
}

#: What a page's Python may use without defining it.
_CLIP = next((ROOT / "tests/data/libero/videos").glob("*_stove__success__*.mp4"))
_GIVEN = f"""import av
import numpy as np
with av.open({str(_CLIP)!r}) as video:
    frames = np.stack([each.to_ndarray(format="rgb24") for each in video.decode(video=0)][::8])
"""
#: In addition, on the pages about trainers. By its folder: a package of a trainer is named `tests`.
_TRAINER = "import sys\nsys.path.insert(0, 'tests/adapters')\nfrom standin import *\n"
#: In addition, where the block needs a package.
_WITH_PACKAGE = {"torch": "import torch\nlogits = torch.ones(4, 8)\n"}


@dataclass(frozen=True)
class Block:
    """A code block of a page, and what it needs: packages in front of Python, else any text."""

    page: Path
    needs: list[str]
    language: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text[:40]}"

    @property
    def is_for_trainers(self) -> bool:
        return self.page.parent.name == "trainers"


def blocks(language: str) -> list[Block]:
    return [block for block in ALL_BLOCKS if block.language == language]


def _blocks_of(page: Path) -> Iterator[Block]:
    for note, language, text in _BLOCK.findall(page.read_text()):
        needs = _NEEDS.fullmatch(note)
        assert needs or not note, f"{page}: {note!r} is not `needs: ...`"
        yield Block(page, needs[1].split(", ") if needs else [], language, text)


ALL_BLOCKS = [block for page in PAGES for block in _blocks_of(page)]


def command_lines(*programs: str) -> list[list[str]]:
    """Return the words of each line in a shell block that starts one of these programs."""
    lines = [
        shlex.split(line, comments=True)
        for block in blocks("sh")
        for line in block.text.replace("\\\n", " ").splitlines()
        if not block.text.startswith("curl")
    ]
    return [line for line in lines if line and Path(line[0]).name in programs]


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


def test_the_page_of_each_trainer_says_how_to_debug_and_what_it_costs_in_memory():
    pages = {page.stem for page in (ROOT / "docs" / "trainers").glob("*.md")} - {"failures"}
    for page in sorted(pages):
        headings = re.findall(r"(?m)^## (\w+)", (ROOT / "docs/trainers" / f"{page}.md").read_text())
        assert {"Debugging", "Memory"} <= set(headings), page


def test_the_gates_and_files_that_hold_a_guarantee_exist():
    page = (ROOT / "docs" / "testing.md").read_text()
    table = page.partition("## What holds each guarantee")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    gates = {each.target.partition(" ")[0] for each in [*CI, *ALL]}
    for guarantee, tests, held_by in rows:
        files, names = (re.findall(r"`([^`]+)`", cell) for cell in (tests, held_by))
        assert files and names, guarantee
        assert all((ROOT / file).is_file() for file in files), guarantee
        assert set(names) <= gates, guarantee
    assert gates <= set(re.findall(r"`([^`]+)`", table)), "a gate that the page does not mention"
    targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
    assert gates <= {*targets}


@pytest.mark.skipif(find_spec("ruff") is None, reason="needs ruff")
def test_generated_files_are_up_to_date():
    """If it fails, run `make docs`."""
    output_of(sys.executable, ROOT / "docs" / "generate.py", "--check", cwd=ROOT)


@pytest.fixture
async def services(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[dict[str, Service[Any, Any]]]:
    """Return the services that the reference pages describe, and close what they opened."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    services: dict[str, Service[Any, Any]] = import_module("reference_pages").services()
    async with AsyncExitStack() as stack:
        for service in services.values():
            await stack.enter_async_context(service.lifespan())
        yield services


def test_the_reference_pages_describe_every_service(services: dict[str, Service[Any, Any]]):
    assert services.keys() == SERVICES.keys()
    for name in SERVICES:
        for page in ("http.md#" + name, "settings.md#rewardfleet-serve-" + name):
            path, _, anchor = page.partition("#")
            assert anchor in anchors(ROOT / "docs" / "reference" / path)


@pytest.mark.parametrize("page", ["errors", "http", "metrics", "settings"])
def test_every_row_of_a_reference_table_has_a_description(page: str):
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text()
    rows = re.findall(r"(?m)^\| `.*\|$", text)
    assert rows
    assert [row for row in rows if re.search(r"\|\s+\|$", row)] == []


def test_openapi_documents_are_valid(services: dict[str, Service[Any, Any]]):
    for service in services.values():
        document = RewardApp(service, ServerSettings()).openapi()
        OpenAPI.model_validate(document)
        text = json.dumps(document)
        for name in re.findall(r'"#/([^"]+)"', text):  # references, also those of discriminators
            target = document
            for part in name.split("/"):
                assert part in target, name
                target = target[part]


def test_openapi_documents_the_form_with_a_video(services: dict[str, Service[Any, Any]]):
    paths = RewardApp(services["video"], ServerSettings()).openapi()["paths"]
    content = paths["/score"]["post"]["requestBody"]["content"]
    form = content["multipart/form-data"]["schema"]
    assert form["properties"]["video"]["format"] == "binary"
    assert set(form["required"]) == {"task_text", "video"}
    assert form["properties"].keys() - {"video"} == VideoRequest.model_fields.keys() - set(
        FILE_REPLACES
    )
    batch = paths["/score/batch"]["post"]["requestBody"]["content"]
    assert list(batch) == ["application/json", FRAMES_TYPE]


def test_the_readme_is_short_and_names_every_page():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    linked = {match[1] for match in _LINK.finditer(readme) if match[1]}
    for page in PAGES:
        place = str(page.relative_to(ROOT))
        if place != "README.md" and not place.startswith("docs/benchmarks/"):
            assert place in linked, place


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def drawn(title: str) -> str:
    section = ARCHITECTURE.partition(f"\n## {title}\n")[2]
    return section.partition("```text\n")[2].partition("```")[0]


def test_the_architecture_draws_every_folder_and_no_other():
    listed, parents = set(), [""]
    for indent, names in re.findall(r"(?m)^( *)((?:[\w/]+/ *)+)", drawn("Folders")):
        depth = len(indent) // 2
        for name in names.split():
            parents = [*parents[: depth + 1], f"{parents[depth]}{name}"]
            listed.add(parents[-1])
    packages = ("clients/rewardfleet", "services/rewardfleet_server")
    folders = {
        f"{path.parent.relative_to(ROOT)}/"
        for package in packages
        for path in (ROOT / package).rglob("*.py")
    }
    of_services = {f"services/rewardfleet_server/{name}/" for name in SERVICES}  # in registry.py
    assert {each for each in listed if each.startswith(packages)} | of_services == folders
    assert all((ROOT / each).is_dir() for each in listed)


def test_the_architecture_draws_functions_that_exist():
    package, seen = ROOT, 0
    for line in drawn("How a request is handled").splitlines():
        if line.endswith("/"):
            package = ROOT / line
        elif match := re.fullmatch(r" +(\S+\.py) +([\w.]+)  .*", line):
            body = ast.parse((package / match[1]).read_text()).body
            for name in match[2].split("."):
                (found,) = [each for each in body if getattr(each, "name", None) == name]
                body = found.body
            seen += 1
    assert seen >= 10


def test_make_targets_that_are_named_exist():
    makefile = (ROOT / "Makefile").read_text()
    for page in [*PAGES, ROOT / ".ci" / "run"]:
        for target in re.findall(r"(?m)(?:^|`)make ([\w-]+)", page.read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (page, target)


def commands_of(group: click.Group) -> Iterator[click.Command]:
    """The commands below a group, except the services, whose flags are their settings."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group) and name != "serve":
            yield from commands_of(command)
        elif command is not None:
            yield command


def test_flags_and_variables_that_are_named_exist():
    settings = {name for entry in SERVICES.values() for name in entry.settings.load().model_fields}
    flags = {f"--{name.replace('_', '-')}" for name in settings}
    groups = (cli.command, router_command)
    own = [param for group in groups for each in commands_of(group) for param in each.params]
    flags |= {flag for param in own for flag in param.opts}
    flags |= {"--judge", "--success", "--success-frame", "--failure", "--help", "--version"}
    flags |= {"--url", "--nframes"}
    variables = {f"{ENV_PREFIX}{name.upper()}" for name in settings | OTHER_VARIABLES}
    for page in PAGES:
        if page.name == "CHANGELOG.md":  # names those of older versions, too
            continue
        text = page.read_text()
        for flag in re.findall(r"`(--[a-z][\w-]+)", text):
            assert flag in flags, (page, flag)
        for variable in re.findall(rf"\b{ENV_PREFIX}[A-Z]\w*", text):
            assert variable in variables, (page, variable)


@pytest.mark.parametrize("path", ["requirements.lock", "deploy/requirements.lock"])
def test_a_lock_names_no_registry(path: str):
    lock = (ROOT / path).read_text()
    assert "://" not in lock
    assert "--hash=sha256:" in lock


def test_the_lock_of_the_image_has_the_versions_that_are_tested():
    pinned = re.compile(r"(?m)^([\w.-]+==\S+)")
    image, tested = (
        set(pinned.findall((ROOT / path).read_text()))
        for path in ("deploy/requirements.lock", "requirements.lock")
    )
    assert image <= tested


# Code blocks


@pytest.fixture(scope="module")
def at_services() -> Iterator[Callable[[str], str]]:
    """Replace the default addresses by those of running services."""
    given = {"video": {"video_root": [LIBERO]}, "code": {"cache": None}}
    urls, ports = {}, {"fleet": 18000}
    with ExitStack() as stack:
        for name, entry in SERVICES.items():
            settings = entry.settings.load()
            urls[name] = stack.enter_context(
                serving(entry.app.load()(settings(**given.get(name, {}))))
            )
            ports[name] = settings().port
        urls["fleet"] = stack.enter_context(fleet_of(**urls))

        def replace(text: str) -> str:
            for name, port in ports.items():
                text = text.replace(f"http://127.0.0.1:{port}", urls[name])
            return text

        yield replace


def _by_process() -> list[tuple[Block, ...]]:
    """Group Python by what it needs: each group runs in one process."""
    groups: dict[object, list[Block]] = {}
    for block in blocks("python"):
        groups.setdefault((block.is_for_trainers, *block.needs), []).append(block)
    return [tuple(group) for group in groups.values()]


@pytest.mark.slow
@pytest.mark.timeout(360)
@pytest.mark.parametrize("group", _by_process(), ids=lambda group: group[0].id)
def test_python_blocks_run(group: tuple[Block, ...], at_services: Callable[[str], str]):
    """Each block defines what it uses."""
    needs = group[0].needs
    if missing := [package for package in needs if find_spec(package) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    given = _GIVEN + (_TRAINER if group[0].is_for_trainers else "")
    given += "".join(_WITH_PACKAGE.get(package, "") for package in needs)
    program = ""
    for block in group:
        text = at_services(block.text)
        if "await " in text and "asyncio.run" not in text:
            text = f"import asyncio\nasync def main():\n{textwrap.indent(text, '    ')}\n"
            text += "asyncio.run(main())\n"
        program += f"exec(compile({given + text!r}, {block.id!r}, 'exec'), {{}})\n"
    warnings = "default" if needs else "error"  # trainers warn about their own packages
    output_of(sys.executable, "-W", warnings, "-c", program, seconds=300, cwd=ROOT)


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.id)
def test_python_blocks_compile_and_import_what_exists(block: Block):
    """Those that need a package as well; the router's own tests run its example."""
    program = block.text
    if "await " in program:
        program = f"async def main():\n{textwrap.indent(program, '    ')}\n"
    compile(program, str(block.page), "exec")
    for line in re.findall(
        r"(?m)^(from rewardfleet(?!_router)\S* import (?:\([^)]*\)|.*))$", block.text
    ):
        exec(line, {})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "block",
    [block for block in blocks("sh") if block.text.startswith("curl")],
    ids=lambda block: block.id,
)
def test_curl_lines_are_answered(block: Block, at_services: Callable[[str], str]):
    strict = 'set -e; curl() { command curl --fail-with-body --silent --show-error "$@"; }\n'
    environment = {**os.environ, "no_proxy": "*"}
    assert output_of("bash", "-c", strict + at_services(block.text), cwd=ROOT, env=environment)


@pytest.mark.parametrize("words", command_lines("rewardfleet", "rewardfleet-router"), ids=" ".join)
def test_command_lines_are_accepted(words: list[str]):
    """The command exists, and so do its arguments and flags; a service accepts their values."""
    arguments = [_EXISTING.get(word, word) for word in words[1:]]
    is_router = Path(words[0]).name == "rewardfleet-router"
    command: click.Command = router_command if is_router else cli.command
    context = click.Context(command, **command.context_settings)
    while isinstance(command, click.Group):
        name, found, arguments = command.resolve_command(context, arguments)
        assert found is not None, words
        command, context = found, click.Context(found, context, name)
    with command.make_context(context.info_name, arguments, context.parent) as parsed:
        given = {name: value for name, value in parsed.params.items() if value not in (None, ())}
    if words[1] == "serve":
        read_settings(SERVICES[words[2]].settings.load(), given)


@pytest.mark.parametrize("words", command_lines("pip"), ids=" ".join)
def test_extras_that_are_installed_exist(words: list[str]):
    provided = metadata.metadata("rewardfleet").get_all("Provides-Extra") or []
    for extras in re.findall(r"(?:rewardfleet|\.)\[([\w,-]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= set(provided)


@pytest.mark.parametrize(
    "block",
    [block for block in blocks("yaml") if block.page.parent.name == "trainers" and not block.needs],
    ids=lambda block: block.id,
)
def test_yaml_blocks_of_trainers_name_what_exists(block: Block):
    """The module, its function, and the arguments of the function or of `RewardFleet`."""
    module = re.search(r"path: pkg://([\w.]+)", block.text)
    name = re.search(r"\bname: (\w+)", block.text)
    arguments = re.search(r"reward_kwargs: \{(.*)\}", block.text)
    assert module and name and arguments
    function = getattr(import_module(module[1]), name[1])
    accepted = signature(function).parameters | signature(RewardFleet).parameters
    assert set(re.findall(r"(\w+): ", arguments[1])) <= accepted.keys()
