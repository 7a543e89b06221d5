"""Under which key verdicts are known: everything that they depend on, and nothing else."""

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from importlib import resources

from pydantic import JsonValue

from rewardfleet.wire.code import CodeRequest, CodeScore, FunctionalTests, Outcome, StdioTests

from .normal_form import normal_form

#: Programs above this many characters are brought to their normal form off the event loop.
_SMALL_PROGRAM = 2_000
#: Normal forms that are remembered, by the program's text.
_REMEMBERED = 4096
#: Seconds for which verdicts are kept that hang on how busy the machine was.
_BRIEF_SECONDS = 600.0
_TIMED = {Outcome.TIME_LIMIT, Outcome.MEMORY_LIMIT, Outcome.SKIPPED}

#: What tests say that look at more than public names: private ones, docstrings, hints, frames.
_LOOKS = re.compile(r"\b_\w|\b(?:inspect|signature|help|vars|dir|locals|globals|getattr)\b")

#: The files whose every change may change a verdict.
_HARNESS = (
    *("verdict.py", "values.py", "datasets.py", "packed.py"),
    *("sandboxes/jail/warden.py", "sandboxes/jail/seccomp.py", "sandboxes/fusion.py"),
)


class Keys:
    """Makes keys for one service.

    Args:
        provenance: Of its sandbox, and its own: isolation, Python, versions, ceilings.
    """

    def __init__(self, provenance: Mapping[str, JsonValue]) -> None:
        self._base = json.dumps([dict(provenance), harness_version()], sort_keys=True)
        self._forms: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def of(self, program: str, request: CodeRequest) -> str:
        """Name the verdicts of a program on a request's tests."""
        tests = request.tests.model_dump_json()
        level = _level(request, tests)
        form = self._forms.get((level, program))
        if form is None:
            if len(program) <= _SMALL_PROGRAM:
                form = _form_digest(program, level)
            else:
                form = await asyncio.to_thread(_form_digest, program, level)
            self._forms[level, program] = form
            if len(self._forms) > _REMEMBERED:
                self._forms.popitem(last=False)
        limits = request.limits.model_dump_json()
        given = sorted(request.limits.model_fields_set)  # a data set's row has limits of its own
        said = f"{self._base}\n{form}\n{tests}\n{limits}\n{given}\n{request.language}"
        return hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()


def places(key: str, mode: str) -> tuple[str, ...]:
    """Return under which keys an answer to a mode may be known.

    All verdicts serve both modes; what stopped at the first failure serves `all_pass` alone.
    """
    return (f"{key}:all",) if mode == "pass_rate" else (f"{key}:first", f"{key}:all")


def keep(key: str, mode: str, score: CodeScore) -> tuple[str, float | None]:
    """Say under which key verdicts are kept, and for how long."""
    outcomes = {verdict.verdict for verdict in score.verdicts}
    whole = mode == "pass_rate" or Outcome.SKIPPED not in outcomes
    brief = outcomes & (_TIMED if mode == "pass_rate" else _TIMED - {Outcome.SKIPPED})
    return f"{key}:{'all' if whole else 'first'}", _BRIEF_SECONDS if brief else None


def harness_version() -> str:
    """Name the code that makes verdicts, by its content."""
    digest = hashlib.sha256()
    for name in _HARNESS:
        digest.update(resources.files(__package__).joinpath(name).read_bytes())
    return digest.hexdigest()[:16]


def _level(request: CodeRequest, tests: str) -> str:
    """Say how much of a program its tests can see.

    A script of the tests before the program may bring any name into its module. Tests that are
    Python may look at what the normal form takes for unseen.
    """
    if isinstance(request.tests, StdioTests) and not request.tests.setup:
        return "stdin"
    if isinstance(request.tests, FunctionalTests) and request.tests.fn_name[0] != "_":
        return "unit"
    return "text" if _LOOKS.search(tests) else "unit"


def _form_digest(program: str, level: str) -> str:
    if level == "text":
        form = f"text {program}"
    else:
        form = normal_form(program, level="stdin" if level == "stdin" else "unit")
    return hashlib.sha256(form.encode(errors="surrogatepass")).hexdigest()
