"""The flags of a service: one per setting, with help in groups."""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import DirectoryPath, FilePath, HttpUrl, ValidationError
from pydantic.fields import FieldInfo

from .settings import ENV_PREFIX, ServerSettings, unknown_variables

_MAX_WIDTH = 100

#: What the value of a setting is called, by the end of its name.
_UNITS = {"_mb": "MIB", "_kb": "KIB", "_gb": "GIB", "_s": "SECONDS", "_file": "FILE"}
_MESSAGES = {
    "path_not_directory": "no such directory",
    "path_not_file": "no such file",
    "int_parsing": "give a whole number",
    "float_parsing": "give a number",
    "url_parsing": "give a URL such as http://127.0.0.1:8000",
    "url_scheme": "give an http or https URL",
}


def flag_of(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


class ServiceCommand(click.Command):
    """`rewardfleet serve SERVICE`: its help lists the most used flags first, then all by group."""

    def __init__(
        self,
        name: str,
        description: str,
        settings_type: type[ServerSettings],
        run: Callable[[ServerSettings], int],
    ) -> None:
        options = [_option(field, info) for field, info in settings_type.model_fields.items()]
        super().__init__(name, params=list(options), help=description, callback=self._callback)
        self._settings_type = settings_type
        self._run = run
        self.context_settings = {"max_content_width": _MAX_WIDTH, "help_option_names": ["--help"]}

    def _callback(self, **values: object) -> int:
        given = {name: value for name, value in values.items() if value not in (None, ())}
        return self._run(read_settings(self._settings_type, given))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {
            str(param.name): record
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
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        formatter.write_paragraph()
        formatter.write_text(
            f"Each flag is also an environment variable: --max-body-mb is {ENV_PREFIX}MAX_BODY_MB."
        )


def read_settings(settings_type: type[ServerSettings], given: dict[str, Any]) -> ServerSettings:
    """Validate flags and environment variables.

    Raises:
        ValueError: A value is not accepted; the message names the flag and the value.
    """
    try:
        return settings_type(**given)
    except ValidationError as error:
        lines = [_explain(dict(each), given, settings_type) for each in error.errors()]
        raise ValueError("; ".join(lines)) from None


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
    if info.default in (None, [], False):
        return "none" if info.default is not False else "off"
    return f"{info.default:g}" if isinstance(info.default, float) else str(info.default)


def metavar_of(name: str, info: FieldInfo) -> str:  # noqa: PLR0911 - one for each type
    """Return what the value of a setting is called."""
    for suffix, unit in _UNITS.items():
        if name.endswith(suffix):
            return unit
    annotation = _plain_type(info.annotation)
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    text = str(info)
    if name in {"host", "port", "device"}:
        return name.upper()
    if annotation in {DirectoryPath, list[DirectoryPath]} or "path_type='dir'" in text:
        return "FOLDER"
    if annotation is FilePath or annotation is Path or "path_type='file'" in text:
        return "FILE"
    if annotation is HttpUrl or name.endswith("_url"):
        return "URL"
    return {int: "N", float: "NUMBER"}.get(annotation, "TEXT")


def _plain_type(annotation: Any) -> Any:
    """Return the type of a setting that is not None."""
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    is_optional = type(None) in get_args(annotation)
    return kinds[0] if is_optional and len(kinds) == 1 else annotation


def _extra(info: FieldInfo) -> dict[str, Any]:
    extra = info.json_schema_extra
    return extra if isinstance(extra, dict) else {"group": "Other", "shown": None}


def _option(name: str, info: FieldInfo) -> click.Option:
    flag, help_text, default = flag_of(name), str(info.description), shown_default(info)
    if default not in {"none", "off"}:
        help_text += f"  [default: {default}]"
    if info.annotation is bool:
        off = f"--no-{name.replace('_', '-')}"
        return click.Option([f"{flag}/{off}"], default=None, help=help_text)
    is_list = get_origin(info.annotation) is list
    return click.Option(
        [flag], multiple=is_list, metavar=metavar_of(name, info), help=help_text, type=str
    )


def _explain(
    error: dict[str, Any], given: dict[str, object], settings_type: type[ServerSettings]
) -> str:
    message = _MESSAGES.get(error["type"], str(error["msg"]).removeprefix("Value error, "))
    if not error["loc"]:
        return message
    name = str(error["loc"][0])
    if name not in settings_type.model_fields:
        return f"{name}: no such setting"
    source = flag_of(name) if name in given else f"{ENV_PREFIX}{name.upper()}"
    value = error["input"]
    shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    return f"{source} {shown}: {message[:1].lower()}{message[1:]}"
