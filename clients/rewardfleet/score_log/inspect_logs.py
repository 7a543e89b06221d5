"""Records of score logs as logs of Inspect (inspect_ai), for its viewer."""

import hashlib
import itertools
import json
import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rewardfleet.score_log.record import Record
from rewardfleet.services import SERVICES
from rewardfleet.story import score_of, story_of
from rewardfleet.wire.optional_imports import require

#: Characters of the id of a sample, as `rewardfleet log list` shows it, and of a name of a file.
_ID, _MAX_NAME = 12, 80


def write_logs(records: Sequence[Record], out: Path) -> int:
    """Write a log for each service, run and judge; return how many there are.

    Args:
        records: In the order of their times.
        out: A folder, which is created for its owner only if it does not exist.

    Raises:
        ValueError: inspect_ai is not installed.
    """
    require("inspect", "this", "inspect_ai")
    from inspect_ai.log import write_eval_log  # noqa: PLC0415 - optional, and slow to import

    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    logs: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        logs[record["service"], record["run"], record["backend"]].append(record)
    for part in logs.values():
        log = _log_of(part)
        task = re.sub(r"[^\w.-]", "-", log.eval.task, flags=re.ASCII)[:_MAX_NAME]
        path = out / f"{log.eval.created.replace(':', '-')}_{task}_{log.eval.task_id}.eval"
        write_eval_log(log, path)
        path.chmod(0o600)
    return len(logs)


def _log_of(records: Sequence[Record]) -> Any:
    from inspect_ai import log  # noqa: PLC0415 - see `write_logs`

    first, count = records[0], len(records)
    scores = [each["score"] for each in records if each["score"] is not None]
    mean = {"mean": log.EvalMetric(name="mean", value=sum(scores) / len(scores))} if scores else {}
    missing = count - len(scores)
    score = log.EvalScore(name="reward", scorer="reward", unscored_samples=missing, metrics=mean)
    identity = str([first[name] for name in ("service", "run", "backend", "time")])
    epochs: dict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))
    samples = [_sample_of(record, next(epochs[record["id"][:_ID]])) for record in records]
    spec = log.EvalSpec(
        created=_time(first),
        task_id=hashlib.sha256(identity.encode()).hexdigest()[:22],
        task="-".join(filter(None, (first["service"], first["run"]))),
        model=samples[0].output.model,
        dataset=log.EvalDataset(name=first["run"], samples=count),
        config=log.EvalConfig(),
    )
    results = log.EvalResults(total_samples=count, completed_samples=count, scores=[score])
    return log.EvalLog(status="success", eval=spec, results=results, samples=samples)


def _sample_of(record: Record, epoch: int) -> Any:
    from inspect_ai import log, model, scorer  # noqa: PLC0415 - see `write_logs`

    request, score = json.loads(record["request"] or "{}"), score_of(record)
    story = "\n".join(story_of(record["service"], request, score))
    program = request.pop("revision", None) or ""
    written = program if "```" in program else _block(program)
    written = written or request.pop("response", "") or score.pop("model_output", "")
    task = request.pop(SERVICES[record["service"]].group, "")
    text = task if isinstance(task, str) else json.dumps(task, indent=1)
    content: list[Any] = [model.ContentText(text=text)]
    if record["frames"] is not None:
        picture = b64encode(record["frames"]).decode()
        content.append(model.ContentImage(image=f"data:image/jpeg;base64,{picture}"))
    question = model.ChatMessageUser(content=content)
    # An error has no judge.
    answer = model.ModelOutput.from_content(record["backend"] or record["service"], written)
    is_error = record["status"] == "error"
    shown: Any = {"answer": _block(score.pop("code", "")), "explanation": story}
    if record["score"] is None:
        reward = scorer.Score.unscored(reason=record["cause"], **shown)
    else:
        reward = scorer.Score(value=record["score"], **shown)
    labels = {name: record[name] for name in ("id", "run", "step", "uid", "call", "sample_rate")}
    return log.EvalSample(
        id=record["id"][:_ID],
        epoch=epoch,
        input=[question],
        target="",
        messages=[question, answer.message],
        output=answer,
        scores=None if is_error else {"reward": reward},
        error=log.EvalError(message=story, traceback="", traceback_ansi="") if is_error else None,
        metadata={**labels, **score, "request": request},
        completed_at=_time(record),
        total_time=record["timing_ms_total"] / 1000,
    )


def _block(program: str) -> str:
    """Return a program as a block of code, as the viewer reads texts as Markdown."""
    fence = "`" * max([2, *map(len, re.findall("`+", program))]) + "`"
    return f"{fence}\n{program}\n{fence}" if program else ""


def _time(record: Record) -> str:
    return datetime.fromtimestamp(record["time"] or 0, UTC).isoformat(timespec="seconds")
