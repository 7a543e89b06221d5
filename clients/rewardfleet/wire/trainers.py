"""Models of the routes that trainers call in their own wire formats; see docs/wire-formats.md.

Unknown fields are ignored, or returned where the format says so. What a policy wrote is always
scored; what the caller wrote may be invalid.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, FiniteFloat, JsonValue, RootModel, model_validator

from .errors import ErrorKind
from .policy_text import POLICY_FIELDS
from .score import MAX_BATCH_ITEMS, ForeignRequest, Response

#: The fields of these formats that have a policy's text, or parts of it.
TEXT_FIELDS = POLICY_FIELDS | {
    "query", "text", "content", "message", "arguments", "name", "refusal"
}  # fmt: skip

#: NeMo Gym's names of failures; a name with a colon is this project's.
GYM_FAILURE_KINDS: dict[ErrorKind, str] = {
    ErrorKind.ABSTAINED: "judge_unparseable",
    ErrorKind.BACKEND_FAILED: "verifier_error",
    ErrorKind.INTERNAL: "verifier_error",
    ErrorKind.UNAVAILABLE: "provider_unavailable",
    ErrorKind.OVERLOADED: "rewardfleet:overloaded",
    ErrorKind.DEADLINE_EXCEEDED: "rewardfleet:deadline_exceeded",
}


class IgnoredRequest(ForeignRequest):
    """The beginning of a rollout or an episode. There is no state: all of it is ignored."""


class OpenRlhfRequest(ForeignRequest):
    """Samples of OpenRLHF; it sends lists of one, and before 0.11.1 also empty ones."""

    query: Annotated[list[str | None], Field(max_length=MAX_BATCH_ITEMS)] = Field(
        description="Prompt and response, decoded with special tokens. Null: no answer."
    )
    prompts: list[str] = Field(description="The prompts, with which the queries begin.")
    labels: list[JsonValue] = Field(description="The ground truths: one per query.")

    @model_validator(mode="after")
    def _are_of_one_length(self) -> Self:
        counts = [len(self.query), len(self.prompts), len(self.labels)]
        if len({*counts}) > 1:
            raise ValueError(
                "give one prompt and one label per query (got {} queries, {} prompts and {} "
                "labels)".format(*counts)
            )
        return self


class OpenRlhfResponse(Response):
    """One reward per query."""

    rewards: list[FiniteFloat] = Field(description="The scores.")
    scores: list[FiniteFloat] = Field(description="The same, which OpenRLHF filters by.")
    extra_logs: dict[str, list[FiniteFloat]] = Field(
        description="By name, for OpenRLHF's log: the components that all scores have, their "
        "details as `details/NAME`, and for each cause of the service whether it is a score's "
        "(1 or 0), as `cause/wrong_answer`."
    )


class SlimeRequest(ForeignRequest):
    """A sample of slime."""

    response: str | None = Field(description="The response. Null: no answer.")
    label: JsonValue = Field(description="The ground truth.")


class SlimeReward(RootModel[FiniteFloat]):
    """The reward, as a number."""


class GymSeedResponse(Response):
    """Empty: there is no session."""


class GymResponse(ForeignRequest, extra="allow"):
    """What the policy answered, in the format of OpenAI's responses."""

    output: list[dict[str, JsonValue]] = Field(
        description="Items. The texts of the assistant's messages are the response; for the tools "
        "service, with its items `function_call`."
    )

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The items as messages: the assistant's with their calls, and whose the others are."""
        messages: list[dict[str, Any]] = []
        for item in self.output:
            kind, role = item.get("type", "message"), item.get("role", "assistant")
            if kind == "message":
                messages.append({"role": role, "content": item.get("content")})
            elif kind == "reasoning":  # a policy that only thinks has written something
                messages.append({"role": "assistant", "reasoning": kind})
            elif kind == "function_call":
                messages.append({"role": "assistant", "tool_calls": [item]})
            elif str(kind).endswith("_output"):
                messages.append({"role": "tool"})
        return messages


class GymVerifyRequest(ForeignRequest, extra="allow"):
    """A rollout to verify, with the fields of its row."""

    responses_create_params: dict[str, JsonValue] = Field(description="Returned as it is.")
    response: GymResponse = Field(description="What the policy answered.")


class GymVerifyResponse(BaseModel, extra="allow"):
    """The request with the reward, or with the reason why the sample must be masked."""

    responses_create_params: dict[str, JsonValue] = Field(description="As in the request.")
    response: dict[str, JsonValue] = Field(description="As in the request.")
    reward: FiniteFloat = Field(description="The score. 0 if the sample is masked.")
    reward_components: dict[str, FiniteFloat] = Field({}, description="Addends of the reward.")
    reward_details: dict[str, FiniteFloat | str] = Field({}, description="Other figures, by name.")
    reward_cause: str | None = Field(
        None, description="Why the reward is below its maximum; see docs/reference/causes.md."
    )
    mask_sample: bool = Field(
        False, description="Whether there is no reward; so is `instance_config.mask_sample`."
    )
    failure_kind: str | None = Field(None, description="NeMo Gym's name of the failure.")
    failure_reason: str | None = Field(None, description="Why there is no reward.")


#: The fields of an earlier verification, which a request to verify again contains.
GYM_RESULT_FIELDS = {"_ng_failure_class", "_ng_failure_judge_error"} | (
    GymVerifyResponse.model_fields.keys() - GymVerifyRequest.model_fields.keys()
)


class GymResult(ForeignRequest):
    """A response of `/verify`, without what the mean reward does not need."""

    reward: FiniteFloat | None = Field(None, description="The reward.")
    mask_sample: bool | None = Field(None, description="Whether it does not count.")


class GymMetricsRequest(ForeignRequest):
    """The rollouts of an agent, for their mean reward."""

    verify_responses: list[GymResult] = Field(description="Responses of `/verify`.")

    @property
    def rewards(self) -> list[float]:
        """The rewards of the samples that are not masked."""
        valid = (each for each in self.verify_responses if not each.mask_sample)
        return [each.reward for each in valid if each.reward is not None]


class GymMetrics(Response):
    """Metrics of an agent's rollouts. Masked samples do not count."""

    agent_metrics: dict[str, FiniteFloat] = Field(
        description="`mean/reward`, and `masked`: the share of samples that are masked."
    )
    key_metrics: dict[str, FiniteFloat] = Field(description="`mean/reward`.")
    group_level_metrics: list[dict[str, JsonValue]] = Field([], description="Always empty.")


class GymReverifyMode(RootModel[Literal["stateless"]]):
    """That a response can be verified again at any time."""


class OpenEnvStep(ForeignRequest):
    """The only step of an episode."""

    action: dict[str, JsonValue] = Field(
        description="The fields of an item of `/score`; or `response`, `completion`, `code` or "
        "`message` with the policy's text, and a ground truth."
    )
    timeout_s: float | None = Field(None, gt=0, description="Deadline in s, at most `deadline_s`.")


class OpenEnvResult(Response):
    """The state after a reset or a step."""

    observation: dict[str, JsonValue] = Field(
        description="After a step `status`, `components`, `details` and `cause` of the score."
    )
    reward: FiniteFloat | None = Field(
        None, description="The score; null after a reset, and if the judge abstained."
    )
    done: bool = Field(description="Whether the episode is over: after the first step.")
