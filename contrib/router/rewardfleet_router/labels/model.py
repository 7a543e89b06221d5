"""Labels by a model behind an OpenAI-compatible endpoint, cached in a file.

One request labels one tool or one row, and the answer is one word. Answers are stored as they
arrive, so an interrupted run continues where it was.
"""

import asyncio
import hashlib
import json
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import openai
from pydantic import BaseModel, Field, JsonValue, ValidationError
from tqdm import tqdm

from rewardfleet.wire.errors import BackendFailed

#: Seconds to wait for another process that writes to the cache.
_BUSY_SECONDS = 10.0
#: Requests for one answer, if an update of weights or an error interrupts it, and seconds between.
_ATTEMPTS, _PAUSE = 6, 0.5
#: Bytes of a response, decompressed.
_MAX_BYTES = 16 * 2**20


# The client does not check what it receives.
class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    index: int = 0
    message: _Message
    finish_reason: str | None = None
    error: JsonValue = None

    @property
    def is_interrupted(self) -> bool:
        return bool(self.error) or self.finish_reason in {"abort", "error"}


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


@dataclass(frozen=True)
class Task:
    """A question to the model.

    Attributes:
        about: What is labeled, for the progress bar.
        instruction: The system prompt.
        labels: The words of which the answer has exactly one.
    """

    about: str
    instruction: str
    labels: tuple[str, ...]


TOOL_FAMILY = Task(
    "tools",
    "You classify the tools of an assistant. Answer with one word:\n"
    "SEARCH if the tool retrieves information: it searches, looks up, lists or fetches data that "
    "it has stored or finds elsewhere, e.g. on the web or in a database.\n"
    "CALCULATE if the tool computes its result from its parameters alone: arithmetic, "
    "conversions, statistics, formulas.\n"
    "OTHER if it does anything else, e.g. it sends, books, creates or changes something.",
    ("SEARCH", "CALCULATE", "OTHER"),
)
TARGET_ACTION = Task(
    "rows",
    "You read a conversation with an assistant and its correct next turn, and classify what the "
    "assistant needs. Answer with one word:\n"
    "ANSWER if it can answer without a tool.\n"
    "SEARCH if it needs tools, and all of them retrieve information.\n"
    "CALCULATE if it needs tools, and all of them compute a result from their parameters.\n"
    "MIXED if it needs tools of both kinds, or of another kind.",
    ("ANSWER", "SEARCH", "CALCULATE", "MIXED"),
)


class LabelModel:
    """Labels of texts by a model; a context manager, which closes the cache.

    Args:
        client: Where the model is.
        model: Its name there.
        concurrency: Requests at the same time.
        max_tokens: The most tokens of an answer, thoughts included.
        cache_file: SQLite file with earlier answers; it is created if it does not exist.

    Raises:
        ValueError: The cache cannot be opened.
    """

    def __init__(
        self,
        client: openai.AsyncOpenAI,
        model: str,
        *,
        concurrency: int,
        max_tokens: int,
        cache_file: Path,
    ) -> None:
        self._client = client
        self._model = model
        self._concurrency = concurrency
        self._parameters = {"temperature": 0, "max_tokens": max_tokens}
        try:
            self._cache = _open_cache(cache_file)
        except sqlite3.DatabaseError as error:
            raise ValueError(f"--cache-file {cache_file}: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cache.close()

    async def label(self, task: Task, texts: Sequence[str]) -> dict[str, str]:
        """Return labels by text, without the texts for which the model gave no valid answer.

        On a terminal, a bar shows the progress.

        Args:
            task: The question about each text.
            texts: The texts, each once.

        Raises:
            BackendFailed: The endpoint refused a request, or failed several times. What it answered
                before is cached.
        """
        labels = {text: label for text in texts if (label := self._read(task, text)) is not None}
        remaining = iter([text for text in texts if text not in labels])

        async def work() -> None:
            for text in remaining:  # shared by all workers
                if (label := await self._ask(task, text)) is not None:
                    labels[text] = label
                    self._write(task, text, label)
                bar.update()

        about = f"Labeling {task.about}"
        with tqdm(total=len(texts), initial=len(labels), desc=about, disable=None) as bar:
            workers = [asyncio.create_task(work()) for _ in range(self._concurrency)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
        return labels

    async def _ask(self, task: Task, text: str) -> str | None:
        """Return the model's label of a text, or None if it gave no valid answer."""
        for attempt in range(1, _ATTEMPTS + 1):
            choice = await self._complete(task, text)
            if not choice.is_interrupted:
                return read_label(choice.message.content, choice.finish_reason, task.labels)
            await asyncio.sleep(_PAUSE * attempt)
        raise BackendFailed(f"the endpoint of {self._model} interrupted {_ATTEMPTS} answers")

    async def _complete(self, task: Task, text: str) -> _Choice:
        try:
            async with self._client.chat.completions.with_streaming_response.create(
                model=self._model, messages=_messages(task, text), **self._parameters
            ) as response:
                content = bytearray()
                async for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > _MAX_BYTES:
                        reason = f"answered with more than {_MAX_BYTES} bytes"
                        raise BackendFailed(f"the endpoint of {self._model} {reason}")
            choices = _Completion.model_validate_json(bytes(content)).choices
            return next(choice for choice in choices if choice.index == 0)
        except openai.APIStatusError as error:
            reason = f"HTTP {error.status_code}: {error.response.text[:200]}"
            raise BackendFailed(f"the endpoint of {self._model} refused: {reason}") from None
        except openai.APIError as error:
            reason = f"{type(error).__name__}: {error.__cause__ or error}"
            raise BackendFailed(f"the endpoint of {self._model} failed: {reason}") from None
        except (ValidationError, StopIteration):
            reason = "did not return a valid chat completion"
            raise BackendFailed(f"the endpoint of {self._model} {reason}") from None

    def _read(self, task: Task, text: str) -> str | None:
        query = "SELECT label FROM labels WHERE key = ?"
        row = self._cache.execute(query, (self._key(task, text),)).fetchone()
        return None if row is None else str(row[0])

    def _write(self, task: Task, text: str, label: str) -> None:
        with self._cache:
            self._cache.execute(
                "INSERT OR REPLACE INTO labels VALUES (?, ?)", (self._key(task, text), label)
            )

    def _key(self, task: Task, text: str) -> str:
        """Return what an answer depends on. The address is not part of it: it may change."""
        body = [self._model, _messages(task, text), self._parameters]
        return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def _open_cache(path: Path) -> sqlite3.Connection:
    """Open a file in which no committed row is lost if the process is killed."""
    cache = sqlite3.connect(path, timeout=_BUSY_SECONDS)
    try:
        cache.execute("PRAGMA journal_mode = WAL")
        cache.execute("PRAGMA synchronous = NORMAL")
        cache.execute(
            "CREATE TABLE IF NOT EXISTS labels (key TEXT PRIMARY KEY, label TEXT NOT NULL)"
        )
    except BaseException:
        cache.close()
        raise
    return cache


def _messages(task: Task, text: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": task.instruction},
        {"role": "user", "content": text},
    ]


def read_label(text: str | None, finish_reason: str | None, labels: Sequence[str]) -> str | None:
    """Return the label that a completion names; None unless it is complete and names exactly one.

    Text before `</think>` does not count, nor does case.
    """
    answer = (text or "").rpartition("</think>")[2]
    if finish_reason != "stop" or "<think>" in answer:
        return None
    words = set(re.findall(r"[A-Z]+", answer.upper()))
    found = [label for label in labels if label in words]
    return found[0] if len(found) == 1 else None
