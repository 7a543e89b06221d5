"""The architecture: what imports what, and where dangerous things may be done."""

import ast
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import get_type_hints

import rewardfleet
from rewardfleet import Unavailable
from rewardfleet.lazy import Lazy
from rewardfleet.services import SERVICES as CLIENT_SERVICES
from rewardfleet.wire.errors import (
    ERROR_OF_STATUS,
    ERRORS,
    ErrorKind,
    RewardFleetError,
)
from rewardfleet_server.code.sandboxes import SANDBOXES, Sandbox
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.video.judges import ClipJudge, FileJudge
from rewardfleet_server.video.judges.settings import all_built_in, built_in

from .running import output_of

ROOT = Path(__file__).parent.parent
CLIENT = ROOT / "clients" / "rewardfleet"
SERVER = ROOT / "services" / "rewardfleet_server"
#: A distribution of its own, which uses the client.
ROUTER = ROOT / "contrib" / "router" / "rewardfleet_router"

#: The only files that run received code: inside a jail, and nowhere else.
GUEST = SERVER / "code" / "sandboxes" / "jail" / "guest"
#: What the server shares with them.
SHARED_WITH_GUEST = {
    GUEST / f"{name}.py" for name in ("__init__", "descriptors", "names", "nodes", "scripts")
}

#: The only files of the server that use the client: commands and a demo.
CLIENT_USERS = {
    "__main__.py", *(f"commands/{path.name}" for path in (SERVER / "commands").glob("*.py"))
}  # fmt: skip
#: Modules of a service's own package that others may import: the fakes that ship.
FAKES = "testing.py"

#: The only use of pickle; it loads nothing but data.
PICKLER = (SERVER / "http" / "body_parser.py", "pickle")

#: Libraries of trainers, which an adapter imports inside its functions.
TRAINERS = {"torch", "verl"}
#: The only module that imports Gymnasium; its package imports it on first use.
GYMNASIUM_WRAPPER = CLIENT / "adapters" / "libero" / "wrapper.py"
#: Optional libraries that a file of the client imports inside its functions.
LAZY = {
    CLIENT / path: set(libraries)
    for path, libraries in json.loads((ROOT / "tests/data/lazy_imports.json").read_text()).items()
}
WEB_FRAMEWORKS = {"starlette", "fastapi"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[str, ...]:
    """The absolute names of the modules that a file imports."""
    package = next(each for each in (CLIENT, SERVER, ROUTER) if each in path.parents)
    here = [package.name, *path.relative_to(package).with_suffix("").parts][:-1]
    found = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return tuple(found)


RULES: list[Callable[[], None]] = []


def rule(check: Callable[[], None]) -> Callable[[], None]:
    """Declare what must hold of the text of all files."""
    RULES.append(check)
    return check


def test_all_rules_hold():
    """One test, as each process that runs one of the rules parses all files."""
    for check in RULES:
        check()


def violations(paths: Iterable[Path], is_allowed: Callable[[Path, str], bool]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in imports(path)
        if not is_allowed(path, name)
    ]


@cache
def files(folder: Path) -> tuple[Path, ...]:
    return tuple(path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts)


@rule
def the_client_imports_its_few_dependencies_and_never_the_server():
    """`text` imports nothing of ours but itself, and `wire` pydantic and `text`."""

    def is_allowed(path: Path, name: str) -> bool:
        package = path.relative_to(CLIENT).parts[0]
        in_wire = package == "wire"
        top = name.partition(".")[0]
        if top in {"rewardfleet", "rewardfleet_command"}:
            own = {"text": ("rewardfleet.text",), "wire": ("rewardfleet.wire", "rewardfleet.text")}
            return package not in own or name.startswith(own[package])
        if package == "text":
            return top in sys.stdlib_module_names
        allowed = {"pydantic", "pydantic_core"}
        allowed |= set() if in_wire else {"httpx", "numpy"}
        allowed |= TRAINERS if package == "adapters" else set()
        allowed |= {"click"} if package == "commands" else set()
        allowed |= {"gymnasium"} if path == GYMNASIUM_WRAPPER else set()
        return top in allowed | LAZY.get(path, set()) | set(sys.stdlib_module_names)

    assert not violations(files(CLIENT), is_allowed)
    in_bulk = [*files(CLIENT / "bulk"), CLIENT / "rows.py", CLIENT / "services.py"]
    assert not violations(in_bulk, lambda _, name: not name.startswith("rewardfleet.adapters"))


@rule
def nothing_imports_the_router_and_the_router_does_not_import_the_server():
    assert not violations(files(ROUTER), lambda _, name: not name.startswith("rewardfleet_server"))
    others = [*files(CLIENT), *files(SERVER)]
    assert not violations(others, lambda _, name: not name.startswith("rewardfleet_router"))


@rule
def optional_libraries_are_imported_inside_functions():
    for path, lazy in LAZY.items():
        for node in tree(path).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = getattr(node, "module", None) or ""  # None: `from . import`
                for name in [module, *(alias.name for alias in node.names)]:
                    assert name.partition(".")[0] not in lazy, (path, name)


@rule
def only_http_and_the_page_import_a_web_framework():
    """The engine, the services and the commands know nothing of HTTP."""
    web = {"http", "look"}
    others = [path for path in files(SERVER) if path.relative_to(SERVER).parts[0] not in web]
    assert not violations(others, lambda _, name: name.partition(".")[0] not in WEB_FRAMEWORKS)


def test_importing_the_engine_and_the_route_declarations_loads_no_web_framework():
    program = """
import sys
import rewardfleet_server.engine, rewardfleet_server.http.routes
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""
    loaded = set(output_of(sys.executable, "-c", program).split())
    assert not loaded & (WEB_FRAMEWORKS | {"uvicorn"})


@rule
def packages_of_the_server_import_in_one_direction():
    """Common modules ← `http` ← services, `up` and `look`; a service imports no other service."""
    rules = (ROOT / "docs" / "architecture.md").read_text().partition("## Import rules")[2]
    used = {name for each in SERVICES for path in files(SERVER / each) for name in imports(path)}
    modules = {".".join(name.split(".")[1:3]) for name in used if ".http." in name}
    assert modules == set(re.findall(r"`(http\.\w+)`", rules))
    public_http = tuple(f"rewardfleet_server.{each}" for each in modules)

    def is_allowed(path: Path, name: str) -> bool:
        place = path.relative_to(SERVER)
        package = place.parts[0] if len(place.parts) > 1 else None
        top, _, rest = name.partition(".")
        imported = rest.partition(".")[0]
        if top == "rewardfleet" and str(place) not in CLIENT_USERS:
            # Their arithmetic is shared by the service, the adapters and notebooks.
            shared = {
                "wire",
                "text",
                "score_log",
                "story",
                "services",
                "tls",
                "lazy",
                {"episode": "episodes", "tools": "tool_use"}.get(package, "wire"),
            }
            return name in {"rewardfleet", "rewardfleet.__version__"} or imported in shared
        if top != "rewardfleet_server" or not imported:
            return True
        if imported in SERVICES:
            return package == imported or (package == "commands" or str(place) == FAKES)
        if imported == "http" and package in SERVICES:
            return name.startswith(public_http)
        return (
            imported != "http"
            or package in {"http", "up", "look"}
            or str(place) == "serve.py"
            or name.startswith("rewardfleet_server.http.allowed_hosts")
        )

    assert not violations(files(SERVER), is_allowed)


@rule
def the_environment_is_read_in_settings_only():
    readers = {
        str(path.relative_to(package))
        for package in (SERVER, CLIENT, ROUTER)
        for path in files(package)
        if "guest" not in path.parts  # where a program has an environment of its own
        and re.search(r"os\.(environ\b(?!\.(setdefault|clear\())|getenv)", path.read_text())
    }
    assert all(name.endswith("settings.py") for name in readers), readers


@rule
def threads_get_the_context_of_their_caller():
    """`run_in_thread` and `asyncio.to_thread` copy the context, and with it the request id."""
    for path in files(SERVER):
        if path.name != "threads.py":
            assert not re.search(r"run_in_(executor|threadpool)", path.read_text()), path


def test_a_backend_has_three_methods_at_most():
    for backend in (ClipJudge, FileJudge, Sandbox):
        parts = {name: part for each in backend.__mro__[:-3] for name, part in vars(each).items()}
        methods = [name for name, part in parts.items() if name[0] != "_" and callable(part)]
        assert 1 <= len(methods) <= 3, (backend, methods)


@rule
def clients_and_services_are_folders_and_no_packages():
    assert not (ROOT / "clients" / "__init__.py").exists()
    assert not (ROOT / "services" / "__init__.py").exists()
    for path in [*files(CLIENT), *files(SERVER), *files(ROUTER), *files(ROOT / "tests")]:
        assert not re.search(r"(from|import) (clients|services)\b", path.read_text()), path


@rule
def no_received_data_can_run():
    """No pickle, no eval, no shell, except for programs in the jail.

    What the decoding process sends to its service is pickled; the service loads data only.
    """
    for path in {*files(CLIENT), *files(SERVER), *files(ROUTER)} - {*files(GUEST)}:
        for name in imports(path):
            refused = {"pickle", "marshal", "shelve", "yaml"}
            assert name.partition(".")[0] not in refused or (path, name) == PICKLER, path
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile"}, path
            if isinstance(node, ast.keyword) and node.arg == "shell":
                raise AssertionError(path)


@rule
def what_runs_in_a_jail_imports_the_standard_library_only_and_is_imported_by_nothing():
    """Its source is passed to the jail as it is."""
    package = "rewardfleet_server.code.sandboxes.jail.guest"
    for path in files(GUEST):
        for name in imports(path):
            own = name.startswith(package)
            assert own or name.partition(".")[0] in sys.stdlib_module_names, name
    private = {f"{package}.{path.stem}" for path in {*files(GUEST)} - SHARED_WITH_GUEST}
    for path in {*files(CLIENT), *files(SERVER)} - {*files(GUEST)}:
        for name in imports(path):
            assert name not in private, path


def test_importing_the_client_loads_nothing_of_the_server_or_of_a_trainer():
    program = """
import importlib, sys
import rewardfleet, rewardfleet.blocking
for name in sys.argv[1:]:
    importlib.import_module(f"rewardfleet.adapters.{name}")
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""
    adapters = [
        ".".join(path.relative_to(CLIENT / "adapters").with_suffix("").parts)
        for path in files(CLIENT / "adapters")
        if path != GYMNASIUM_WRAPPER
    ]
    loaded = set(output_of(sys.executable, "-c", program, *adapters).split())
    assert {"httpx", "numpy", "pydantic"} <= loaded
    forbidden = {"rewardfleet_server", "uvicorn", "cv2", "gymnasium", "PIL", "vllm"}
    assert not loaded & {*forbidden, *WEB_FRAMEWORKS, *TRAINERS}


def test_importing_a_service_loads_nothing_that_few_need():
    program = """
import subprocess
import sys
import rewardfleet_server.serve, rewardfleet_server.commands.doctor
from rewardfleet_server.registry import SERVICES
for entry in SERVICES.values():
    entry.settings.load()
    entry.app.load()
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""
    loaded = set(output_of(sys.executable, "-c", program).split())
    assert not loaded & {"torch", "vllm", "transformers", "scipy", "dtaidistance", "fastapi"}


def test_all_lists_every_public_name_in_order():
    """What type checkers find is what is imported, wherever it is sought."""
    body = tree(CLIENT / "__init__.py").body
    (checked,) = [each for each in body if isinstance(each, ast.If)]
    homes = {alias.name: each.module for each in checked.body for alias in each.names}
    assert rewardfleet.__all__ == sorted(homes)
    for name, module in homes.items():
        home = importlib.import_module(f"rewardfleet.{module}")
        assert getattr(rewardfleet, name) is getattr(home, name)
    assert {*homes, "__version__"} <= {*dir(rewardfleet)}
    assert set(ERRORS.values()) <= {getattr(rewardfleet, name) for name in rewardfleet.__all__}


def test_the_tables_of_errors_agree():
    """Each kind has one status and one class, and each status leads back to that class."""
    assert set(ERRORS) == set(ErrorKind)
    assert len(ERROR_OF_STATUS) == len(ERRORS)
    assert {error.status: error for error in ERRORS.values()} == ERROR_OF_STATUS
    for kind, error in ERRORS.items():
        problem = error("why", retry_after=3, request_id="r").problem()
        again = RewardFleetError.from_problem(problem)
        assert type(again) is error
        assert (again.kind, again.status) == (kind, error.status)
        assert (again.detail, again.retry_after, again.request_id) == ("why", 3, "r")

    class Special(Unavailable):
        """An error of a program that uses the client, without a kind of its own."""

    assert Special not in ERRORS.values()
    assert ERRORS[Special.kind].status == Special.status == 503


def test_client_and_server_know_the_same_services():
    assert set(CLIENT_SERVICES) == set(SERVICES)
    types = get_type_hints(rewardfleet.RewardFleet)
    assert types == {name: each.client for name, each in CLIENT_SERVICES.items()}


def test_every_lazy_name_exists():
    declared = [*CLIENT_SERVICES.values(), *SERVICES.values()]
    parts = [part for each in declared for part in vars(each).values()]
    for part in [*parts, *map(Lazy, SANDBOXES.values())]:
        assert not isinstance(part, Lazy) or callable(part.load())


def test_a_judge_is_found_by_the_name_of_its_module():
    judges = all_built_in()
    assert len(judges) == 9
    assert [built_in(each.name) for each in judges] == judges
    assert built_in("primo-r1") is None and built_in("custom") is None and built_in("../x") is None


def test_what_is_started_often_imports_little():
    """The command, at each completion of a shell."""
    code = "import sys, rewardfleet.commands.main; print(*sys.modules)"
    found = output_of(sys.executable, "-c", code)
    assert not {"asyncio", "httpx", "pydantic"} & {*found.split()}


def test_a_client_imports_only_what_it_uses():
    """Rollout workers start by the hundred: numpy is for frames, and few have a score log."""
    heavy = (
        "numpy",
        "rewardfleet.score_log",
        "rewardfleet.sample_tables",
        "rewardfleet.evaluation",
    )
    code = f"""
import sys, rewardfleet

rewardfleet.RewardFleet("http://127.0.0.1:18000")
assert not [name for name in sys.modules if name.startswith({heavy})]
assert rewardfleet.SampleTables and "rewardfleet.sample_tables" in sys.modules
"""
    output_of(sys.executable, "-c", code)
