"""What a vision-language model is asked."""

import hashlib
from dataclasses import dataclass
from string import Formatter
from typing import Self

#: The fields of a template, both the task's text (the second is the seed's name for it).
FIELDS = ("task", "task_instruction")

_MAX_TEMPLATE = 20_000


@dataclass(frozen=True)
class Prompt:
    """A template whose only fields are those in `FIELDS`.

    Attributes:
        template: Text with `{task}`; braces that are meant as such are doubled.
    """

    template: str

    @classmethod
    def of(cls, template: str) -> Self:
        """Check a template. It may name the task, and nothing that hangs on it.

        Raises:
            ValueError: It has other fields, attributes, indices, formats or single braces.
        """
        if not template.strip() or len(template) > _MAX_TEMPLATE:
            raise ValueError(f"a prompt template has 1 to {_MAX_TEMPLATE} characters")
        try:
            parts = list(Formatter().parse(template))
        except ValueError as error:
            raise ValueError(f"prompt template: {error}; write {{{{ and }}}} for braces") from None
        for _, field, spec, conversion in parts:
            if field is not None and (field not in FIELDS or spec or conversion):
                raise ValueError(
                    f"prompt template: {{{field}}} is not accepted; accepted: "
                    "{task} and {task_instruction}, without attributes or formats"
                )
        return cls(template)

    @property
    def digest(self) -> str:
        """A short name for the template's content, for provenance."""
        return hashlib.sha256(self.template.encode()).hexdigest()[:16]

    def render(self, task_text: str) -> str:
        """Put the task's text in. Nothing in the text itself is expanded."""
        return self.template.format(**dict.fromkeys(FIELDS, task_text))


PERCENTAGE = Prompt.of(
    "The pictures are frames of one video, in order. A robot was told: {task}\n"
    "How much of this task is done in the last frame? Answer with one number from 0 (nothing) "
    "to 100 (wholly done), and nothing else."
)

YES_OR_NO = Prompt.of(
    "The pictures are frames of one video, in order. A robot was told: {task}\n"
    "Is the task wholly done in the last frame? Answer yes or no."
)
