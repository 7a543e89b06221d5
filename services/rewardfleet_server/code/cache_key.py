"""The cache keys of verdicts: everything that verdicts depend on, and nothing else."""

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from rewardfleet.wire.code import CodeRequest, CodeScore, FunctionalTests, Outcome, StdioTests

from .checkers.decision import CHECKER_FAILED
from .normal_form import normal_form
from .verdict import SANDBOX_DIED

#: How much of a program its tests can see: its output; also its public names; or all of its text.
_Visibility = Literal["output", "names", "text"]

#: Programs of more characters are normalized off the event loop.
_SMALL_PROGRAM = 2_000
#: Digests of normal forms that are held in memory.
_MAX_FORMS = 4096
#: Seconds for which verdicts are stored that depend on how busy the machine was.
_SHORT_TTL_S = 600.0
_LOAD_DEPENDENT = {Outcome.TIME_LIMIT, Outcome.MEMORY_LIMIT, Outcome.SKIPPED}

#: Words of tests that may observe more than public names: private ones, docstrings, hints, frames.
_REFLECTION = re.compile(
    r"\b_\w|\b(?:inspect|signature|help|vars|dir|locals|globals|getattr|get_type_hints|"
    r"get_annotations|getdoc|traceback|attrgetter|methodcaller|eval|exec|f_locals|tb_frame|"
    r"gi_frame|settrace|unittest|doctest)\b"
)
#: Escapes of JSON, also of JSON within JSON. Their letter is not part of a name.
_ESCAPE = re.compile(r"\\+(?:u[0-9a-fA-F]{4}|[a-zA-Z])")


class CacheKeys:
    """Computes the cache keys of one service.

    Args:
        provenance: Returns the sandbox's provenance and the ceilings of limits. Called for each
            key, as some sandboxes learn their provenance late.
    """

    def __init__(self, provenance: Callable[[], Mapping[str, JsonValue]]) -> None:
        self._provenance = provenance
        self._harness = harness_version()
        self._encoded: tuple[Mapping[str, JsonValue], str] = ({}, "")
        self._forms: OrderedDict[tuple[_Visibility, str], str] = OrderedDict()

    async def of(self, program: str, request: CodeRequest) -> str:
        """Return the key of a program's verdicts on the tests of a request."""
        tests = request.tests.model_dump_json()
        visibility = _visibility(request, tests)
        form = self._forms.get((visibility, program))
        if form is None:
            if len(program) <= _SMALL_PROGRAM:
                form = _form_digest(program, visibility)
            else:
                form = await asyncio.to_thread(_form_digest, program, visibility)
            self._forms[visibility, program] = form
            if len(self._forms) > _MAX_FORMS:
                self._forms.popitem(last=False)
        limits = request.limits.model_dump_json()
        given = sorted(request.limits.model_fields_set)  # a row's time limit replaces a default
        provenance = dict(self._provenance())
        if provenance != self._encoded[0]:
            base = json.dumps([provenance, self._harness], sort_keys=True)
            self._encoded = provenance, base
        parts = f"{self._encoded[1]}\n{form}\n{tests}\n{limits}\n{given}\n{request.language}"
        return hashlib.sha256(parts.encode(errors="surrogatepass")).hexdigest()


def lookup_keys(key: str, mode: str) -> tuple[str, ...]:
    """Return the keys under which a score for a mode may be stored.

    Verdicts on all tests serve both modes. Verdicts up to the first failure serve `all_pass` only.
    """
    return (f"{key}:all",) if mode == "pass_rate" else (f"{key}:first", f"{key}:all")


def store_policy(
    key: str, mode: str, score: CodeScore, *, with_original: bool = False
) -> tuple[str, float | None]:
    """Return the key to store a score under, and its time to live in seconds (None: no limit).

    Args:
        key: The key of the program's verdicts.
        mode: The mode of the request.
        score: The score.
        with_original: Whether the original program was run as well, to determine whether the
            judgment is right.
    """
    outcomes = {verdict.verdict for verdict in score.verdicts}
    complete = mode == "pass_rate" or Outcome.SKIPPED not in outcomes
    # Tests after a failure are skipped by design. Otherwise, tests are skipped for lack of time.
    has_failure = mode == "all_pass" and bool(outcomes - {Outcome.ACCEPTED, Outcome.SKIPPED})
    load_dependent = _LOAD_DEPENDENT - {Outcome.SKIPPED} if has_failure else _LOAD_DEPENDENT
    is_brief = bool(outcomes & load_dependent)
    # Of an original program, only that it passed is sure not to depend on the machine's load.
    right = score.components.get("judgment_correct")
    is_brief |= with_original and (right is None or (right == 1) != (score.judgment == "correct"))
    # A jail may also die for reasons other than the program.
    is_brief |= any(SANDBOX_DIED in each for each in score.suspicions)
    # The failure of a checker may be due to its limits.
    is_brief |= any(CHECKER_FAILED in each for each in score.suspicions)
    return f"{key}:{'all' if complete else 'first'}", _SHORT_TTL_S if is_brief else None


def harness_version() -> str:
    """Return a digest of the code that makes verdicts: every file of the service package."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for file in sorted((*folder.rglob("*.py"), *folder.rglob("*.h"))):
        digest.update(f"{file.relative_to(folder)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _visibility(request: CodeRequest, tests: str) -> _Visibility:
    """Return how much of a program its tests can see.

    A setup may bring any name into the program's module. Tests that are Python code may use
    reflection, which observes what the normal form regards as invisible.
    """
    if isinstance(request.tests, StdioTests) and not request.tests.setup:
        return "output"
    if isinstance(request.tests, FunctionalTests) and not request.tests.setup:
        return "text" if request.tests.fn_name.startswith("_") else "names"
    reflects = _REFLECTION.search(tests) or _REFLECTION.search(_ESCAPE.sub(" ", tests))
    return "text" if reflects else "names"


def _form_digest(program: str, visibility: _Visibility) -> str:
    if visibility == "text":
        form = f"text {program}"
    else:
        form = normal_form(program, level="stdin" if visibility == "output" else "unit")
    return hashlib.sha256(form.encode(errors="surrogatepass")).hexdigest()
