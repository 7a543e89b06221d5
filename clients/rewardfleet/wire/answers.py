"""Models of the answers service: `POST /score` and `/score/batch`."""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, FiniteFloat, StrictBool, StrictInt, model_validator

from .causes import AnswersCause, cause_field
from .errors import ErrorKind, InvalidRequest
from .policy_text import PolicyAnswer, text_of
from .score import RUN_LABEL, STEP_LABEL, UID_LABEL, FiniteJson, Request, Score, Step
from .truth import given, parsed, plain

#: Maximum number of characters of a reference, or of a schema as JSON.
MAX_REFERENCE = 100_000
MAX_REFERENCES = 100
#: The names under which data sets have a reference; the first one is this project's.
REFERENCE_NAMES = ("reference", "answer", "ground_truth", "label")

#: What a reference is, and so how answers are compared with it; `auto`: as it looks like.
Form = Literal[
    "auto", "expression", "number", "choice", "set", "list", "interval", "equation", "matrix",
    "date", "yes_no", "text", "exact", "regex", "json",
]  # fmt: skip
#: The rules that take the answer from a text; `auto`: the first one that applies.
Rule = Literal[
    "auto", "answer_tag", "last_box", "answer_phrase", "short_text", "last_formula", "last_number",
    "last_line", "whole_text",
]  # fmt: skip

_ReferenceText = Annotated[str, Field(min_length=1, max_length=MAX_REFERENCE, pattern=r"\S")]
_Reference = _ReferenceText | StrictBool | StrictInt | FiniteFloat
Reference = (
    _Reference
    | Annotated[list[_Reference], Field(min_length=1, max_length=MAX_REFERENCES)]
    | dict[str, FiniteJson]
)
_Response = str | None | list[dict[str, FiniteJson]] | dict[str, FiniteJson]


def _text(response: Any) -> Any:
    return text_of(response) if isinstance(response, list | dict) else response


_PolicyResponse = Annotated[PolicyAnswer, BeforeValidator(_text, json_schema_input_type=_Response)]


def _with_aliases(schema: dict[str, Any]) -> None:
    """Add the other names of the reference to the schema of requests."""
    properties = schema["properties"]
    properties |= dict.fromkeys(REFERENCE_NAMES, properties["reference"])
    schema["anyOf"] = [{"required": [name]} for name in (*REFERENCE_NAMES, "schema")]


class AnswersRequest(
    Request,
    validate_by_name=True,
    validate_by_alias=True,
    serialize_by_alias=True,
    json_schema_extra=_with_aliases,
):
    """What a policy answered, and the right answer."""

    response: _PolicyResponse = Field(
        description="What the policy wrote: a text, or a list of messages. Any text is scored. "
        "Null, or an empty list: it is not, with the cause `no_answer`."
    )
    reference: Reference | None = Field(
        None,
        description="The right answer, or a list of equally right ones: a text, a number, or JSON. "
        "A solution that ends in `#### 72` or has a `\\boxed` is read like an answer. `answer`, "
        "`ground_truth` and `label` are other names of this field.",
    )
    form: Form = Field("auto", description="What the reference is. auto: as it looks like.")
    extract: Rule = Field(
        "auto", description="Which part of a text is the answer. auto: the first rule that applies."
    )
    tolerance: FiniteFloat | None = Field(
        None, ge=0, lt=1, description="Numbers are equal if they differ by at most this share of "
        "the reference. Null: they must be equal."
    )  # fmt: skip
    units: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None,
        description="The unit of a reference without one, e.g. `m/s`. An answer in another unit is "
        "converted.",
    )
    json_schema: dict[str, FiniteJson] | bool | None = Field(
        None,
        alias="schema",
        description="JSON Schema that the answer must be valid by, as well as equal to the "
        "reference if there is one.",
    )

    run: str | None = RUN_LABEL
    step: Step | None = STEP_LABEL
    uid: str | None = UID_LABEL

    @model_validator(mode="before")
    @classmethod
    def _has_one_reference(cls, fields: Any) -> Any:
        """Return the fields of a request with the reference under one name."""
        if not isinstance(fields, Mapping):
            return fields
        names = [name for name in REFERENCE_NAMES if fields.get(name) is not None]
        if not names:
            return fields
        first = fields[names[0]]
        values = first if isinstance(first, list) else [first]
        if not (1 <= len(values) <= MAX_REFERENCES and all(map(_is_reference, values))):
            raise ValueError(
                f"reference: give a text of 1 to {MAX_REFERENCE:,} characters, a number, true or "
                f"false, an object, or a list of 1 to {MAX_REFERENCES} equally right ones "
                f"(got {repr(first)[:60]})"
            )
        if any(fields[name] != first for name in names):
            raise ValueError(f"{' and '.join(names)} contradict: give one `reference`")
        rest = {name: value for name, value in fields.items() if name not in REFERENCE_NAMES}
        return {**rest, "reference": first}

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.reference is None and self.json_schema is None:
            raise ValueError("give a `reference`, or a `schema`")
        if self.json_schema is not None and self.form not in {"auto", "json"}:
            raise ValueError(f"schema: for `form: json` (got {self.form!r})")
        if self.units is not None and self.form not in {"auto", "number"}:
            raise ValueError(f"units: for `form: number` (got {self.form!r})")
        for name, value in (("reference", self.reference), ("schema", self.json_schema)):
            if isinstance(value, dict) and len(json.dumps(value)) > MAX_REFERENCE:
                raise ValueError(f"{name}: more than {MAX_REFERENCE:,} characters of JSON")
        return self

    @property
    def references(self) -> list[Any]:
        """The equally right references; one that is missing is null."""
        return self.reference if isinstance(self.reference, list) else [self.reference]


def _is_reference(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip()) and len(value) <= MAX_REFERENCE
    return isinstance(value, int | dict) or (isinstance(value, float) and math.isfinite(value))


class AnswersScore(Score):
    """The score of an answer: 1 if it is right, else 0.

    `details` has the `form`, the `rule` that took the answer, the `answer` and the `reference` as
    they were compared, and what each checker found.
    """

    cause: AnswersCause | ErrorKind | str | None = cause_field()


#: Fields of a row that a request has as well, and columns that have the reference.
_OPTIONS = ("form", "extract", "tolerance", "units", "schema")
_COLUMNS = (*REFERENCE_NAMES, "expected_answer", "reference_answer")


def fields_of_truth(truth: Any, row: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the fields of a request that a truth of a data set stands for.

    Args:
        truth: A reference; or an object, or its JSON, with it in a column and further fields.
        row: Further fields, used where the object does not have them.

    Raises:
        InvalidRequest: An object has no such column, and is not said to be JSON.
    """
    found = parsed(truth) if isinstance(truth, str) and truth.lstrip()[:1] == "{" else truth
    options = given(row or {}, _OPTIONS)
    if not isinstance(found, Mapping):
        return {**options, "reference": plain(truth)}
    options |= plain(given(found, _OPTIONS))
    names = [*given(found, _COLUMNS)]
    if names:
        return {**options, "reference": plain(found[names[0]])}
    if isinstance(truth, Mapping) and options.get("form") != "json" and "schema" not in options:
        raise InvalidRequest(
            f"reference: give one of the columns {', '.join(_COLUMNS)} "
            f"(got {', '.join(found)[:100]}); with `form: json`, the object is the reference"
        )
    return {**options, "reference": plain(truth)}
