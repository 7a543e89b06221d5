"""Models of the code service's `POST /run_code` and `POST /submit`: SandboxFusion's wire format.

Only what Python programs need. As in SandboxFusion, unknown fields are ignored. Known fields that
this service does not support, and that would change the result, are rejected.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, JsonValue, WithJsonSchema, model_validator

from .policy_text import PolicyAnswer, PolicyText
from .score import ForeignRequest, JsonSchema, having


def _reject_files(value: object) -> object:
    if value:
        raise ValueError("this service stores no files; omit this field")
    return value


def _reject_code(value: str | None) -> str | None:
    if value is not None:
        raise ValueError("rejected, as it would run in the service itself; omit this field")
    return value


class RunCodeRequest(ForeignRequest):
    """A program to run once, and what it reads."""

    code: PolicyText = Field(description="The program.")
    language: Literal["python"] = Field(description="The language of the program.")
    stdin: str | None = Field(None, description="Text on its standard input; null: nothing.")
    run_timeout: float = Field(10.0, gt=0, description="Seconds of CPU time; of wall time, twice.")
    compile_timeout: float = Field(10.0, description="Ignored: Python is not compiled.")
    memory_limit_MB: int = Field(  # noqa: N815 - SandboxFusion's name
        -1,
        description="MiB of memory in addition to the interpreter's own; below 1: the default of "
        "`limits.memory_mb`.",
    )
    files: Annotated[dict[str, JsonValue], AfterValidator(_reject_files)] = Field(
        {}, description="Not supported: empty or omitted.", json_schema_extra={"maxProperties": 0}
    )
    fetch_files: Annotated[list[str], AfterValidator(_reject_files)] = Field(
        [], description="Not supported: empty or omitted.", json_schema_extra={"maxItems": 0}
    )


class CommandRunResult(BaseModel):
    """How a program ended."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"] = Field(
        description="Finished: it ended, whatever its exit status. This service sends no `Error`."
    )
    execution_time: float | None = Field(None, description="Seconds of wall time.")
    cpu_time: float | None = Field(None, description="Seconds of CPU time.")
    return_code: int | None = Field(
        None, description="As in Python's `subprocess`: negative for a signal; null if time was up."
    )
    stdout: str | None = Field(None, description="Standard output.")
    stderr: str | None = Field(None, description="Standard error.")


class RunCodeResponse(BaseModel):
    """The result of a run. An internal failure is an HTTP error, and none of these statuses."""

    status: Literal["Success", "Failed", "SandboxError"] = Field(
        description="Success: exit status 0. This service sends no `SandboxError`."
    )
    message: str = Field("", description="Always empty.")
    compile_result: CommandRunResult | None = Field(None, description="Always null.")
    run_result: CommandRunResult | None = Field(None, description="How the program ended.")
    executor_pod_name: str | None = Field(None, description="Always null.")
    files: dict[str, str] = Field({}, description="Always empty.")


_IS_COMMON_OJ: JsonSchema = {"properties": {"dataset_type": {"pattern": "^CommonOJ"}}}
_TEST: JsonSchema = {"test": {"type": ["string", "array", "object"]}}
_HAS_A_TEST: JsonSchema = {"properties": _TEST, "required": ["test"]}


class SubmitConfig(
    ForeignRequest, json_schema_extra={"if": _IS_COMMON_OJ, "then": having("language", "python")}
):
    """How a submission is judged. The suffix `Dataset` of `dataset_type` may be omitted."""

    dataset_type: Literal[
        "CommonOJDataset", "CommonOJ", "LiveCodeBenchDataset", "LiveCodeBench"
    ] = Field(description="SandboxFusion's other types are not supported.")
    language: Literal["python"] | None = Field(
        None, description="The language of the program; required by `CommonOJDataset`."
    )
    run_timeout: float | None = Field(
        None, gt=0, description="Seconds of CPU time per test. Default: 20; for LiveCodeBench 6."
    )
    provided_data: dict[str, JsonValue] = Field(
        description="A row of the dataset, with `test`.", json_schema_extra=_HAS_A_TEST
    )
    custom_extract_logic: Annotated[
        str | None, AfterValidator(_reject_code), WithJsonSchema({"type": "null"})
    ] = Field(None, description="Not supported: null or omitted.")
    extra: dict[str, JsonValue] = Field(
        {}, description="`run_all_cases`: whether to continue after the first failure."
    )

    @model_validator(mode="after")
    def _common_oj_has_language(self) -> Self:
        if self.dataset_type.startswith("CommonOJ") and self.language is None:
            raise ValueError("CommonOJDataset requires a language; give 'python'")
        return self


class SubmitRequest(ForeignRequest):
    """A model's output for a problem, and the tests of the problem."""

    dataset: str = Field(description="Ignored: the tests are in `config.provided_data`.")
    id: int | str = Field(description="Returned in the response.")
    completion: PolicyAnswer = Field(description="The program, or a model's text with it.")
    config: SubmitConfig = Field(description="The tests, and how the submission is judged.")


class StdioTest(BaseModel, extra="forbid"):
    """One test of `CommonOJDataset`. Files as input or output are not supported."""

    class Input(BaseModel, extra="forbid"):
        """What the program reads."""

        stdin: str = Field(description="Text on its standard input.")

    class Output(BaseModel, extra="forbid"):
        """What the program must print."""

        stdout: str = Field(description="Expected standard output.")

    input: Input = Field(description="What the program reads.")
    output: Output = Field(description="What the program must print.")


class EvalTestCase(BaseModel):
    """The result of one test. `exec_info` has the beginning of the program's output."""

    passed: bool = Field(description="Whether the verdict is `accepted`.")
    exec_info: RunCodeResponse = Field(description="The run, with 1000 bytes of its outputs.")
    test_info: dict[str, JsonValue] | None = Field(None, description="Null for LiveCodeBench.")


class EvalResult(BaseModel):
    """The result of a submission: `accepted` if all tests passed."""

    id: int | str = Field(description="The `id` of the request.")
    accepted: bool = Field(description="Whether all tests passed.")
    extracted_code: str = Field(description="The program that was extracted from `completion`.")
    full_code: str | None = Field(None, description="The program for LiveCodeBench, else null.")
    test_code: str | None = Field(None, description="Always null.")
    tests: list[EvalTestCase] = Field(
        description="One per test, up to the first failure unless `run_all_cases`. One for all "
        "tests of LiveCodeBench."
    )
    extracted_type: None = Field(None, description="Always null.")
    extra: dict[str, JsonValue] | None = Field(
        None, description="`isolation` and `suspicions`, as in the response of `/score`."
    )
