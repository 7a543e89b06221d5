"""A log with a score of each service, and the page that shows it."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from PIL import Image

from rewardfleet.score_log import Scored, ScoreLog
from rewardfleet.tool_use import score_answer
from rewardfleet.wire.code import CodeRequest, CodeScore, Outcome, StdioCase, StdioTests, Verdict
from rewardfleet.wire.episode import EpisodeOptions, EpisodeRequest, EpisodeScore, FilterOptions
from rewardfleet.wire.score import Score, Status
from rewardfleet.wire.tools import CostWeights, ToolsOptions, ToolsRequest, ToolsScore
from rewardfleet.wire.video import Curve, NearestReference, VideoRequest, VideoScore
from rewardfleet_server.commands.look import strips
from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.auth import ApiKeys
from rewardfleet_server.look.app import LookApp
from rewardfleet_server.look.labels import Labels
from rewardfleet_server.look.records import Records
from rewardfleet_server.testing import serving
from rewardfleet_server.video.references.library import MANIFEST, SHIPPED

from ...conftest import table

#: Texts that would run, load or change something if a page did not escape them.
ATTACKS = table("attacks")
#: A clip of the library in the package.
REFERENCE = json.loads((SHIPPED / MANIFEST).read_text().splitlines()[0])["file"]


def strip() -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (320, 40), (200, 60, 20)).save(content, "JPEG")
    return content.getvalue()


def scored_items(text: str = "plain", start: float = 1000.0) -> list[Scored]:
    """Return a score of each service; a policy or a model wrote `text` wherever one can."""
    program = f"Here it is:\n```python\nprint({text!r})\n```"
    clip = VideoRequest(task_text=f"put {text} away", video_base64=b"a clip", run=text, step=1)
    references = [
        NearestReference(file=file, frame=text, finished=True, distance=1.5)
        for file in (REFERENCE, "../manifest.jsonl", text)
    ]
    curve = Curve(frames=[0, 5, 9], values=[0.1, None, 0.25])
    texts = {"model_output": f"It saw {text}", "provenance": {"prompt": text}}
    figures = {"details": {text: 0.5}, "references": references, "curve": curve}
    judged = VideoScore(score=0.25, status=Status.OK, backend="reference", **texts, **figures)
    other = judged.model_copy(update={"score": 0.75, "backend": "another"})
    tests = StdioTests(kind="stdio", cases=[StdioCase(stdin=text, stdout=f"{text}\n")])
    verdict = Verdict(verdict=Outcome.WRONG_ANSWER, stdout=text, stderr=text)
    wrote = {"code": f"print({text!r})", "suspicions": [text]}
    ran = CodeScore(score=0, status=Status.OK, backend="landlock", verdicts=[verdict], **wrote)
    items: list[tuple[str, object, Score]] = [
        ("video", clip, judged),
        ("video", clip.model_copy(update={"step": 2}), other),
        ("code", CodeRequest(revision=program, tests=tests, uid=text, step=2), ran),
        ("tools", *answer(text)),
    ]
    for number in range(2):
        episode = EpisodeRequest(
            uid=f"{text}{number}", kind="success", group=text, success=not number, steps=9
        )
        kept = {"keep": not number, "drop_reason": "not_selected" if number else None}
        details = {"reward": 1.0 - number}
        score = EpisodeScore(
            score=0.7 - number, status=Status.OK, details=details, uid=episode.uid, **kept
        )
        items.append(("episode", episode, score))
    options = EpisodeOptions(
        normalize="group_std", filter=FilterOptions(select="efficient", select_count=1)
    )
    of_service = {"episode": {"options": options}}
    return [
        Scored(service, start + at, *scored, strip=strip, **of_service.get(service, {}))
        for at, (service, *scored) in enumerate(items)
    ]


def drawn_items(task: str = "plain") -> list[Scored]:
    """Return three clips that were drawn for labels, and one that was not."""
    clip, *_ = scored_items(task)
    fractions = (0.1, 0.1, 0.1, None)
    return [
        replace(clip, request=clip.request.model_copy(update={"nframes": 2 + n}),
                score=clip.score.model_copy(update={"score": n / 3}), label_fraction=fraction)
        for n, fraction in enumerate(fractions)
    ]  # fmt: skip


def answer(text: str) -> tuple[ToolsRequest, ToolsScore]:
    """Return an answer with two calls, of which one is right, and its score."""
    calls = [{"name": "search", "parameters": {"for": text}}, {"name": text, "parameters": {}}]
    lines = "\n".join(map(json.dumps, calls))
    request = ToolsRequest(
        response=f"<think>{text}</think>\n<tool_call>\n{lines}\n</tool_call>",
        ground_truth=f"<tool_call>\n{json.dumps(calls[0])}\n</tool_call>",
        run=text,
        step=3,
        options=ToolsOptions(cost="calls", cost_weights=CostWeights(search=0.5)),
    )
    reward = score_answer(request.response, request.ground_truth, request.options)
    score, cost = reward.task - 0.5 * reward.cost, reward.cost
    details = {"task": reward.task, "cost": cost, "lambda": 0.5, "violation": cost - 0.3}
    used = {"calls": 2, "tools": reward.usage.by_family}
    return request, ToolsScore(
        score=score, status=Status.OK, backend="tools", details=details, **used
    )


def write_log(folder: Path, items: list[Scored]) -> None:
    log = ScoreLog(folder)
    log.add(lambda: items, items=len(items))
    log.close()


def numbers_of(client: httpx.Client) -> list[int]:
    """Return the numbers of all records, in the order of `scored_items`."""
    found: list[int] = []
    while True:
        page = client.get("/", params={"order": "up", "start": len(found)}).text
        more = [int(part.split('"')[0]) for part in page.split('data-n="')[1:]]
        if not more:
            return found
        found += more


@contextmanager
def served(folder: Path, items: list[Scored], keys: Path | None = None) -> Iterator[str]:
    """Serve the page of a log of items in a folder, with labels beside it; give its base URL."""
    write_log(folder / "log", items)
    app = LookApp(
        Records([folder / "log"], decode=strips([])),
        Labels(folder / "labels.jsonl"),
        ApiKeys(keys),
        AllowedHosts([], listens_on="127.0.0.1", has_keys=keys is not None),
    )
    with serving(app) as url:
        yield url


@pytest.fixture
def serve_page(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Serve the page of a log of items; return its base URL."""
    with ExitStack() as stack:
        yield lambda *given: stack.enter_context(served(tmp_path, *given))
