"""The cache keys of verdicts: everything that verdicts depend on, and nothing else."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from rewardfleet.wire.code import CodeRequest, CodeScore, Outcome
from rewardfleet.wire.digest import digest_of
from rewardfleet_server.cache.entry import source_version
from rewardfleet_server.code.normal_form.introspection import Uses
from rewardfleet_server.code.text_parser import TextParser

from .verdict import CHECKER_FAILED, SANDBOX_DIED

NOT_CACHED = "not_cached"  #: what the provenance of a score names that is not stored
_MAX_FORMS = 4096  #: digests of normal forms that are held in memory
#: Seconds for which verdicts are stored that may depend on how busy the machine was: CPU time grows
#: with load, which decides close to a limit.
_SHORT_TTL_S = 600.0
_LOAD_DEPENDENT = {Outcome.TIME_LIMIT, Outcome.MEMORY_LIMIT, Outcome.SKIPPED}


@dataclass(eq=False)
class CacheKeys:
    """Computes the cache keys of one service."""

    _parser: TextParser  #: normalizes programs
    #: Returns the sandbox's provenance and the ceilings of limits. Called for each key, as some
    #: sandboxes learn their provenance late.
    _provenance: Callable[[], Mapping[str, JsonValue]]
    _encoded: tuple[Mapping[str, JsonValue], str] = field(default=({}, ""), init=False)
    _forms: OrderedDict[bytes, str] = field(default_factory=OrderedDict, init=False)

    def __post_init__(self) -> None:
        self._harness = source_version(Path(__file__).parents[1])

    async def of(self, program: str, request: CodeRequest, tests: str, uses: Uses | None) -> str:
        """Return the key of a program's verdicts on tests, given their digest.

        Args:
            uses: What source code of the tests uses. None: they can see all of a program's text.
        """
        known = hashlib.sha256(f"{tests}{program}".encode(errors="surrogatepass")).digest()
        form = self._forms.get(known)
        if form is None:
            form, is_final = await self._parser.form(program, uses)
            if is_final:
                self._forms[known] = form
            if len(self._forms) > _MAX_FORMS:
                self._forms.popitem(last=False)
        limits = request.limits.model_dump_json()
        given = sorted(request.limits.model_fields_set)  # a row's time limit replaces a default
        provenance = dict(self._provenance())
        if provenance != self._encoded[0]:
            self._encoded = provenance, json.dumps([provenance, self._harness], sort_keys=True)
        parts = f"{self._encoded[1]}\n{form}\n{tests}\n{limits}\n{given}\n{request.language}"
        return digest_of(parts)


def lookup_keys(key: str, mode: str) -> tuple[str, ...]:
    """Return the keys under which a score for a mode may be stored.

    Verdicts on all tests serve both modes. Verdicts up to the first failure serve `all_pass` only.
    """
    return (f"{key}:all",) if mode == "pass_rate" else (f"{key}:first", f"{key}:all")


def store_policy(
    key: str, mode: str, score: CodeScore, *, with_original: bool = False
) -> tuple[str, float | None]:
    """Return the key to store a score under, and its seconds to live (None: no limit; 0: none).

    Args:
        key: The key of the program's verdicts.
        with_original: Whether the original program was run as well, for the judgment.
    """
    if NOT_CACHED in score.provenance:
        return key, 0.0
    outcomes = {verdict.verdict for verdict in score.verdicts} - {Outcome.LEFT_OUT}
    complete = mode == "pass_rate" or Outcome.SKIPPED not in outcomes
    # Tests after a failure are skipped by design. Otherwise, tests are skipped for lack of time.
    has_failure = mode == "all_pass" and bool(outcomes - {Outcome.ACCEPTED, Outcome.SKIPPED})
    load_dependent = _LOAD_DEPENDENT - {Outcome.SKIPPED} if has_failure else _LOAD_DEPENDENT
    is_brief = bool(outcomes & load_dependent)
    # Of an original program, only that it passed is sure not to depend on the machine's load.
    right = score.details.get("judgment_correct")
    is_brief |= with_original and (right is None or (right == 1) != (score.judgment == "correct"))
    # A jail may also die for reasons other than the program, and a checker fail due to its limits.
    is_brief |= any(SANDBOX_DIED in each or CHECKER_FAILED in each for each in score.suspicions)
    return f"{key}:{'all' if complete else 'first'}", _SHORT_TTL_S if is_brief else None
