"""The command line of a service: flags for the settings that most users give, `--set` for all."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from pydantic import DirectoryPath, FilePath, HttpUrl, ValidationError
from pydantic.fields import FieldInfo

from rewardfleet.wire.validation import InputError, join_errors

from .settings import ENV_PREFIX, ServerSettings, did_you_mean, flag_of, shown_value

_Settings = TypeVar("_Settings", bound=ServerSettings)

#: Larger limits only keep sums and squares finite; openapi.json has them.
_NO_LIMIT = 10**30

#: Columns of help, and of the names of settings in it.
MAX_WIDTH, _MAX_COLUMN = 100, 30

#: The name of a setting's value in help, by the last word of the setting's name.
_UNITS = {"mb": "MIB", "kb": "KIB", "gb": "GIB", "s": "SECONDS"}
_PATHS: dict[Any, str] = {
    Path: "FILE",
    FilePath: "FILE",
    DirectoryPath: "FOLDER",
    list[DirectoryPath]: "FOLDER",
}
#: The name of a setting's value in help, by its type.
_TYPES = {int: "N", float: "NUMBER", HttpUrl: "URL", **_PATHS}
#: The reasons of errors, by pydantic's type of the error.
_REASONS = {
    "path_not_directory": "no such directory",
    "path_not_file": "no such file",
    "int_parsing": "give a whole number",
    "float_parsing": "give a number",
    "url_parsing": "give a URL such as http://127.0.0.1:8000",
    "url_scheme": "give an http or https URL",
}


class ServiceCommand(click.Command):
    """`rewardfleet serve SERVICE`: its help lists the flags, then the other settings."""

    def __init__(
        self,
        name: str,
        description: str,
        settings_type: type[ServerSettings],
        run: Callable[[ServerSettings], int],
    ) -> None:
        of_judges = settings_type.model_fields.get("set")
        text = of_judges.description if of_judges else "A setting below; repeatable."
        any_of_them = click.Option(["--set"], multiple=True, metavar="NAME=VALUE", help=text)
        flags = [_option(settings_type, each) for each in settings_type.flags]
        params: list[click.Parameter] = [*flags, any_of_them]
        super().__init__(name, params=params, help=description, callback=self._callback)
        self._settings_type, self._run = settings_type, run
        self.context_settings = {"max_content_width": MAX_WIDTH}

    def _callback(self, **values: object) -> int:
        given = {name: value for name, value in values.items() if value not in (None, ())}
        return self._run(read_settings(self._settings_type, given))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.removeprefix("--").replace("-", "_")
            if name not in self._settings_type.model_fields:
                raise
            hint = f"did you mean --set {name}=VALUE?"
            raise click.UsageError(f"no such option: {error.option_name}\n{hint}") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        shown = {*self._settings_type.flags, "set"}
        fields = self._settings_type.model_fields.items()
        rows = [(name, _help_of(info)) for name, info in fields if name not in shown]
        with formatter.section("Settings, by --set NAME=VALUE"):
            formatter.write_dl(rows, col_max=_MAX_COLUMN)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        example = f"max_body_mb is {ENV_PREFIX}MAX_BODY_MB"
        formatter.write_paragraph()
        formatter.write_text(f"All of them are also environment variables: {example}.")


def read_settings(settings_type: type[_Settings], given: dict[str, Any]) -> _Settings:
    """Validate flags and environment variables.

    Args:
        given: The flags by the names of their settings; `set` has pairs `NAME=VALUE` of any.

    Raises:
        ValueError: A value is not accepted, or there is no such setting.
    """
    flags = {name: value for name, value in given.items() if name != "set"}
    given = {**flags, **_read_pairs(settings_type, given.get("set", ()))}
    try:
        return settings_type(**given)
    except ValidationError as error:
        text = join_errors(error, lambda each: _explain(settings_type, each, given))
        raise ValueError(text) from None


def _read_pairs(settings_type: type[ServerSettings], pairs: Iterable[str]) -> dict[str, Any]:
    """Return the settings of `--set` by name; `set` has those of judges, if there are judges."""
    given: dict[str, Any] = {}
    others, fields = [], settings_type.model_fields
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if equals and name.strip() in fields:
            given[name.strip()] = value
        elif "set" in fields:
            others.append(pair)
        else:
            source = f"--set {shown_value(pair)}"
            reason = f"no such setting{did_you_mean(name, fields)}" if equals else "give NAME=VALUE"
            raise ValueError(f"{source}: {reason}")
    return {**given, "set": others} if others else given


def shown_default(info: FieldInfo) -> str:
    """Return the default of a setting as documentation shows it."""
    shown = _extra(info)["shown"]
    if shown is not None:
        return str(shown)
    if info.default is False:
        return "off"
    if info.default is None or info.default == []:
        return "none"
    return f"{info.default:g}" if isinstance(info.default, float) else str(info.default)


def metavar_of(name: str, info: FieldInfo) -> str:
    """Return the name of a setting's value as help shows it, e.g. `SECONDS` or `text|rubric`."""
    annotation, last_word = _plain_type(info.annotation), name.rpartition("_")[2]
    if metavar := _extra(info)["metavar"]:
        return str(metavar)
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    return _UNITS.get(last_word) or _TYPES.get(annotation) or last_word.upper()


def range_text(field: Mapping[str, Any], of: str = "imum") -> str:
    """Return the limits of a number, of the `Length` of a text or of the `Items` of a list."""
    low, high, above = (
        limit if limit is None or abs(limit) < _NO_LIMIT else None
        for limit in (field.get(f"min{of}"), field.get(f"max{of}"), field.get("exclusiveMinimum"))
    )
    if above is not None:
        text = f"above {above}" if high is None else f"above {above}, up to {high}"
    elif low is None:
        text = "" if high is None else f"up to {high}"
    else:
        text = f"{low} or more" if high is None else f"{low} to {high}" if low < high else f"{low}"
    unit = {"imum": "", "Length": " characters", "Items": " items"}[of]
    return f" ({text}{unit})" if text else ""


def _plain_type(annotation: Any) -> Any:
    """Return the type of a setting that is not None."""
    match get_args(annotation):
        case (kind, none) if none is type(None):
            return kind
    return annotation


def _extra(info: FieldInfo) -> dict[str, Any]:
    extra = info.json_schema_extra
    return extra if isinstance(extra, dict) else {"shown": None, "metavar": None}


def _help_of(info: FieldInfo) -> str:
    default = shown_default(info)
    shown = "" if default in {"none", "off"} else f"  [default: {default}]"
    return f"{info.description}{shown}"


def _option(settings_type: type[ServerSettings], name: str) -> click.Option:
    info = settings_type.model_fields[name]
    other = settings_type.other_flags.get(name)
    return click.Option(
        [flag_of(name), *([other] if other else []), name],
        multiple=get_origin(info.annotation) is list,
        metavar=metavar_of(name, info),
        help=_help_of(info),
        # Shells complete paths. What is not accepted, and why, is said by `read_settings`.
        type=click.Path() if _plain_type(info.annotation) in _PATHS else str,
    )


def _explain(
    settings_type: type[ServerSettings], error: InputError, given: Mapping[str, object]
) -> str:
    if not error.loc:  # an error of several settings, which the reason names
        return error.reason
    name, reason = str(error.loc[0]), _REASONS.get(error.kind, error.reason)
    source = f"{ENV_PREFIX}{name.upper()} "
    if name in given:
        source = f"{flag_of(name)} " if name in settings_type.flags else f"--set {name}="
    return f"{source}{shown_value(error.value)}: {reason[:1].lower()}{reason[1:]}"
