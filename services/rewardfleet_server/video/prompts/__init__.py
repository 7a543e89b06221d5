"""What a vision-language model is asked.

The texts are data files beside this one, each with a version. Name, version and digest of what was
asked are part of every judgment's provenance, and so of the cache key.
"""

import hashlib
import tomllib
from dataclasses import dataclass
from importlib import resources
from string import Formatter
from typing import Self

#: The fields of a template, both the task's text (the second is the seed's name for it).
FIELDS = ("task", "task_instruction")

_MAX_TEMPLATE = 20_000
#: How often a template may name the task, which bounds what comes of it.
_MAX_FIELDS = 4


@dataclass(frozen=True)
class Prompt:
    """A template whose only fields are those in `FIELDS`.

    Attributes:
        template: Text with `{task}`; braces that are meant as such are doubled.
        name: Of the file that it came from; `custom` is one that a user gave.
        version: Raised with every change of the file's text.
    """

    template: str
    name: str = "custom"
    version: int = 0

    @classmethod
    def of(cls, template: str, name: str = "custom", version: int = 0) -> Self:
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
        if sum(field is not None for _, field, _, _ in parts) > _MAX_FIELDS:
            raise ValueError(f"prompt template: name the task at most {_MAX_FIELDS} times")
        return cls(template, name, version)

    @classmethod
    def load(cls, name: str) -> Self:
        """Read one of the prompts that come with the service."""
        text = resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
        content = tomllib.loads(text)
        return cls.of(content["template"].strip("\n"), name, content["version"])

    @property
    def digest(self) -> str:
        """A short name for the template's content."""
        return hashlib.sha256(self.template.encode()).hexdigest()[:16]

    @property
    def provenance(self) -> dict[str, str | int]:
        """Which prompt this is."""
        return {"name": self.name, "version": self.version, "sha256": self.digest}

    def render(self, task_text: str) -> str:
        """Put the task's text in. Nothing in the text itself is expanded."""
        return self.template.format(**dict.fromkeys(FIELDS, task_text))


PERCENTAGE = Prompt.load("percentage")
YES_OR_NO = Prompt.load("yes_or_no")
RUBRIC = Prompt.load("rubric")
PRIMO_SYSTEM = Prompt.load("primo_system")
PRIMO_USER = Prompt.load("primo_user")
