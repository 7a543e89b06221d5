"""Models of the code service's `POST /run_code` and `POST /submit`: SandboxFusion's wire format.

Only what Python programs need. As in SandboxFusion, unknown fields are ignored. Known fields that
this service does not support, and that would change the result, are rejected.
"""

from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    model_validator,
)

from .code import MAX_PROGRAM

#: A program, or a model's output.
Text = Annotated[str, StringConstraints(max_length=MAX_PROGRAM)]


def _reject_files(value: object) -> object:
    if value:
        raise ValueError("this service stores no files; omit this field")
    return value


def _reject_code(value: str | None) -> str | None:
    if value is not None:
        raise ValueError("rejected, as it would run in the service itself; omit this field")
    return value


class _Request(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class RunCodeRequest(_Request):
    """A program to run once, and what it reads."""

    code: Text
    language: Literal["python"]
    stdin: str | None = None
    run_timeout: float = Field(
        10.0, gt=0, description="Seconds of CPU time, and twice as many of wall time."
    )
    compile_timeout: float = Field(10.0, description="Ignored: Python is not compiled.")
    memory_limit_MB: int = Field(  # noqa: N815 - SandboxFusion's name
        -1,
        description="MiB of memory in addition to the interpreter's own; below 1: the default of "
        "`limits.memory_mb`.",
    )
    files: Annotated[dict[str, JsonValue], AfterValidator(_reject_files)] = {}
    fetch_files: Annotated[list[str], AfterValidator(_reject_files)] = []


class CommandRunResult(BaseModel):
    """How a program ended.

    Attributes:
        execution_time: Seconds of wall time.
        cpu_time: Seconds of CPU time.
        return_code: As in Python's `subprocess`: negative for a signal; null if the time was up.
    """

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    cpu_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeResponse(BaseModel):
    """The result of a run. An internal failure is an HTTP error, and none of these statuses."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


class SubmitConfig(_Request):
    """How a submission is judged. The suffix `Dataset` of `dataset_type` may be omitted."""

    dataset_type: Literal[
        "CommonOJDataset", "CommonOJ", "LiveCodeBenchDataset", "LiveCodeBench"
    ] = Field(description="SandboxFusion's other types are not supported.")
    language: Literal["python"] | None = None
    run_timeout: float | None = Field(
        None, gt=0, description="Seconds of CPU time per test. Default: 20; for LiveCodeBench 6."
    )
    provided_data: dict[str, JsonValue] = Field(description="A row of the dataset, with `test`.")
    custom_extract_logic: Annotated[str | None, AfterValidator(_reject_code)] = None
    extra: dict[str, JsonValue] = Field(
        {}, description="`run_all_cases`: whether to continue after the first failure."
    )

    @model_validator(mode="after")
    def _common_oj_has_language(self) -> Self:
        if self.dataset_type.startswith("CommonOJ") and self.language is None:
            raise ValueError("CommonOJDataset requires a language; give 'python'")
        return self


class SubmitRequest(_Request):
    """A model's output for a problem, and the tests of the problem."""

    dataset: str
    id: int | str
    completion: Text
    config: SubmitConfig


class StdioTest(BaseModel):
    """One test of `CommonOJDataset`. Files as input or output are not supported."""

    model_config = ConfigDict(extra="forbid")

    class Input(BaseModel):
        model_config = ConfigDict(extra="forbid")
        stdin: str

    class Output(BaseModel):
        model_config = ConfigDict(extra="forbid")
        stdout: str

    input: Input
    output: Output


class EvalTestCase(BaseModel):
    """The result of one test. `exec_info` has the beginning of the program's output."""

    passed: bool
    exec_info: RunCodeResponse
    test_info: dict[str, JsonValue] | None = None


class EvalResult(BaseModel):
    """The result of a submission: `accepted` if all tests passed."""

    id: int | str
    accepted: bool
    extracted_code: str
    full_code: str | None = None
    test_code: str | None = None
    tests: list[EvalTestCase]
    extracted_type: None = None
    extra: dict[str, JsonValue] | None = None
