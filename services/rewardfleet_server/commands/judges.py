"""`rewardfleet judges`: the judges of the video service, what they need, and their options."""

import difflib
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import click

from rewardfleet.wire.optional_imports import missing_modules
from rewardfleet_server.flags import MAX_WIDTH, metavar_of, range_text, shown_default
from rewardfleet_server.video.judges.settings import (
    ALIASES,
    ENGINES,
    BuiltInJudge,
    all_built_in,
    built_in,
)
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
    formatter = context.make_formatter()
    if name is None:
        _write_all(formatter)
    else:
        judge = built_in(name)
        if judge is None:
            raise ValueError(_unknown(name))
        _write_one(formatter, judge)
    print(formatter.getvalue(), end="")


def _write_all(formatter: click.HelpFormatter) -> None:
    judges, here = all_built_in(), _engines_here()
    with formatter.section("Judges for `rewardfleet serve video --judge NAME`"):
        rows: list[tuple[str, str]] = []
        for judge in judges:
            facts = [judge.summary, *_facts(judge, here)]
            rows += zip([judge.name, *[""] * (len(facts) - 1)], facts, strict=True)
        formatter.write_dl(rows)
    formatter.write_paragraph()
    formatter.write_text("`rewardfleet judges NAME` prints the options of a judge.")
    formatter.write_text(_OWN_JUDGE)


def _write_one(formatter: click.HelpFormatter, judge: BuiltInJudge) -> None:
    here = _engines_here()
    formatter.write_text(f"{judge.name}: {judge.summary}")
    for fact in _facts(judge, here):
        formatter.write_text(fact)
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
    with formatter.section("Example"):
        formatter.write(f"  {shlex.join(example_of(judge, here))}\n")


def example_of(judge: BuiltInJudge, here: Mapping[str, str | None]) -> list[str]:
    """Return a command that loads a judge, on an engine that is installed if there is one.

    Args:
        here: Why an engine cannot be used here, or None; by engine.
    """
    engine = next((each for each in judge.engines if here[each] is None), None)
    other = ["--set", f"engine={engine}"] if engine in judge.engines[1:] else []
    return ["rewardfleet", "serve", "video", "--judge", judge.name, *judge.example, *other]


def _engines_here() -> dict[str, str | None]:
    """Return why each engine cannot be used here, or None."""
    reasons: dict[str, str | None] = {}
    for engine, modules in ENGINES.items():
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
    names = {each.casefold(): each for each in [*(j.name for j in all_built_in()), *ALIASES]}
    word = name.casefold()
    near = [known for known in names if word in known]
    near += difflib.get_close_matches(word, names, 1, cutoff=0.3)
    known = f"no such judge: {name}; known: {', '.join(names.values())}"
    return f"{known}\ndid you mean {names[near[0]]}?" if near else known
