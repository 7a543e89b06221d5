"""Labels by a model behind an OpenAI-compatible endpoint, cached in a file.

One request labels one tool or one row, and the answer is one word. Answers are stored as they
arrive, so an interrupted run continues where it was.
"""

import asyncio
import hashlib
import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rewardfleet_server.system.sqlite_file import SqliteFile
from rewardfleet_server.video.judges.chat_endpoint import ChatEndpoint, Choice

_SCHEMA = "CREATE TABLE IF NOT EXISTS labels (key TEXT PRIMARY KEY, label TEXT NOT NULL)"
#: Seconds to wait for another process that writes to the cache.
_BUSY_SECONDS = 10.0


@dataclass(frozen=True)
class Task:
    """A question to the model.

    Attributes:
        instruction: The system prompt.
        labels: The words of which the answer has exactly one.
    """

    instruction: str
    labels: tuple[str, ...]


TOOL_FAMILY = Task(
    "You classify the tools of an assistant. Answer with one word:\n"
    "SEARCH if the tool retrieves information: it searches, looks up, lists or fetches data that "
    "it has stored or finds elsewhere, e.g. on the web or in a database.\n"
    "CALCULATE if the tool computes its result from its parameters alone: arithmetic, "
    "conversions, statistics, formulas.\n"
    "OTHER if it does anything else, e.g. it sends, books, creates or changes something.",
    ("SEARCH", "CALCULATE", "OTHER"),
)
TARGET_ACTION = Task(
    "You read a conversation with an assistant and its correct next turn, and classify what the "
    "assistant needs. Answer with one word:\n"
    "ANSWER if it can answer without a tool.\n"
    "SEARCH if it needs tools, and all of them retrieve information.\n"
    "CALCULATE if it needs tools, and all of them compute a result from their parameters.\n"
    "MIXED if it needs tools of both kinds, or of another kind.",
    ("ANSWER", "SEARCH", "CALCULATE", "MIXED"),
)


class LabelModel:
    """Labels of texts by a model.

    Args:
        endpoint: Where the model is. It is closed with this object.
        concurrency: Requests at the same time.
        max_tokens: The most tokens of an answer, thoughts included.
        cache_file: SQLite file with earlier answers; it is created if it does not exist.

    Raises:
        ValueError: The cache cannot be opened.
    """

    def __init__(
        self, endpoint: ChatEndpoint, *, concurrency: int, max_tokens: int, cache_file: Path
    ) -> None:
        self._endpoint = endpoint
        self._concurrency = concurrency
        self._parameters = {"temperature": 0, "max_tokens": max_tokens}
        try:
            self._file = SqliteFile(cache_file, _SCHEMA, busy_s=_BUSY_SECONDS)
        except sqlite3.DatabaseError as error:
            raise ValueError(f"--cache-file {cache_file}: {error}") from None

    async def label(
        self, task: Task, texts: Sequence[str], on_label: Callable[[], None]
    ) -> dict[str, str]:
        """Return labels by text, without the texts for which the model gave no valid answer.

        Args:
            task: The question about each text.
            texts: The texts, each once.
            on_label: Called once for each text.

        Raises:
            BackendFailed: The endpoint refused a request.
            Unavailable: The endpoint failed several times. What it answered before is cached.
        """
        keys = {text: self._key(task, text) for text in texts}
        cached = await self._file.call(lambda db: _read(db, keys))
        for _ in cached:
            on_label()
        remaining = iter([text for text in texts if text not in cached])

        async def work() -> None:
            for text in remaining:  # shared by all workers
                choice = await self._endpoint.complete(_messages(task, text), self._parameters)
                label = read_label(choice, task.labels)
                if label is not None:
                    cached[text] = label
                    await self._file.call(partial(_write, key=keys[text], label=label))
                on_label()

        workers = [asyncio.create_task(work()) for _ in range(self._concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
        return cached

    async def aclose(self) -> None:
        """Close the connections and the cache."""
        await self._endpoint.aclose()
        self._file.close()

    def _key(self, task: Task, text: str) -> str:
        """Return what an answer depends on. The address is not part of it: it may change."""
        body = [self._endpoint.model, _messages(task, text), self._parameters]
        return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def _messages(task: Task, text: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": task.instruction},
        {"role": "user", "content": text},
    ]


def read_label(choice: Choice, labels: Sequence[str]) -> str | None:
    """Return the label that a completion names; None unless it is complete and names exactly one.

    Text before `</think>` does not count, nor does case.
    """
    text = (choice.message.content or "").rpartition("</think>")[2]
    if choice.finish_reason == "length" or "<think>" in text:
        return None
    words = set(re.findall(r"[A-Z]+", text.upper()))
    found = [label for label in labels if label in words]
    return found[0] if len(found) == 1 else None


def _read(db: sqlite3.Connection, keys: Mapping[str, str]) -> dict[str, str]:
    labels = {}
    for text, key in keys.items():
        row = db.execute("SELECT label FROM labels WHERE key = ?", (key,)).fetchone()
        if row is not None:
            labels[text] = row[0]
    return labels


def _write(db: sqlite3.Connection, key: str, label: str) -> None:
    with db:
        db.execute("INSERT OR REPLACE INTO labels VALUES (?, ?)", (key, label))
