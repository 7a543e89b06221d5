"""`rewardfleet judges`: the judges of the video service, what they need, and their options."""

import difflib
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import click

from rewardfleet.wire.optional_imports import missing_modules
from rewardfleet_server.flags import MAX_WIDTH, metavar_of, range_text, shown_default
from rewardfleet_server.video.judges import settings
from rewardfleet_server.video.judges.settings import BuiltInJudge
from rewardfleet_server.video.settings import gpu_count

_OWN_JUDGE = "A judge of your own: --custom-backend-factory, see docs/judges.md."


class JudgeOption(NamedTuple):
    """A setting of a judge, as documentation shows it."""

    name: str
    value: str  #: its type and its range
    default: str
    text: str  #: what it is, and when it is read


def options_of(judge: BuiltInJudge) -> Iterator[JudgeOption]:
    """Return the settings of a judge."""
    schemas = judge.settings.model_json_schema()["properties"]
    for name, info in judge.settings.model_fields.items():
        is_switch = info.annotation is bool
        value = "true|false" if is_switch else metavar_of(name, info) + range_text(schemas[name])
        condition = "=".join(judge.settings.read_if.get(name, ()))
        text = f"{info.description}{f' Read with `{condition}`.' if condition else ''}"
        yield JudgeOption(name, value, shown_default(info), text)


@click.command(
    name="judges",
    help="List the judges of the video service: what each needs, and whether it can be loaded "
    "here. With NAME, print the options of one.",
    context_settings={"max_content_width": MAX_WIDTH},
)
@click.argument("name", required=False)
@click.pass_context
def command(context: click.Context, name: str | None) -> None:
    """Print all judges, or one."""
    formatter, here = context.make_formatter(), _engines_here()
    if name is None:
        rows: list[tuple[str, str]] = []
        for each in settings.all_built_in():
            rows += [(each.name, each.summary), *(("", fact) for fact in _facts(each, here))]
        with formatter.section("Judges for `rewardfleet serve video --judge NAME`"):
            formatter.write_dl(rows)
        formatter.write_paragraph()
        formatter.write_text("`rewardfleet judges NAME` prints the options of a judge.")
        formatter.write_text(_OWN_JUDGE)
    elif judge := settings.built_in(name):
        _write_one(formatter, judge, here)
    else:
        raise ValueError(_unknown(name))
    print(formatter.getvalue(), end="")


def _write_one(
    formatter: click.HelpFormatter, judge: BuiltInJudge, here: Mapping[str, str | None]
) -> None:
    for line in (f"{judge.name}: {judge.summary}", *_facts(judge, here)):
        formatter.write_text(line)
    options = [
        # With spaces, at which long lines are wrapped.
        (each.name, f"{each.text}  [{each.value.replace('|', ' | ')}; default: {each.default}]")
        for each in options_of(judge)
    ]
    with formatter.section("Options, by --set NAME=VALUE"):
        formatter.write_dl(options)
    if judge.readouts:
        with formatter.section("Readouts; the first is the default"):
            formatter.write_dl([*judge.readouts.items()])
    with formatter.section("Example"):  # on an engine that is installed, if there is one
        engine = next((each for each in judge.engines if here[each] is None), None)
        other = ["--set", f"engine={engine}"] if engine in judge.engines[1:] else []
        command = ["rewardfleet", "serve", "video", "--judge", judge.name, *judge.example, *other]
        formatter.write(f"  {shlex.join(command)}\n")


def _engines_here() -> dict[str, str | None]:
    """Return why each engine cannot be used here, or None."""
    reasons: dict[str, str | None] = {}
    for engine, modules in settings.ENGINES.items():
        missing = missing_modules(*modules)
        reasons[engine] = f"{', '.join(missing)} not installed" if missing else None
    if reasons["vllm"] is None and not gpu_count():
        reasons["vllm"] = "no GPU found, and vLLM needs one unless it is built for CPUs"
    return reasons


def _facts(judge: BuiltInJudge, here: Mapping[str, str | None]) -> Iterator[str]:
    """Return what a judge needs, and whether it can be loaded here."""
    yield f"Needs {_needs(judge)}."
    usable = [engine for engine in judge.engines if here[engine] is None]
    if judge.engines and not usable:
        reasons = dict.fromkeys(f"{here[engine]}" for engine in judge.engines)
        yield f"Cannot be loaded here: {'; '.join(reasons)}."
    else:
        by = f" by {usable[0]}; a checkpoint of a hub is downloaded first" if usable else ""
        yield f"Can be loaded here{by}."


def _needs(judge: BuiltInJudge) -> str:
    if "url" in judge.settings.model_fields:
        return "--openai-url and --openai-model"
    if not judge.engines:
        return "neither a GPU nor further packages"
    engines = {"vllm": "vllm with a GPU", "transformers": "transformers (slow without a GPU)"}
    default = judge.settings.model_fields["model_path"].default
    checkpoint = f"the checkpoint {default}" if default else "a checkpoint (--model-path)"
    return f"{' or '.join(engines[each] for each in judge.engines)}, and {checkpoint}"


def _unknown(name: str) -> str:
    known = [*(each.name for each in settings.all_built_in()), *settings.ALIASES]
    names = {each.casefold(): each for each in known}
    word = name.casefold()
    near = [each for each in names if word in each]
    near += difflib.get_close_matches(word, names, 1, cutoff=0.3)
    text = f"no such judge: {name}; known: {', '.join(known)}"
    return f"{text}\ndid you mean {names[near[0]]}?" if near else text
