"""Models of the code service: `POST /score` and `POST /score/batch`."""

import keyword
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    TypeAdapter,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from .causes import CodeCause, cause_field
from .errors import ErrorKind, InvalidRequest
from .policy_text import PolicyAnswer, PolicyText
from .score import (
    RUN_LABEL,
    STEP_LABEL,
    UID_LABEL,
    FiniteJson,
    JsonSchema,
    Request,
    Response,
    Score,
    Step,
    Timing,
)
from .truth import given, is_missing, objects_around_tests, parsed, plain

#: Maximum number of tests per submission. At least one is required: passing none proves nothing.
MAX_TESTS = 1_000
_CaseT = TypeVar("_CaseT")
_Cases = Annotated[list[_CaseT], Field(min_length=1, max_length=MAX_TESTS)]


def _without_nul(text: str) -> str:
    if (position := text.find("\0")) >= 0:
        raise ValueError(
            f"contains a NUL character (at {position}), which is not allowed in Python source"
        )
    return text


_Python = Annotated[
    str,
    Field(max_length=1_000_000, json_schema_extra={"pattern": r"^[^\x00]*$"}),
    AfterValidator(_without_nul),
]
_Test = Annotated[_Python, Field(min_length=1)]
_Setup = Annotated[
    _Python,
    Field(description="Source code that runs before the program, e.g. imports that it relies on."),
]
_RowPrompt = Annotated[
    _Python,
    Field(
        description="Source code that precedes the program in its data set: imports, helper "
        "functions, and the signature that a completion continues."
    ),
]


def _without_keyword(expression: str) -> str:
    for word in filter(keyword.iskeyword, re.findall(r"\w+", expression)):
        raise ValueError(f"{word!r} is a keyword")
    return expression


_NAME = r"[^\W\d]\w*(?:\(\))?"
_EntryPoint = Annotated[
    str,
    Field(
        max_length=200,
        pattern=rf"^(?:{_NAME}(?:\.{_NAME})*)?$",
        description="What the tests call: the name of a function or class, or an expression of "
        "attributes and calls without arguments, such as `Solution().twoSum`. Empty: the tests "
        "name it themselves.",
        json_schema_extra={"not": {"pattern": rf"\b(?:{'|'.join(keyword.kwlist)})\b"}},
    ),
    AfterValidator(_without_keyword),
]


_CheckerName = Literal[
    "exact", "lines", "decimal_lines", "unordered_lines", "tokens", "unordered", "float",
    "sandbox_fusion", "code_contests", "codeforces", "apps", "apps_in_order", "taco",
]  # fmt: skip
_CHECKERS = (
    "exact: the same text; the kind of line ends and trailing newlines are ignored. lines: the "
    "same lines; white space at their ends is ignored. decimal_lines: LiveCodeBench's rule: like "
    "lines, without white space around them, and lines of equal numbers are equal. "
    "sandbox_fusion, code_contests, codeforces, apps, apps_in_order, taco: the rules of these "
    "runners, see docs/code-service.md. "
    "unordered_lines: the same lines in any order. tokens: the same words, separated by any white "
    "space. unordered: the same words in any order. float: like tokens, but a number may differ "
    "by `tolerance`, unless an integer is expected."
)
_Tolerance = Annotated[FiniteFloat, Field(ge=0, le=1)]
_TOLERANCE = "absolute, or relative to the expected number if that is above 1."
_RELATIVE = (
    "If given, a number may differ by `tolerance` plus this share of the expected number, as in "
    "numpy.isclose."
)
_IN_PLACE = (
    "Whether the answer is what the call leaves in an argument: the one that the prompt names "
    "(`modify nums in-place`), or the first list. So it is also if the prompt has `-> None`."
)
_ANY_ORDER = (
    "Whether the items of a returned list may have any order; nested: also those of lists in it."
)
_AnyOrder = bool | Literal["nested"]
_BOOL_IS_INT = "Whether True equals 1 and False equals 0, as in Python."
#: Where tests have values that a program gets or gives.
_VALUES = frozenset({"args", "kwargs", "expected", "input", "inputs", "output", "outputs"})


class StdioCase(Request):
    """One test: what the program reads, and what it must print."""

    stdin: str = Field("", description="Text on the program's standard input.")
    stdout: str = Field(description="Expected standard output, compared by `checker`.")


class CheckerProgram(Request):
    """A program that decides whether an output is right, for problems with many valid outputs.

    It is run as `checker INPUT OUTPUT ANSWER`: files with the test's `stdin`, with what the program
    printed, and with the test's `stdout`. It accepts the output with exit status 0, and rejects it
    with another one. Status 3, an exception, a signal or an exceeded limit means that it failed.
    """

    language: Literal["python", "cpp"] = Field(
        description="python: a script. cpp: C++17; requires a compiler where the service runs, and "
        "`testlib_path` if it includes `testlib.h`."
    )
    source: _Test = Field(description="The source code. Never give text that a policy wrote.")


_CHECKER_PROGRAM = (
    "Decides whether an output is right; `checker` and its options are then not used. The request "
    "is invalid if the program does not compile, or fails on a test's own `stdout` as the output."
)


def _check_one_checker(tests: Any) -> Any:
    # `tokens` is the default, which a client may send along.
    if tests.checker_program is not None and tests.checker not in {None, "tokens"}:
        raise ValueError("give `checker` or `checker_program`, not both")
    return tests


_ONE_CHECKER: JsonSchema = {
    "anyOf": [
        {"properties": {"checker_program": {"type": "null"}}},
        {"properties": {"checker": {"enum": ["tokens", None]}}},
    ]
}


class StdioTests(Request, json_schema_extra=_ONE_CHECKER):
    """Run the program once per case, and compare what it prints."""

    kind: Literal["stdio"] = Field(description="The kind of these tests.")
    setup: _Setup = ""
    cases: _Cases[StdioCase] = Field(description="The tests.")
    checker: _CheckerName = Field("tokens", description=_CHECKERS)
    tolerance: _Tolerance = Field(1e-6, description=f"Of the checker `float`: {_TOLERANCE}")
    relative_tolerance: _Tolerance | None = Field(None, description=_RELATIVE)
    ignore_case: bool = Field(False, description="Whether `YES` and `Yes` are equal.")
    checker_program: CheckerProgram | None = Field(None, description=_CHECKER_PROGRAM)

    _one_checker = model_validator(mode="after")(_check_one_checker)


class FunctionalCase(Request):
    """One test: the arguments of a call, and what it must return."""

    args: list[FiniteJson] = Field(description="Positional arguments.")
    expected: FiniteJson = Field(description="What the call must return. A tuple equals a list.")


class FunctionalTests(Request):
    """Call a function of the program, or a method of its class `Solution`, once per case.

    Values of LeetCode's types, and operations on a class: see docs/code-service.md.
    """

    kind: Literal["functional"] = Field(description="The kind of these tests.")
    fn_name: Annotated[str, Field(max_length=200, pattern=r"^[^\W\d]\w*$")] = Field(
        description="Name of the function or method.",
        json_schema_extra={"not": {"enum": list(keyword.kwlist)}},
    )
    setup: _Setup = ""
    prompt: _RowPrompt = ""
    cases: _Cases[FunctionalCase] = Field(description="The tests.")
    tolerance: _Tolerance = Field(
        0.0, description=f"Of expected numbers with a decimal point: {_TOLERANCE}"
    )
    relative_tolerance: _Tolerance | None = Field(None, description=_RELATIVE)
    bool_is_int: bool = Field(False, description=_BOOL_IS_INT)
    in_place: bool = Field(False, description=_IN_PLACE)
    any_order: _AnyOrder = Field(False, description=_ANY_ORDER)


_STRICT = "Whether a pass that the program could decide (`verdict_by: jail`) is a wrong answer."


class AssertTests(Request):
    """Evaluate assert statements, which must hold, with the names that the program defines."""

    kind: Literal["asserts"] = Field(description="The kind of these tests.")
    setup: _Setup = ""
    prompt: _RowPrompt = ""
    entry_point: _EntryPoint = ""
    cases: _Cases[_Test] = Field(
        description="Each is one `assert` statement, or a script or module of tests, which counts "
        "as one test. Functions and classes of tests are called as pytest and unittest do, and "
        "`check` is called with `entry_point`."
    )
    tolerance: _Tolerance = Field(0.0, description=f"Of expected float literals: {_TOLERANCE}")
    relative_tolerance: _Tolerance | None = Field(None, description=_RELATIVE)
    bool_is_int: bool = Field(False, description=_BOOL_IS_INT)
    single_run: bool = Field(
        False,
        description="Whether all cases are evaluated in one run of the program, within the limits "
        "of one run. Otherwise each case has its own run.",
    )
    strict: bool = Field(False, description=_STRICT)


_ROW = TypeAdapter(dict[str, JsonValue], config=ConfigDict(allow_inf_nan=True))


def _with_nan(row: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    # NaN is a missing value of pandas. In JSON, it is accepted. Else, the outermost model decides.
    return handler(row) if info.mode == "json" else _ROW.validate_python(row)


class DatasetTests(Request, json_schema_extra=_ONE_CHECKER):
    """Read a raw row of a dataset as one of the other kinds of tests."""

    kind: Literal["dataset"] = Field(description="The kind of these tests.")
    dataset: Literal[
        "code_contests", "livecodebench", "mbppplus", "apps", "codeforces", "cruxeval", "auto"
    ] = Field(
        description="The dataset of the row. Give `apps` for rows of TACO. auto: recognized by the "
        "row's columns; for the ground truths of trainers, see docs/wire-formats.md."
    )
    row: Annotated[dict[str, JsonValue], WrapValidator(_with_nan)] = Field(
        description="The row as in the dataset, in CTRL or in SandboxFusion; with `auto` also "
        "`ground_truth` alone, of any type. Columns that are not needed are ignored. Its "
        "`time_limit` is used as `limits.cpu_s` if the request gives none."
    )
    first: int | None = Field(None, ge=1, description="How many of its tests are used; null: all.")
    checker: _CheckerName | None = Field(
        None,
        description="How outputs are compared, as in `stdio`. Null, here and below: by the rule "
        "of the dataset; see docs/code-service.md.",
    )
    tolerance: _Tolerance | None = Field(None, description="As in the kind that it becomes.")
    relative_tolerance: _Tolerance | None = Field(None, description=_RELATIVE)
    ignore_case: bool | None = Field(None, description="Whether `YES` and `Yes` are equal.")
    bool_is_int: bool | None = Field(None, description=_BOOL_IS_INT)
    in_place: bool | None = Field(None, description=_IN_PLACE)
    any_order: _AnyOrder | None = Field(None, description=_ANY_ORDER)
    strict: bool | None = Field(None, description=_STRICT)
    checker_program: CheckerProgram | None = Field(
        None, description="As in `stdio`. Null: that of the row, unless `checker` is given."
    )
    check_reference: bool = Field(
        False,
        description="Whether the row's own solution is run first, once per set of tests. Tests "
        "that reject it are invalid.",
    )

    _one_checker = model_validator(mode="after")(_check_one_checker)


#: The names of these kinds, and that of dataset rows.
PLAIN_KINDS = ("stdio", "functional", "asserts")
_KINDS = (*PLAIN_KINDS, "dataset")
#: All kinds of tests except dataset rows, which are read as one of these.
PlainTests = StdioTests | FunctionalTests | AssertTests
Tests = Annotated[PlainTests | DatasetTests, Field(discriminator="kind")]


#: What `tests` may be, for messages.
_ACCEPTED = (
    "give {'kind': 'stdio', 'functional' or 'asserts', 'cases': …}, {'kind': 'dataset', 'dataset': "
    "'auto', 'row': …}, tests such as {'stdin': …, 'stdout': …} or a list of these, a row of a "
    "data set, asserts, or the JSON of one of these; see docs/code-service.md"
)


def check_values(tests: Any, name: str, *, is_value: bool = False) -> None:
    """Check that no object among the values of tests has a null, which a table may have added.

    Where a column of a table has objects, each gets the keys of all rows, with nulls. A program
    would get what nobody wrote. Elsewhere in a row, a null is what is not given.

    Raises:
        InvalidRequest: One has; the message has its place, which begins with `name`.
    """
    if isinstance(tests, Mapping):
        for key, each in tests.items():
            if is_value and each is None:
                raise InvalidRequest(
                    f"{name}.{key}: null in an object that a program gets or gives: a table gives "
                    "each object the keys of all rows; store the tests as JSON text"
                )
            check_values(each, f"{name}.{key}", is_value=is_value or key in _VALUES)
    elif isinstance(tests, list | tuple) or getattr(tests, "ndim", None):
        for index, each in enumerate(tests):
            check_values(each, f"{name}.{index}", is_value=is_value)


#: The fields of a request that an object with tests may have beside them, and those of them that
#: count beside the columns of tests as well.
TRUTH_FIELDS = ("critique", "original_program", "original_passed", "mode", "limits")
_BESIDE_COLUMNS = ("mode", "limits")


def fields_of_tests(truth: Any) -> dict[str, Any]:
    """Return the fields of a request that tests of any form stand for: the one reader of a truth.

    Those of a request stay as they are. Anything else is sent for the service to recognize: a row,
    a list of tests, a script of asserts, the JSON of these; or an object with them and further
    fields, of which those of the innermost one count. Lists are lists: see `plain`.

    Raises:
        InvalidRequest: They cannot be tests.
    """
    tests = parsed(truth)
    tests = tests if isinstance(tests, dict | list) else truth
    if isinstance(tests, DatasetTests):
        tests = tests.model_dump(exclude_unset=True)
    if not _is_of_request(tests):
        # A row has no `kind` or `cases`: these are tests of a request, with a mistake.
        is_request = isinstance(tests, Mapping) and {"kind", "cases"} & tests.keys()
        if is_request or not (isinstance(tests, str | list | Mapping) and tests):
            raise InvalidRequest(f"tests {repr(truth)[:100]}: {_ACCEPTED}")
        tests = {"kind": "dataset", "dataset": "auto", "row": {"ground_truth": tests}}
    if not (isinstance(tests, Mapping) and tests.get("dataset") == "auto"):
        return {"tests": tests}
    fields: dict[str, Any] = {}
    # The service reads the columns around them, and applies rules that are given.
    is_read_there = tests.keys() != {"kind", "dataset", "row"}
    for each in objects_around_tests(tests.get("row")):
        if _is_of_request(each):
            return {**fields, **({"tests": tests} if is_read_there else fields_of_tests(each))}
        fields |= given(each, TRUTH_FIELDS if "tests" in each else _BESIDE_COLUMNS)
        is_read_there |= not is_missing(each.get("time_limit"))
    return {**fields, "tests": tests}


def _is_of_request(tests: Any) -> bool:
    is_of_kind = isinstance(tests, Mapping) and tests.get("kind") in _KINDS
    return is_of_kind or isinstance(tests, BaseModel)


class Limits(Request):
    """Limits of one run of the program. The service's settings set their ceilings."""

    cpu_s: float = Field(
        10.0,
        gt=0,
        description="Seconds of CPU time, which determines verdicts. At most `max_cpu_s`.",
    )
    wall_s: float = Field(
        30.0,
        gt=0,
        description="Seconds of wall time, for programs that sleep. At most `max_wall_s`.",
    )
    memory_mb: int = Field(
        1024, ge=16, description="MiB besides the interpreter's own. At most `max_memory_mb`."
    )
    output_kb: int = Field(
        16_384, ge=1, description="KiB of standard output, and of standard error. At most 65,536."
    )


#: Tests that are not those of a request.
_FORMS: JsonSchema = {
    "type": ["array", "object", "string"],
    "not": {"anyOf": [{"required": ["kind"]}, {"required": ["cases"]}]},
}


def _with_forms(schema: dict[str, Any]) -> None:
    """Add the other name of the program, and the other forms of tests, to the schema."""
    properties = schema["properties"]
    properties["program"] = {**properties["revision"], "description": "Another name of `revision`."}
    tests = properties["tests"]
    properties["tests"] = {"description": tests.pop("description"), "anyOf": [tests, _FORMS]}
    schema["required"].remove("revision")
    schema["oneOf"] = [{"required": ["revision"]}, {"required": ["program"]}]


class CodeRequest(Request, json_schema_extra=_with_forms):
    """One program, and the tests to score it on."""

    revision: PolicyAnswer = Field(
        description="The program: source code, or text with the program in a code fence "
        "(```python … ```). Any text is scored: one without a program, or of more than 1,000,000 "
        "characters, scores 0 with `compile_error`. Null, or an empty list: it is not scored, "
        "with the cause `no_answer`."
    )
    tests: Tests = Field(
        description="The tests: `kind` selects one of these models. Or tests in any form of "
        "docs/wire-formats.md, also as JSON text, where an object may have further fields of a "
        "request, such as `mode`, beside them."
    )
    critique: PolicyText | None = Field(
        None,
        description="The critique that the program was revised from. It must contain exactly one "
        "overall judgment (`Overall judgment: Correct` or `Incorrect`); otherwise the score is 0 "
        "and nothing is run. Null: no critique is checked.",
    )
    original_program: PolicyText | None = Field(
        None,
        description="The program, or text with it, that the critique judged. It is run on the "
        "same tests to determine whether the judgment is right (`details.judgment_correct`).",
    )
    original_passed: bool | None = Field(
        None, description="Whether the original program passes all tests. If known, it is not run."
    )
    mode: Literal["pass_rate", "all_pass"] = Field(
        "pass_rate",
        description="pass_rate: the score is the share of tests passed. all_pass: the score is 1 "
        "or 0, and the tests after the first failure are skipped.",
    )
    limits: Limits = Field(Limits(), description="Limits of each run of the program.")
    language: Literal["python"] = Field("python", description="The language of the program.")
    run: str | None = RUN_LABEL
    step: Step | None = STEP_LABEL
    uid: str | None = UID_LABEL

    @model_validator(mode="before")
    @classmethod
    def _read_truth(cls, given: Any, info: ValidationInfo) -> Any:
        """Read tests of any form. What is beside them counts where the request does not say."""
        if not isinstance(given, Mapping):
            return given
        fields = dict(given)
        if "program" in fields:
            if "revision" in fields:
                raise ValueError("program: another name of `revision`; give one of them")
            fields["revision"] = fields.pop("program")
        if "tests" not in fields:
            return fields
        tests = fields.pop("tests")
        try:
            read = fields_of_tests(tests if info.mode == "json" else plain(tests))
        except InvalidRequest as error:
            raise ValueError(error.detail) from None
        missing = {name for name in read if fields.get(name) is None}
        return {**fields, **{name: read[name] for name in missing}}


CritiqueJudgment = Literal["correct", "incorrect"]


class Outcome(StrEnum):
    """The outcome of one test."""

    ACCEPTED = "accepted"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    ANSWER_TOO_LARGE = "answer_too_large"
    COMPILE_ERROR = "compile_error"
    EXITED_EARLY = "exited_early"  #: the program ended before it had answered all checks
    SKIPPED = "skipped"  #: not run, because a test before it failed or the time was up
    LEFT_OUT = "left_out"  #: not run and not counted, because it passes without a program


DecidedBy = Literal["service", "jail", "checker"]


class Verdict(Response):
    """The outcome of one test, its time, and the beginning of its output."""

    verdict: Outcome | str = Field(
        union_mode="left_to_right",
        description="exited_early: the program ended before it had answered. skipped: it was not "
        "run, because a test before it failed or the time was used up. left_out: it does not "
        "count, because it passes without a program. Newer services may have further ones.",
    )
    verdict_by: DecidedBy | str = Field(
        "service",
        union_mode="left_to_right",
        description="service: the test was decided outside the program's process, by the service "
        "or by a process of the tests. jail: a class of the program decided a comparison, or the "
        "test looks into the program's process, where the program can tamper with it. checker: "
        "by the request's `checker_program`. Newer services may have further ones.",
    )
    checker_message: str = Field(
        "",
        description="The first 200 characters that the `checker_program` printed. They may tell "
        "the expected output.",
    )
    returned: str = Field(
        "",
        description="Of a wrong answer, the value that the program gave: the first 200 characters "
        "of its JSON, where a tuple is an object with `tuple`, and so on.",
    )
    checks: int = Field(0, ge=0, description="How many checks were evaluated.")
    missing_module: str = Field(
        "",
        description="The module that the program imports and that is not installed, if the test "
        "failed for this reason.",
    )
    refused_by_jail: str = Field(
        "", description="The path or the call that the jail refused, if the test failed for that."
    )
    cpu_ms: float = Field(0.0, description="Milliseconds of CPU time of the run.")
    wall_ms: float = Field(0.0, description="Milliseconds of wall time of the run.")
    stdout: str = Field("", description="The first 1000 bytes of standard output.")
    stderr: str = Field("", description="Standard error: at most its first and its last 500 bytes.")


class CodeTiming(Timing):
    """Where the time of a submission went, in milliseconds.

    `fork`, `run`, `clean`, `check` and `compare` add up to `backend`.
    """

    fork: float = Field(0.0, description="Creating processes.")
    run: float = Field(0.0, description="Running the program.")
    clean: float = Field(0.0, description="Removing what the runs left behind.")
    check: float = Field(0.0, description="Running the checker program.")
    compare: float = Field(0.0, description="Comparing, and communicating with the sandbox.")


class CodeScore(Score):
    """A `Score` with one verdict per test."""

    score: FiniteFloat | None = Field(ge=0, le=1, description="In [0, 1]; null if there is none.")
    cause: CodeCause | ErrorKind | str | None = cause_field()
    pass_rate: FiniteFloat | None = Field(
        None, ge=0, le=1, description="The share of tests passed."
    )
    verdicts: list[Verdict] = Field(default_factory=list, description="One per test, in order.")
    code: str = Field("", description="The program that was extracted from `revision`.")
    critique_valid: bool | None = Field(
        None,
        description="Whether the critique contains exactly one overall judgment; null if the "
        "request has no critique.",
    )
    judgment: CritiqueJudgment | None = Field(None, description="The critique's overall judgment.")
    isolation: str = Field("", description="How the program was isolated; see `GET /readyz`.")
    suspicions: list[str] = Field(
        default_factory=list, description="Signs of tampering, or of tests that a constant passes."
    )
    left_out: list[str] = Field(
        default_factory=list, description="Tests that do not count: they pass without a program."
    )
    timing_ms: CodeTiming = Field(default_factory=CodeTiming, description="Milliseconds by stage.")
