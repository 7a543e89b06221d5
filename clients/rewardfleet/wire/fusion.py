"""`POST /run_code` and `POST /submit` of the code service: SandboxFusion's wire format.

Only what Python programs need of it. As there, fields that are not known are passed over; what
is known and would change the answer is refused, not passed over.
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

Text = Annotated[str, StringConstraints(max_length=MAX_PROGRAM)]


def _none_of(value: object) -> object:
    if value:
        raise ValueError("this service keeps no files; leave it out")
    return value


def _no_code(value: str | None) -> str | None:
    if value is not None:
        raise ValueError("refused: it would be executed in the service; leave it out")
    return value


class _Request(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class RunCodeRequest(_Request):
    """A program to be run, and what it reads."""

    code: Text
    language: Literal["python"]
    stdin: str | None = None
    run_timeout: float = Field(
        10.0, gt=0, description="Seconds of CPU, and twice as many by the clock."
    )
    compile_timeout: float = Field(10.0, description="Not used: Python is not compiled.")
    memory_limit_MB: int = Field(  # noqa: N815 - their name
        -1, description="MiB beside the interpreter's; below 1: this service's default."
    )
    files: Annotated[dict[str, JsonValue], AfterValidator(_none_of)] = {}
    fetch_files: Annotated[list[str], AfterValidator(_none_of)] = []


class CommandRunResult(BaseModel):
    """How the program ended.

    Attributes:
        execution_time, cpu_time: Seconds.
        return_code: As Python's `subprocess` has it; null where time was up.
    """

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    cpu_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeResponse(BaseModel):
    """How a run went. What fails on our side is an HTTP error, and none of these statuses."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


class SubmitConfig(_Request):
    """How a submission is judged. `dataset_type` may do without its last word, `Dataset`."""

    dataset_type: Literal[
        "CommonOJDataset", "CommonOJ", "LiveCodeBenchDataset", "LiveCodeBench"
    ] = Field(description="The data sets that SandboxFusion knows by name are not here.")
    language: Literal["python"] | None = None
    run_timeout: float | None = Field(
        None, gt=0, description="Seconds of CPU of a test; by default 20, of LiveCodeBench 6."
    )
    provided_data: dict[str, JsonValue] = Field(description="A row of the data set, with `test`.")
    custom_extract_logic: Annotated[str | None, AfterValidator(_no_code)] = None
    extra: dict[str, JsonValue] = Field(
        {}, description="`run_all_cases`: go on after the first failure."
    )

    @model_validator(mode="after")
    def _language_is_said(self) -> Self:
        if self.dataset_type.startswith("CommonOJ") and self.language is None:
            raise ValueError("CommonOJDataset asks for a language; give 'python'")
        return self


class SubmitRequest(_Request):
    """A model's answer to a problem, and the tests of the problem."""

    dataset: str
    id: int | str
    completion: Text
    config: SubmitConfig


class StdioFiles(BaseModel):
    """A test of `CommonOJDataset`, where other names would be files."""

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
    """How one test went. `exec_info` has the heads of what the program wrote."""

    passed: bool
    exec_info: RunCodeResponse
    test_info: dict[str, JsonValue] | None = None


class EvalResult(BaseModel):
    """How a submission went: accepted where all tests are passed."""

    id: int | str
    accepted: bool
    extracted_code: str
    full_code: str | None = None
    test_code: str | None = None
    tests: list[EvalTestCase]
    extracted_type: None = None
    extra: dict[str, JsonValue] | None = None
