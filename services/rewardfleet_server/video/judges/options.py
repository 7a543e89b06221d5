"""The `backend_kwargs` of requests."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, JsonValue, PlainValidator

from rewardfleet.wire.validation import validate
from rewardfleet_server.video.judges.score_parser import Scale, ScoreMode, prompt_scale
from rewardfleet_server.video.prompts import Prompt

#: The prompt of a template, which is a text.
RequestedPrompt = Annotated[Prompt, PlainValidator(Prompt)]


class JudgeOptions(BaseModel):
    """The options that every judge takes, as in the original LIBERO reward server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: What a number without a unit means; None and `auto` are the prompt's own scale. It has no
    #: effect where no text is parsed.
    score_mode: ScoreMode | None = None

    @classmethod
    def of(cls, backend_kwargs: Mapping[str, JsonValue]) -> Self:
        """Return the options of a request; raise InvalidRequest if they are not accepted."""
        return validate(cls, backend_kwargs, prefix="backend_kwargs: ")


class PromptOptions(JudgeOptions):
    """The options of judges that prompt a model."""

    prompt_template: RequestedPrompt | None = None  #: replaces the judge's prompt

    def mode(self, prompt: Prompt, *, is_percentage: bool) -> Scale:
        """Return what a number without a unit means: as requested, or else as the prompt says.

        Args:
            is_percentage: Whether it is known of the prompt that it asks for a percentage.
        """
        if self.score_mode in {None, "auto"}:
            return "percentage" if is_percentage else prompt_scale(prompt.template)
        return self.score_mode
