"""The flags of a service: one per setting, with help in groups."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from click.shell_completion import CompletionItem
from pydantic import DirectoryPath, FilePath, HttpUrl, ValidationError
from pydantic.fields import FieldInfo

from rewardfleet.wire.validation import InputError, join_errors

from .settings import (
    ENV_PREFIX,
    ServerSettings,
    flag_of,
    shown_value,
    unknown_variables,
)

_Settings = TypeVar("_Settings", bound=ServerSettings)

#: Larger limits only keep sums and squares finite; openapi.json has them.
_NO_LIMIT = 10**30

#: Columns of help, and of the flags in it.
MAX_WIDTH, _MAX_COLUMN = 100, 30

#: The name of a setting's value in help, by the last word of the setting's name.
_UNITS = {"mb": "MIB", "kb": "KIB", "gb": "GIB", "s": "SECONDS"}
#: The name of a setting's value in help, by its type.
_TYPES = {
    int: "N",
    float: "NUMBER",
    HttpUrl: "URL",
    Path: "FILE",
    FilePath: "FILE",
    DirectoryPath: "FOLDER",
    list[DirectoryPath]: "FOLDER",
}
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
    """`rewardfleet serve SERVICE`: its help lists the most used flags first, then all by group."""

    def __init__(
        self,
        name: str,
        description: str,
        settings_type: type[ServerSettings],
        run: Callable[[ServerSettings], int],
    ) -> None:
        params: list[click.Parameter] = [
            _option(settings_type, field) for field in settings_type.model_fields
        ]
        super().__init__(name, params=params, help=description, callback=self._callback)
        self._settings_type = settings_type
        self._run = run
        self.context_settings = {"max_content_width": MAX_WIDTH}

    def _callback(self, **values: object) -> int:
        given = {name: value for name, value in values.items() if value not in (None, ())}
        return self._run(read_settings(self._settings_type, given))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {
            str(param.name): (record[0].partition(" / ")[0], record[1])  # without `--no-…`
            for param in self.get_params(ctx)
            if (record := param.get_help_record(ctx)) is not None
        }
        most_used = self._settings_type.most_used
        sections = {"Most used": [rows.pop(name) for name in most_used]}
        for name, info in self._settings_type.model_fields.items():
            if name in rows:
                sections.setdefault(_extra(info)["group"], []).append(rows.pop(name))
        sections["Other"] = list(rows.values())
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=_MAX_COLUMN)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        formatter.write_paragraph()
        formatter.write_text(
            f"Each flag is also an environment variable: --max-body-mb is {ENV_PREFIX}MAX_BODY_MB."
        )


def read_settings(settings_type: type[_Settings], given: dict[str, Any]) -> _Settings:
    """Validate flags and environment variables.

    Raises:
        ValueError: A value is not accepted; the message names the flag and the value.
    """
    try:
        return settings_type(**given)
    except ValidationError as error:
        raise ValueError(join_errors(error, lambda each: _explain(each, given))) from None


def unknown_variable_warnings(settings_types: Iterable[type[ServerSettings]]) -> list[str]:
    """Return a warning for each environment variable `REWARDFLEET_*` that no service reads."""
    known = {name for each in settings_types for name in each.model_fields}
    names = [name.upper() for name in sorted(known)]
    warnings = []
    for name in unknown_variables(known):
        near = difflib.get_close_matches(name.removeprefix(ENV_PREFIX), names, 1)
        suggestion = f"; did you mean {ENV_PREFIX}{near[0]}?" if near else ""
        warnings.append(f"the environment variable {name} is not a setting{suggestion}")
    return warnings


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
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    is_optional = type(None) in get_args(annotation)
    return kinds[0] if is_optional and len(kinds) == 1 else annotation


def _extra(info: FieldInfo) -> dict[str, Any]:
    extra = info.json_schema_extra
    without = {"group": "Other", "shown": None, "metavar": None}
    return extra if isinstance(extra, dict) else without


def _option(settings_type: type[ServerSettings], name: str) -> click.Option:
    info = settings_type.model_fields[name]
    flag, help_text, default = flag_of(name), str(info.description), shown_default(info)
    if default not in {"none", "off"}:
        help_text += f"  [default: {default}]"
    if info.annotation is bool:
        off = f"--no-{name.replace('_', '-')}"
        return click.Option([f"{flag}/{off}"], default=None, help=help_text)
    is_list = get_origin(info.annotation) is list
    other = settings_type.other_flags.get(name)
    return click.Option(
        [flag, *([other] if other else []), name],
        multiple=is_list,
        metavar=metavar_of(name, info),
        shell_complete=settings_type.completions.get(name) or _completion(info),
        help=help_text,
        type=str,
        hidden=name in settings_type.hidden,
    )


def _completion(info: FieldInfo) -> Callable[..., list[CompletionItem]]:
    """Return what completes the value of a setting in a shell: one of a few, a file, a folder."""
    kind = _plain_type(info.annotation)

    def complete(_ctx: object, _param: object, incomplete: str) -> list[CompletionItem]:
        if get_origin(kind) is Literal:
            choices = map(str, get_args(kind))
            return [CompletionItem(each) for each in choices if each.startswith(incomplete)]
        what = {"FILE": "file", "FOLDER": "dir"}.get(_TYPES.get(kind, ""))
        return [CompletionItem(incomplete, type=what)] if what else []

    return complete


def _explain(error: InputError, given: Mapping[str, object]) -> str:
    if not error.loc:  # an error of several settings, which the reason names
        return error.reason
    name, reason = str(error.loc[0]), _REASONS.get(error.kind, error.reason)
    source = flag_of(name) if name in given else f"{ENV_PREFIX}{name.upper()}"
    return f"{source} {shown_value(error.value)}: {reason[:1].lower()}{reason[1:]}"
