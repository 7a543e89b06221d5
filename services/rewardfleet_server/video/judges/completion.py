"""What shells complete for the flags of judges. It imports the judges only when it is asked."""

from typing import Literal, get_args, get_origin

import click


def complete_judge(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the judges that come with the service and begin with a text."""
    from .settings import all_built_in  # noqa: PLC0415 - see above

    return [each.name for each in all_built_in() if each.name.startswith(incomplete)]


def complete_set(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the settings of the judges of `--judge`, or of all, with the values that they have."""
    from .settings import ALIASES, all_built_in  # noqa: PLC0415 - see above

    named = {ALIASES.get(name, name) for name in ctx.params.get("backend") or ()}
    found: set[str] = set()
    for judge in all_built_in():
        if named and judge.name not in named:
            continue
        for name, info in judge.settings.model_fields.items():
            choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ("",)
            pairs = [f"{name}={value}" for value in choices]
            found.update(pairs, (f"{judge.name}.{pair}" for pair in pairs if incomplete))
    return sorted(pair for pair in found if pair.startswith(incomplete))
