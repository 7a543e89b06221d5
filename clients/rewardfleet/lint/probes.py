"""The answers that are tried on a row, and the row with them as completions."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from rewardfleet.bulk.requests import Columns, Item, RequestBuilder
from rewardfleet.bulk.rows import Row
from rewardfleet.lazy import Lazy
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.truth import given, plain

#: The column of a row that has its probes.
_COLUMN = "answers_of_lint"
#: Columns with the name of a row, and with its problem; the first that a row has counts.
_NAMES = ("task_id", "id", "problem_id", "question_id", "unique_id", "uid", "name")
_PROBLEMS = (
    "prompt", "question", "problem", "text", "content", "description", "instruction", "query",
    "question_content", "problem_description", "input", "starter_code", "tools", "choices",
)  # fmt: skip

#: Columns with what a policy wrote, on which the score of an answer would depend.
_OF_A_POLICY = {"critique", "original_program", "original_passed"}
#: Rows by which the service is found.
_FIRST_ROWS = 20


class Probe(Enum):
    """The kinds of answers that are tried."""

    SOLUTION = auto()  #: the row's own one, which must be paid
    AGAIN = auto()  #: the same once more, in a form that no cache knows
    TWIN = auto()  #: the solution of another row with the same problem
    ANYTHING = auto()  #: words that are no answer
    EMPTY = auto()
    CONSTANT = auto()
    ECHO = auto()
    FIRST_OUTPUT = auto()
    MUTANT = auto()


#: What is not the solution of a row, but written from its reference.
REFERENCE = "the reference in a format of answers"


class Tried(NamedTuple):
    """An answer that is tried."""

    kind: Probe
    text: str
    note: str = ""  #: what it does


class Plan(NamedTuple):
    """What is tried on a row."""

    name: str
    place: str
    probes: list[Tried]
    limit_s: float | None = None  #: the time limit of programs
    conflict: str = ""  #: why no program can pass
    twin: str = ""  #: the name of an earlier row with the same problem


class Answers(NamedTuple):
    """What a service's module makes of a row."""

    probes: list[Tried]
    limit_s: float | None = None
    conflict: str = ""


#: Returns the probes of a request and its row, by service.
_ANSWERS: dict[str, Callable[..., Answers]] = {
    "code": Lazy("rewardfleet.lint.code:answers"),
    "tools": Lazy("rewardfleet.lint.texts:tool_answers"),
    "answers": Lazy("rewardfleet.lint.texts:final_answers"),
}
SERVICES = tuple(_ANSWERS)


@dataclass
class Planner:
    """Plans the probes of rows.

    Args:
        service: The service that scores them.
        columns: Where the truth is, and the name of a row.
    """

    service: str
    columns: Columns
    builder: RequestBuilder = field(init=False)

    def __post_init__(self) -> None:
        columns = Columns(completion_column=_COLUMN, tests_column=self.columns.tests_column)
        changes = {"mode": "all_pass"} if self.service == "code" else {}
        self.builder = RequestBuilder(self.service, columns, changes=changes)

    def plans(self, rows: Iterable[Row]) -> Iterator[tuple[Plan, Row]]:
        """Yield the plan of each row, and the row with its probes as completions."""
        seen: dict[bytes, tuple[str, str]] = {}
        for number, row in enumerate(rows):
            name = self._name(row, number)
            found = self.answers(row) or Answers(
                [Tried(Probe.ANYTHING, "")]
            )  # the service says why
            probes, twin = found.probes, ""
            own = next((each.text for each in probes if each.kind is Probe.SOLUTION), "")
            if problem := _problem(row.fields):
                twin, answer = seen.setdefault(problem, (name, own))
                twin = "" if twin == name else twin
                if twin and answer and own:
                    probes = [*probes, Tried(Probe.TWIN, answer)]
            plan = Plan(name, row.place, probes, found.limit_s, found.conflict, twin)
            texts = [each.text for each in probes]
            yield plan, row._replace(fields={**_without_policy(row), _COLUMN: texts})

    def _name(self, row: Row, number: int) -> str:
        column = self.columns.id_column
        names = given(row.fields, _NAMES if column is None else (column,)).values()
        return str(next((each for each in names if isinstance(each, str | int)), number))

    def answers(self, row: Row) -> Answers | None:
        """Return what is tried on a row; None if the service cannot read it."""
        fields = _without_policy(row)
        probed = row._replace(fields={**fields, _COLUMN: ""})
        try:
            request = self.builder.build(Item(0, probed, error=row.error))
            return _ANSWERS[self.service](request, fields)
        except InvalidRequest:
            return None


def service_of(rows: Iterable[Row], columns: Columns) -> str:
    """Return the service that can read rows, by the first of them.

    Raises:
        ValueError: None can.
    """
    first = [*itertools.islice(rows, _FIRST_ROWS)]
    for service in SERVICES:
        if any(map(Planner(service, columns).answers, first)):
            return service
    raise ValueError(
        f"no service reads the first rows; --service: give one of {', '.join(SERVICES)}"
    )


def _without_policy(row: Row) -> dict[str, Any]:
    """Return the columns of a row without what a policy wrote, e.g. its critique."""
    return {name: each for name, each in row.fields.items() if name not in _OF_A_POLICY}


def _problem(fields: Any) -> bytes:
    """Return the digest of a row's problem; empty if it has none."""
    found = {name: each for name, each in given(fields, _PROBLEMS).items() if len(str(each)) > 1}
    if not found:
        return b""
    text = " ".join(json.dumps(plain(found), default=str).split())
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:16]
