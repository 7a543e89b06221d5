"""Under which key verdicts are known: everything that they depend on, and nothing else."""

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import JsonValue

from rewardfleet.wire.code import CodeRequest, CodeScore, FunctionalTests, Outcome, StdioTests

from .normal_form import normal_form
from .verdict import SANDBOX_DIED

#: Programs above this many characters are brought to their normal form off the event loop.
_SMALL_PROGRAM = 2_000
#: Normal forms that are remembered, by the program's text.
_REMEMBERED = 4096
#: Seconds for which verdicts are kept that hang on how busy the machine was.
_BRIEF_SECONDS = 600.0
_TIMED = {Outcome.TIME_LIMIT, Outcome.MEMORY_LIMIT, Outcome.SKIPPED}

#: What tests say that look at more than public names: private ones, docstrings, hints, frames.
_REFLECTION = re.compile(
    r"\b_\w|\b(?:inspect|signature|help|vars|dir|locals|globals|getattr|get_type_hints|"
    r"get_annotations|getdoc|traceback|attrgetter|methodcaller|eval|exec|f_locals|tb_frame|"
    r"gi_frame|settrace|unittest|doctest)\b"
)
#: JSON's escapes, also of JSON in JSON: their letter is no part of a name.
_ESCAPE = re.compile(r"\\+(?:u[0-9a-fA-F]{4}|[a-zA-Z])")


class CacheKeys:
    """Makes keys for one service.

    Args:
        provenance: Tells that of its sandbox, and its ceilings: isolation, Python, versions. Asked
            each time, as some sandboxes learn theirs late.
    """

    def __init__(self, provenance: Callable[[], Mapping[str, JsonValue]]) -> None:
        self._provenance = provenance
        self._harness = harness_version()
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
        base = json.dumps([dict(self._provenance()), self._harness], sort_keys=True)
        said = f"{base}\n{form}\n{tests}\n{limits}\n{given}\n{request.language}"
        return hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()


def lookup_keys(key: str, mode: str) -> tuple[str, ...]:
    """Return under which keys an answer to a mode may be known.

    All verdicts serve both modes; what stopped at the first failure serves `all_pass` alone.
    """
    return (f"{key}:all",) if mode == "pass_rate" else (f"{key}:first", f"{key}:all")


def store_policy(
    key: str, mode: str, score: CodeScore, *, with_original: bool = False
) -> tuple[str, float | None]:
    """Say under which key verdicts are kept, and for how long.

    Args:
        with_original: Whether the original program was run, too, to see if a judgment is right.
    """
    outcomes = {verdict.verdict for verdict in score.verdicts}
    whole = mode == "pass_rate" or Outcome.SKIPPED not in outcomes
    # What was skipped after a failure was to be; anything else ran out of time.
    stopped = mode == "all_pass" and bool(outcomes - {Outcome.ACCEPTED, Outcome.SKIPPED})
    brief = bool(outcomes & (_TIMED - {Outcome.SKIPPED} if stopped else _TIMED))
    # Of an original, its having passed alone is sure not to hang on time.
    right = score.components.get("judgment_correct")
    brief |= with_original and (right is None or (right == 1) != (score.judgment == "correct"))
    # A jail may also die of what else the machine does.
    brief |= any(SANDBOX_DIED in each for each in score.suspicions)
    return f"{key}:{'all' if whole else 'first'}", _BRIEF_SECONDS if brief else None


def harness_version() -> str:
    """Name the code that makes verdicts, by its content: every file of the service."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for file in sorted(here.rglob("*.py")):
        digest.update(f"{file.relative_to(here)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _level(request: CodeRequest, tests: str) -> str:
    """Say how much of a program its tests can see.

    A script of the tests before the program may bring any name into its module. Tests that are
    Python may look at what the normal form takes for unseen.
    """
    if isinstance(request.tests, StdioTests) and not request.tests.setup:
        return "stdin"
    if isinstance(request.tests, FunctionalTests) and not request.tests.setup:
        return "text" if request.tests.fn_name.startswith("_") else "unit"
    looks = _REFLECTION.search(tests) or _REFLECTION.search(_ESCAPE.sub(" ", tests))
    return "text" if looks else "unit"


def _form_digest(program: str, level: str) -> str:
    if level == "text":
        form = f"text {program}"
    else:
        form = normal_form(program, level="stdin" if level == "stdin" else "unit")
    return hashlib.sha256(form.encode(errors="surrogatepass")).hexdigest()
