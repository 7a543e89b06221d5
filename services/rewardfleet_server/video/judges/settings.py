"""The settings of judges: who declares them, and what flags, variables and files say about them."""

import difflib
import functools
import importlib
import importlib.util
import pkgutil
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from rewardfleet.wire.validation import join_errors
from rewardfleet_server.settings import shown_value, unread
from rewardfleet_server.video.prompts import Template

if TYPE_CHECKING:
    from rewardfleet_server.video.settings import VideoSettings

    from . import DeferredJudge, Judge

#: The packages with the modules of judges.
_PACKAGES = ("rewardfleet_server.video.judges", "rewardfleet_server.video.judges.vlm.families")

#: The modules that each engine of models needs, which the extra of its name installs.
ENGINES = {"vllm": ("vllm",), "transformers": ("torch", "torchvision", "transformers")}

#: Alternative names of judges that requests and settings may use.
ALIASES: dict[str, str] = {"primo_r1_vllm": "PRIMO-R1"}


class JudgeSettings(BaseModel):
    """A judge's own settings; a judge declares a subclass in its module."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Settings that are read only if another one has a value: by name, the name and the value of
    #: the other. A condition on a setting that the judge does not have is met.
    read_if: ClassVar[Mapping[str, tuple[str, str]]] = {}

    @property
    def runs_on(self) -> str | None:
        """The engine that runs its model in this process, or None."""
        return None

    @property
    def gpus(self) -> int:
        """How many GPUs its model takes."""
        return 0


def own(default: Any, help_text: str, **constraints: Any) -> Any:
    """Declare a setting of a judge, with what it is and why one would change it."""
    return Field(default, description=help_text, **constraints)


class SamplingSettings(JudgeSettings):
    """The settings of a judge whose model is prompted for a number."""

    # One line per setting.
    # fmt: off
    prompt_template: Template | None = own(None, "Prompt; {task} stands for the task's text. Default: that of the readout.")
    temperature: float = own(0.0, "Sampling temperature. Scores sampled above 0 are not cached.", ge=0, le=2)
    top_p: float = own(0.001, "Nucleus sampling.", gt=0, le=1)
    max_tokens: PositiveInt = own(64, "Most tokens of the answer. If a longer answer is cut, the judge abstains.")
    # fmt: on


@dataclass(frozen=True)
class BuiltInJudge:
    """A judge that comes with the service, as the constant `JUDGE` of its module."""

    #: The name that requests use. The module has the same one, in lower case and with `_` for `-`.
    name: str
    settings: type[JudgeSettings]
    #: Checks the settings and returns the judge; may raise ValueError.
    build: "Callable[[Any, VideoSettings], Judge | DeferredJudge]"
    summary: str  #: one sentence, for `rewardfleet judges`
    #: How its answer becomes a score, by the name of the readout; the first is the default.
    readouts: Mapping[str, str] = field(default_factory=dict)
    #: The flags, besides `--judge`, that it needs or that most users give it.
    example: tuple[str, ...] = ()

    @property
    def has_model(self) -> bool:
        """Whether it loads a model in this process."""
        return "model_path" in self.settings.model_fields

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that can run its model in this process, the default one first."""
        if "engine" in self.settings.model_fields:
            return get_args(self.settings.model_fields["engine"].annotation)
        engine = self.settings().runs_on
        return (engine,) if engine else ()

    def reads(self, key: str, values: Mapping[str, Any]) -> bool:
        """Return whether it reads a setting, if it has other ones with these values."""
        fields = self.settings.model_fields
        other, wanted = self.settings.read_if.get(key, ("", ""))
        return key in fields and (
            other not in fields or values.get(other, fields[other].default) == wanted
        )

    def label(self, key: str) -> str:
        """Return its name, and on what it depends whether it reads a setting that it has."""
        other, wanted = self.settings.read_if.get(key, ("", ""))
        has_condition = other in self.settings.model_fields
        return f"{self.name} with {other}={wanted}" if has_condition else self.name


@functools.cache
def built_in(name: str) -> BuiltInJudge | None:
    """Find a judge that comes with the service by its name, and import its module."""
    name = ALIASES.get(name, name)
    stem = re.sub(r"\W", "_", name.lower())
    for package in _PACKAGES:
        if stem.isidentifier() and importlib.util.find_spec(f"{package}.{stem}"):
            found = getattr(importlib.import_module(f"{package}.{stem}"), "JUDGE", None)
            if isinstance(found, BuiltInJudge) and found.name == name:
                return found
    return None


def all_built_in() -> list[BuiltInJudge]:
    """Return all judges that come with the service, which imports their modules."""
    judges = (
        getattr(importlib.import_module(module.name), "JUDGE", None)
        for package in _PACKAGES
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
    )
    return sorted(
        (judge for judge in judges if isinstance(judge, BuiltInJudge)),
        key=lambda judge: judge.name,
    )


class GivenValues:
    """The values that flags, variables and files give to the settings of judges.

    Each method raises a ValueError if no judge to load reads a value, and names those that do.

    Args:
        loaded: The judges to load. Those that do not come with the service read everything.
    """

    def __init__(self, loaded: Sequence[str]) -> None:
        self._loaded = loaded
        self._values: dict[str, dict[str, Any]] = {name: {} for name in loaded}
        self._sources: dict[tuple[str, str], str] = {}

    def values(self, name: str) -> Mapping[str, Any]:
        """Return those of a judge, by the name of the setting."""
        return self._values.get(name, {})

    def read_file(self, path: Path) -> None:
        """Add what the file of `--judge-config` has: one table per judge."""
        try:
            tables = tomllib.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"--judge-config {path}: {error}") from None
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise ValueError(  # noqa: TRY004 - like that of any other setting
                    f"--judge-config {path}: {name} is in no table; give one table per judge, such "
                    "as [PRIMO-R1]"
                )
            for key, value in table.items():
                source = f"--judge-config {path}: [{name}] {key} = {shown_value(value)}"
                self.add(ALIASES.get(name, name), key, value, source)

    def read_pairs(self, pairs: Iterable[str]) -> None:
        """Add what `--set` has: `JUDGE.NAME=VALUE`, or `NAME=VALUE` for the only judge."""
        for pair in pairs:
            source = f"--set {shown_value(pair)}"
            path, equals, value = pair.partition("=")
            name, _, key = path.strip().rpartition(".")
            if not equals or not key:
                raise ValueError(f"{source}: give NAME=VALUE or JUDGE.NAME=VALUE")
            if not name and len(self._loaded) > 1:
                choices = " or ".join(f"{each}.{key}" for each in self._loaded)
                raise ValueError(f"{source}: several judges are loaded: set {choices}")
            self.add(ALIASES.get(name, name) or self._loaded[0], key, value, source)

    def add(self, name: str, key: str, value: Any, source: str) -> None:
        """Add a value for one judge, in place of an earlier one."""
        judge = built_in(name)
        if name not in self._values:
            if judge is None:
                raise ValueError(f"{source}: no judge {name} is loaded, but {_list(self._loaded)}")
            raise ValueError(unread(source, self._loaded, [name]))
        fields = judge.settings.model_fields if judge else {key: None}
        if key not in fields:
            if readers := _readers(key):
                raise ValueError(unread(source, self._loaded, readers))
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{source}: {name} has no such setting{hint}; it has: {_list(fields)}")
        self._values[name][key] = value
        self._sources[name, key] = source

    def add_for_all(self, key: str, value: Any, source: str, but: Collection[str] = ()) -> None:
        """Add a value for each judge that reads it and has none of its own.

        Args:
            source: Where it is from, for messages.
            but: Judges that do not take it.
        """
        judges = [built_in(name) for name in self._loaded if name not in but]
        having = [each.name for each in judges if each and key in self._values[each.name]]
        takers = [each.name for each in judges if each and each.reads(key, self.values(each.name))]
        for name in set(takers).difference(having):
            self.add(name, key, value, source)
        if having and having == takers:
            others = _list(self._sources[name, key] for name in having)
            raise ValueError(f"{source}: {_list(having)} has {key} from {others}")
        if not takers and all(built_in(name) for name in self._loaded):
            raise ValueError(unread(source, self._loaded, _readers(key, but)))

    def settings_of(self, name: str) -> JudgeSettings:
        """Return the validated settings of a judge that comes with the service."""
        judge, values = built_in(name), self.values(name)
        assert judge is not None  # noqa: S101 - callers ask about those that exist
        for key in values:
            if not judge.reads(key, values):
                raise ValueError(unread(self._sources[name, key], self._loaded, _readers(key)))
        try:
            return judge.settings(**values)
        except ValidationError as error:
            raise ValueError(
                join_errors(
                    error,
                    lambda each: (
                        f"{self._sources[name, str(each.loc[0])]}: "
                        f"{each.reason[:1].lower()}{each.reason[1:]}"
                    ),
                )
            ) from None

    def check(self) -> None:
        """Check all values."""
        for name, values in self._values.items():
            if values and built_in(name):
                self.settings_of(name)


def _readers(key: str, but: Collection[str] = ()) -> list[str]:
    """Return the judges that have a setting, and on what it depends whether they read it."""
    return [
        judge.label(key)
        for judge in all_built_in()
        if key in judge.settings.model_fields and judge.name not in but
    ]


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
