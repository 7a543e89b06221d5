"""The prompts for vision-language models.

The texts are TOML files in this folder, each with a version. Name, version and digest of a prompt
are part of a judge's provenance, and therefore of the cache key.
"""

import hashlib
import tomllib
from dataclasses import dataclass
from importlib import resources
from string import Formatter
from typing import Annotated, Self

from pydantic import AfterValidator

#: The fields of a template; both are the task's text. The second is the name of the field in the
#: original LIBERO reward server.
FIELDS = ("task", "task_instruction")

_MAX_TEMPLATE = 20_000
#: How often a template may name the task; this limits the length of the prompt.
_MAX_FIELDS = 4


@dataclass(frozen=True)
class Prompt:
    """A template whose only fields are those in `FIELDS`, and further ones of its judge.

    Raises:
        ValueError: It has other fields, attributes, indices, formats or single braces, or is empty
            or too long.
    """

    template: str  #: text with `{task}`; literal braces are doubled
    name: str = "custom"  #: the name of its file; `custom` for a template from settings or requests
    version: int = 0  #: increased with every change of the file's text
    more_fields: tuple[str, ...] = ()  #: names of the further fields

    def __post_init__(self) -> None:
        is_text = isinstance(self.template, str)  # not of any request
        if not is_text or not self.template.strip() or len(self.template) > _MAX_TEMPLATE:
            raise ValueError(f"give 1 to {_MAX_TEMPLATE} characters")
        try:
            parts = list(Formatter().parse(self.template))
        except ValueError as error:
            raise ValueError(f"{error}; write {{{{ and }}}} for braces") from None
        accepted = (*FIELDS, *self.more_fields)
        for _, field, spec, conversion in parts:
            if field is not None and (field not in accepted or spec or conversion):
                names = " and ".join(f"{{{name}}}" for name in accepted)
                raise ValueError(
                    f"{{{field}}} is not accepted; accepted: {names}, without attributes or formats"
                )
        if sum(field is not None for _, field, _, _ in parts) > _MAX_FIELDS:
            raise ValueError(f"name the task at most {_MAX_FIELDS} times")

    @classmethod
    def load(cls, name: str, *, more_fields: tuple[str, ...] = ()) -> Self:
        """Read one of the prompts that come with the service, by the name of its file."""
        text = resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
        content = tomllib.loads(text)
        return cls(content["template"].strip("\n"), name, content["version"], more_fields)

    @property
    def digest(self) -> str:
        """The first 16 hex digits of the template's SHA-256."""
        return hashlib.sha256(self.template.encode()).hexdigest()[:16]

    @property
    def provenance(self) -> dict[str, str | int]:
        return {"name": self.name, "version": self.version, "sha256": self.digest}

    def render(self, task_text: str, **more: str) -> str:
        """Return the prompt for a task. Braces in the task's text are not expanded.

        Args:
            more: The values of `more_fields`, by name.
        """
        return self.template.format(**dict.fromkeys(FIELDS, task_text), **more)


PERCENTAGE = Prompt.load("percentage")  #: asks for a number from 0 to 100
YES_OR_NO = Prompt.load("yes_or_no")  #: asks whether the task is done
RUBRIC = Prompt.load("rubric")  #: asks for a grade from 1 to 5


def _check_template(text: str) -> str:
    if text:  # an empty text stands for the shipped prompt
        Prompt(text)
    return text


#: The text of a prompt in settings, with `{task}` in it.
Template = Annotated[str, AfterValidator(_check_template)]
