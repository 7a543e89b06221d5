"""Critiques for supervised fine-tuning, written by a model that sees how the programs ran.

CTRL's first stage: a program is run, and a model writes a critique from a prompt with the outcome
as a hint. The critic is fine-tuned on that critique without the hint. `run_sft.py` reads the file
with `--instruction_field critic_instruction --output_field critique`.
"""

import asyncio
import functools
import json
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from rewardfleet.client import RewardFleet
from rewardfleet.rows import SampleRow, code_fields
from rewardfleet.tls import tls_context
from rewardfleet.wire.backoff import backoff_with_jitter
from rewardfleet.wire.code import CodeScore, Outcome, Verdict
from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.truth import given

from .reward import as_block, visible_critique

log = logging.getLogger(__name__)

#: Attempts per request to the model, and the longest waits before them, in seconds.
_ATTEMPTS = 5
_FIRST_WAIT, _MAX_WAIT = 0.5, 20.0
#: Statuses of a prompt that the model refuses; other prompts may be answered.
_REFUSED = {400, 413, 422}
#: Characters of an input or an output that a hint shows.
_SHOWN = 500

_FORM = """Answer in this form:

Analysis:
{what the program does, and where it goes wrong}

Improvement suggestions:
{what to change}

Overall judgment: {Correct or Incorrect}"""
_HINT = """What happened when the program was run, which its author does not know:
<hint>
{}
</hint>
Let this guide your review, but do not mention that you know it."""
_LIMITS: dict[str, str] = {
    Outcome.TIME_LIMIT: "It exceeds the time limit; a faster algorithm is needed.",
    Outcome.MEMORY_LIMIT: "It exceeds the memory limit.",
    Outcome.OUTPUT_LIMIT: "It prints far too much.",
    Outcome.EXITED_EARLY: "It ends before it has answered.",
}


@dataclass(frozen=True)
class CritiqueReport:
    """What became of the rows."""

    written: int = 0  #: critiques written by this call
    present: int = 0  #: rows that were in the file already
    #: Rows without a verdict or without an answer of the model; a later call tries again.
    failed: int = 0
    #: Critiques that were not written, by reason: `mentions_hint`; `no_judgment`; `wrong_judgment`,
    #: which contradicts the tests.
    rejected: Mapping[str, int] = field(default_factory=dict)


async def write_critiques(
    fleet: RewardFleet,
    rows: Iterable[SampleRow],
    path: str | Path,
    *,
    url: str,
    model: str,
    api_key: str | None = None,
    sampling: Mapping[str, Any] | None = None,
    max_concurrency: int = 64,
    timeout_s: float = 300.0,
) -> CritiqueReport:
    """Run programs, let a model criticize them, and append the critiques to a file of JSON lines.

    A line has the `id` of its row, `critic_instruction` and `critique`. The instruction is the last
    message of the user in the row's `prompt`, as CTRL's training files have it, so that both stages
    see the same; else it is `critique_instruction`. Rows whose id is in the file are left out: an
    interrupted call can be repeated.

    Args:
        fleet: A fleet with a code service.
        rows: As for `CritiqueReward`, e.g. of `read_rows`.
        url: The base URL of an OpenAI-compatible API, e.g. `http://127.0.0.1:8000/v1`.
        model: The name of the model there.
        api_key: Sent as a bearer token.
        sampling: Further fields of its requests, e.g. `{"temperature": 0.7, "max_tokens": 1024}`.
        max_concurrency: Rows at once.
        timeout_s: Seconds until the model must have answered, at each attempt.

    Raises:
        httpx.HTTPStatusError: The model's server refuses every request: a wrong key, model or URL.
    """
    target = Path(path)
    present = _ids(target)
    listed = list(rows)
    missing = [row for row in listed if str(row["id"]) not in present]
    limit = asyncio.Semaphore(max_concurrency)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    connections = httpx.Limits(max_connections=max_concurrency)
    http = httpx.AsyncClient(
        base_url=url, headers=headers, timeout=timeout_s, limits=connections, verify=tls_context()
    )
    async with fleet, http as client:
        complete = functools.partial(_complete, client, {"model": model, **(sampling or {})})

        async def run(row: SampleRow) -> str:
            async with limit:
                return await _write_one(fleet, complete, row, target)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run(row)) for row in missing]
        except* Exception as errors:  # noqa: BLE001 - raised again
            raise errors.exceptions[0] from None
    counts = Counter(task.result() for task in tasks)
    written, failed = counts.pop("written", 0), counts.pop("failed", 0)
    return CritiqueReport(written, len(listed) - len(missing), failed, dict(counts))


def critique_instruction(problem: str, answer: str) -> str:
    """Return the prompt that asks for a critique of an answer.

    Args:
        answer: A program, plain or in a fenced block of a text.
    """
    task = "Review this answer to the problem below. Give constructive feedback, not a solution."
    return f"{task}\n\nProblem:\n{problem.strip()}\n\nAnswer:\n{as_block(answer)}\n\n{_FORM}"


def execution_feedback(score: CodeScore, tests: Any) -> str:
    """Return what happened when a program was run, as a hint for its critic.

    Args:
        tests: Its tests, as in the request. The first test that fails is shown.
    """
    if score.pass_rate == 1:
        return "It passes all tests: it is correct. A short positive review is enough."
    failed = [
        (index, each) for index, each in enumerate(score.verdicts)
        if each.verdict not in {Outcome.ACCEPTED, Outcome.SKIPPED, Outcome.LEFT_OUT}
    ]  # fmt: skip
    if not failed:
        return "It fails."
    index, verdict = failed[0]
    total = len(score.verdicts)
    share = f"It fails {len(failed)} of {total} tests." if total > 1 else "It fails its test."
    if len(failed) == total > 1:
        share = f"It fails all {total} tests: another approach may be needed."
    return f"{share}\n{_what_happened(verdict, _test(tests, index))}"


def _what_happened(verdict: Verdict, test: str) -> str:
    if verdict.verdict in _LIMITS:
        return _LIMITS[verdict.verdict]
    if verdict.verdict == Outcome.COMPILE_ERROR:
        return f"It is not a valid program:\n{_tail(verdict.stderr)}"
    if verdict.stderr.strip() and verdict.verdict == Outcome.RUNTIME_ERROR:
        return f"{test}It raises an error:\n{_tail(verdict.stderr)}"
    return f"{test}What it printed:\n{_cut(verdict.stdout)}" if test else "It gives a wrong answer."


def _test(tests: Any, index: int) -> str:
    """Return a test as text; empty if it has another form than those of CTRL and of requests."""
    fields = tests if isinstance(tests, Mapping) else {}
    row = fields.get("row") or {}
    cases = fields.get("cases", row.get("selected_uts", row.get("all_uts")))
    try:
        return _case_text((json.loads(cases) if isinstance(cases, str) else cases)[index])
    except (ValueError, TypeError, LookupError, AttributeError):
        return ""


def _case_text(case: Any) -> str:
    if isinstance(case, str):
        return f"The test that fails:\n{_cut(case)}\n"
    if "args" in case:
        return (
            f"Arguments:\n{_cut(repr(case['args']))}\nExpected:\n{_cut(repr(case['expected']))}\n"
        )
    stdin = case["input"]["stdin"] if "input" in case else case.get("stdin", "")
    stdout = case["output"]["stdout"] if "output" in case else case["stdout"]
    return f"Input:\n{_cut(stdin)}\nExpected output:\n{_cut(stdout)}\n"


def _cut(text: str) -> str:
    stripped = str(text).strip()
    return stripped if len(stripped) <= _SHOWN else f"{stripped[:_SHOWN]}…"


def _tail(stderr: str) -> str:
    """Return the end of a traceback: where, and what."""
    return "\n".join(line.strip()[:_SHOWN] for line in stderr.strip().splitlines()[-2:])


async def _write_one(
    fleet: RewardFleet, complete: Callable[[str], Awaitable[str]], row: SampleRow, path: Path
) -> str:
    """Write one critique, or return why there is none."""
    request = code_fields(row["solution"], row.get("tests"), given(row, ["limits"]))
    instruction = _instruction(row)
    try:
        score = await fleet.code.score(**request)
        feedback = execution_feedback(score, request["tests"])
        text = await complete(f"{instruction}\n\n{_HINT.format(feedback)}")
        critique = visible_critique(text)
        judged = await fleet.code.score(**request, critique=critique)  # the run is cached
    except (RewardFleetError, _NoAnswer) as error:
        log.warning("no critique of row %s: %s", row["id"], error)
        return "failed"
    if "the hint" in critique.lower():
        return "mentions_hint"
    if judged.judgment is None:
        return "no_judgment"
    if (judged.judgment == "correct") != (score.pass_rate == 1):
        return "wrong_judgment"
    line = {"id": str(row["id"]), "critic_instruction": instruction, "critique": critique}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return "written"


def _instruction(row: SampleRow) -> str:
    prompt = row.get("prompt")
    if prompt is not None and not isinstance(prompt, str):
        users = [turn["content"] for turn in prompt if turn["role"] == "user"]
        if users:
            return str(users[-1])
    return critique_instruction(row["problem"], row["solution"])


def _ids(path: Path) -> set[str]:
    """Return the ids of the rows in the file; remove a last line whose writing was interrupted."""
    if not path.exists():
        return set()
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if complete != content:
        os.truncate(path, len(complete))
    return {json.loads(line)["id"] for line in complete.splitlines() if line.strip()}


class _NoAnswer(Exception):
    """The model gave no answer to one prompt."""


async def _complete(client: httpx.AsyncClient, fields: Mapping[str, Any], prompt: str) -> str:
    """Return a model's answer to a prompt, by `POST chat/completions` with some more fields.

    Raises:
        _NoAnswer: There is none, also after retries.
        httpx.HTTPStatusError: The server refuses every request.
    """
    body = {**fields, "messages": [{"role": "user", "content": prompt}]}
    problem = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            await asyncio.sleep(backoff_with_jitter(attempt, _FIRST_WAIT, _MAX_WAIT))
        try:
            response = await client.post("chat/completions", json=body)
        except httpx.TransportError as error:
            problem = f"{type(error).__name__} {error}"
            continue
        if response.status_code in _REFUSED:
            raise _NoAnswer(f"the model refused the prompt: {response.text[:200]}")
        if response.is_success:
            return _content(response)
        problem = f"status {response.status_code}"
        if response.status_code != 429 and not response.is_server_error:
            response.raise_for_status()
    raise _NoAnswer(f"{_ATTEMPTS} attempts failed, the last with {problem}")


def _content(response: httpx.Response) -> str:
    try:
        content = response.json()["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        content = None
    if not isinstance(content, str) or not content.strip():
        raise _NoAnswer(f"no text in the answer of the model: {response.text[:200]}")
    return content
