"""`POST /score` and `POST /score/batch` of the code service."""

import json
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, JsonValue, StringConstraints

from .score import Request, Response, Score, Timing

#: Characters of a program, and of an assert or a setup.
MAX_PROGRAM = 1_000_000
#: The most tests of one submission. None at all is an error: what passed nothing proves nothing.
MAX_TESTS = 1_000


def _without_nul(text: str) -> str:
    place = text.find("\0")
    if place >= 0:
        raise ValueError(f"holds a NUL character (at {place}), which no Python source may")
    return text


Source = Annotated[
    str, StringConstraints(max_length=MAX_PROGRAM, min_length=1), AfterValidator(_without_nul)
]


def _finite(value: JsonValue) -> JsonValue:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("NaN and infinities are not JSON") from None
    return value


FiniteJson = Annotated[JsonValue, AfterValidator(_finite)]

Setup = Annotated[
    str,
    StringConstraints(max_length=MAX_PROGRAM),
    AfterValidator(_without_nul),
    Field(description="Source that is run before the program, e.g. imports that it relies on."),
]


class StdioCase(Request):
    """What the program reads, and what it shall print."""

    stdin: str = ""
    stdout: str


class StdioTests(Request):
    """The program is run once a case."""

    kind: Literal["stdio"]
    setup: Setup = ""
    cases: list[StdioCase] = Field(min_length=1, max_length=MAX_TESTS)
    checker: Literal["exact", "tokens", "float"] = Field(
        "tokens",
        description="exact: the same text, but for line ends and those at its end. tokens: the "
        "same words, whatever white space is between them. float: tokens, and numbers may differ "
        "by `tolerance`.",
    )
    tolerance: FiniteFloat = Field(
        1e-6, ge=0, le=1, description="Of the checker `float`: absolute, or relative."
    )
    ignore_case: bool = Field(False, description="Whether YES and Yes are the same.")


class FunctionalCase(Request):
    """What a function is called with, and what it shall return."""

    args: list[FiniteJson]
    expected: FiniteJson


class FunctionalTests(Request):
    """A function of the program, or a method of its class `Solution`, is called once a case."""

    kind: Literal["functional"]
    fn_name: str = Field(
        pattern=r"^[^\W\d]\w*$", max_length=200, description="The function's or method's name."
    )
    setup: Setup = ""
    cases: list[FunctionalCase] = Field(min_length=1, max_length=MAX_TESTS)


class AssertTests(Request):
    """Asserts that hold when the program is right."""

    kind: Literal["asserts"]
    setup: Setup = ""
    cases: list[Source] = Field(
        min_length=1,
        max_length=MAX_TESTS,
        description="One `assert` statement each; or a script that holds some, which is one test.",
    )
    tolerance: FiniteFloat = Field(
        0.0, ge=0, le=1, description="Of floating-point literals: absolute, or relative."
    )
    single_run: bool = Field(
        False,
        description="Whether all are tried in one run of the program, within its limits. "
        "Otherwise each has a run of its own.",
    )


class DatasetTests(Request):
    """A raw row of a data set, which is read as one of the other kinds."""

    # pandas has NaN where a row has no value.
    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="constants")

    kind: Literal["dataset"]
    dataset: Literal["code_contests", "livecodebench", "mbppplus", "apps"] = Field(
        description="How the row is read. TACO's rows are read as those of `apps`."
    )
    row: dict[str, JsonValue] = Field(
        description="As the data set, CTRL or SandboxFusion has it; columns that are not needed "
        "are passed over. Its `time_limit` is `limits.cpu_s`, where the request gives none."
    )
    first: int | None = Field(
        None, ge=1, description="How many of its tests are used; null: all. CTRL took 10."
    )


#: Tests that say themselves what is run.
PlainTests = StdioTests | FunctionalTests | AssertTests
Tests = Annotated[PlainTests | DatasetTests, Field(discriminator="kind")]


class Limits(Request):
    """What one run of the program may take; the service has ceilings."""

    cpu_s: float = Field(10.0, gt=0, description="Seconds of CPU: the limit that verdicts hang on.")
    wall_s: float = Field(
        30.0, gt=0, description="Seconds by the clock: a backstop for programs that sleep."
    )
    memory_mb: int = Field(1024, ge=16, description="MiB of memory beside the interpreter's.")
    output_kb: int = Field(16_384, ge=1, description="KiB of standard output; likewise of error.")


class CodeRequest(Request):
    """One program to be judged by its tests."""

    revision: Source = Field(
        description="The program: plain, or in a fence of a text (```python … ```)."
    )
    tests: Tests
    critique: str | None = Field(
        None,
        max_length=MAX_PROGRAM,
        description="What led to the program. It must hold one overall judgment (`Overall "
        "judgment: Correct`, or Incorrect); else the score is 0, and nothing is run. Null: not "
        "checked.",
    )
    original_program: Source | None = Field(
        None,
        description="The program, or text, that the critique judged: it is run on the same tests "
        "to learn whether the judgment was right (`components.judgment_correct`).",
    )
    original_passed: bool | None = Field(
        None, description="Whether it passes, where that is known: then it is not run."
    )
    mode: Literal["pass_rate", "all_pass"] = Field(
        "pass_rate",
        description="pass_rate: the score is the share of tests passed. all_pass: 1 or 0, and the "
        "tests after the first failure are skipped.",
    )
    limits: Limits = Limits()
    language: Literal["python"] = "python"


#: What a critique says overall of the program that it judges.
CritiqueJudgment = Literal["correct", "incorrect"]


class Outcome(StrEnum):
    """How one test went."""

    ACCEPTED = "accepted"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    COMPILE_ERROR = "compile_error"
    EXITED_EARLY = "exited_early"  #: the program ended before it could be asked all
    SKIPPED = "skipped"  #: not run, as others before it failed or took too long


class Verdict(Response):
    """How one test went, and what it took."""

    verdict: Outcome
    verdict_by: Literal["service", "jail"] = Field(
        "service",
        description="jail: an assert that had to run beside the program, which could cheat it.",
    )
    cpu_ms: float = Field(0.0, description="Milliseconds of CPU that the run took.")
    wall_ms: float = Field(0.0, description="Milliseconds by the clock.")
    stdout: str = Field("", description="The first 1000 bytes of standard output.")
    stderr: str = Field(
        "", description="The first 1000 bytes of standard error; a long one's last."
    )


class CodeTiming(Timing):
    """Where the time of a submission went, in milliseconds. The last four make up `backend`."""

    fork: float = Field(0.0, description="Making processes.")
    run: float = Field(0.0, description="The program's own.")
    clean: float = Field(0.0, description="Taking away what it left.")
    judge: float = Field(0.0, description="Comparing, and the way to the jail and back.")


class CodeScore(Score):
    """A `Score` with a verdict for each test."""

    pass_rate: FiniteFloat | None = Field(None, description="The share of tests passed, in [0, 1].")
    verdicts: list[Verdict] = Field(default_factory=list, description="One a test, in order.")
    code: str = Field("", description="The program that was found in `revision`.")
    critique_valid: bool | None = Field(
        None, description="Whether the critique holds one overall judgment; null: there is none."
    )
    judgment: CritiqueJudgment | None = Field(None, description="What the critique says overall.")
    isolation: str = Field("", description="How the program was kept in: see `GET /readyz`.")
    suspicions: list[str] = Field(
        default_factory=list, description="What an honest program would not have done."
    )
    timing_ms: CodeTiming = Field(default_factory=CodeTiming)
