"""Ray Data: score a dataset on a Ray cluster."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rewardfleet.bulk.arrow import arrow_table, pyarrow
from rewardfleet.bulk.output import records_of
from rewardfleet.bulk.requests import COMPLETION_COLUMNS, Columns, RequestBuilder
from rewardfleet.bulk.rows import Row, table_rows
from rewardfleet.bulk.run import Run
from rewardfleet.client import RewardFleet
from rewardfleet.event_loop_thread import EventLoopThread
from rewardfleet.rows import requests_of, scores_of
from rewardfleet.score_log.record import ITEM_COLUMNS
from rewardfleet.service import OnFailure
from rewardfleet.services import SERVICES
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError
from rewardfleet.wire.score import abstained, failed

from ._rows import RowReward, rows_of

_OBJECTS = 'objects of tests need batch_format="pyarrow", or store them as JSON text'
#: Columns of records that a batch does not know.
_OF_FILES = {"row", "place", "path"}
_WHOLE = 'dataset.groupby("group").map_groups gives whole groups, map_batches cuts them'


class Scorer:
    """A class for `map_batches`, which adds columns with rewards and errors to batches.

    Args:
        service, url, options: See `rewardfleet.adapters`.
        text: The column with the responses: texts, lists of messages, …. Not read for video.
        reward: The name of the new column with rewards; errors, or None, are in it + `_error`.
        on_failure: By default, a row without a reward, also an invalid one, has NaN.
    """

    def __init__(
        self,
        service: str,
        url: str | Sequence[str],
        *,
        text: str = "response",
        reward: str = "reward",
        on_failure: OnFailure = math.nan,
        **options: Any,
    ) -> None:
        self._scorer = RowReward(service, url, on_failure=on_failure, **options)
        self._texts = [] if SERVICES[service].scores == "clip" else [text]
        self._reward = reward

    def __call__(self, batch: Any) -> Any:
        """Return the batch with two more columns, of float64 and of texts or None.

        Args:
            batch: A mapping of columns, or a `pyarrow.Table`.

        Raises:
            InvalidRequest: A column is missing.
            RewardFleetError: There is no reward, and `on_failure` is "raise".
        """
        client = self._scorer.client
        found = _rows_of(batch, self._scorer.service, self._texts)
        names = batch.column_names if _is_table(batch) else batch
        columns = {name: [each.fields[name] for each in found] for name in names}
        rows = rows_of(columns, (*self._texts, *self._scorer.columns), len(found))
        requests: dict[int, Any] = {}
        scores: dict[int, Any] = {}
        for index, row in enumerate(rows):
            text = row[self._texts[0]] if self._texts else None
            sample = (text, row[self._scorer.truth], row)
            try:
                if found[index].error:
                    raise InvalidRequest(found[index].error)  # noqa: TRY301 - as of any other row
                [requests[index]] = requests_of(self._scorer.service, [sample])
            except InvalidRequest as error:  # an invalid row does not end the job
                scores[index] = failed(error, client.score_type)
        answers = self._scorer.loop.run(scores_of(client, [*requests.values()]))
        scores |= zip(requests, answers, strict=True)
        rewards = np.empty(len(found))
        errors = np.full(len(found), None, dtype=object)
        for index, score in scores.items():
            if score.score is not None:
                rewards[index] = client.policy.reward(score)
                continue
            problem = score.error
            failure = RewardFleetError.from_problem(problem) if problem else abstained(score)
            rewards[index], errors[index] = client.policy.fallback(failure), str(failure)
        new = {self._reward: rewards, f"{self._reward}_error": errors}
        if not _is_table(batch):
            return {**batch, **new}
        for name, each in new.items():
            batch = batch.append_column(name, [pyarrow().array(each)])
        return batch


class Records:
    """A class for `map_batches` that returns what `rewardfleet score` writes, as Arrow tables.

    A table has one row per item of the batch; see docs/data-sets.md. `row`, `place` and `path` are
    missing, as a batch does not know them: join by `id`, or by the column that `id_column` names,
    as `uid`.

    Args:
        service, url, options: See `rewardfleet.adapters`; also "episode".
        columns: The columns to read, as in the command: `completion_column`, `tests_column`,
            `clip_column`, `task_column`, `id_column`.
        task: The task of clips without one.
        by_path: Whether the service reads video files by their paths.
        fields: Fields of all requests.
        group_size: For "episode", which needs it, as `map_batches` may cut a group: how many
            episodes each group has. "map_groups": a batch is one whole group, which only
            `dataset.groupby("group").map_groups` ensures.

    Raises:
        ValueError: There is no `group_size`, or the service has no groups.
    """

    def __init__(
        self,
        service: str,
        url: str | Sequence[str],
        *,
        columns: Mapping[str, str] | None = None,
        task: str | None = None,
        by_path: bool = False,
        fields: Mapping[str, Any] | None = None,
        group_size: int | Literal["map_groups"] | None = None,
        **options: Any,
    ) -> None:
        if (group_size is None) == (SERVICES[service].scores == "episode"):
            raise ValueError(f"group_size: give it for episodes, and only for them; {_WHOLE}")
        self._group_size = group_size
        named = Columns(**(columns or {}))
        self._builder = RequestBuilder(service, named, task, by_path, fields or {})
        fleet = RewardFleet(**{service: url, **options})
        self._run = Run(fleet, self._builder)
        self._loop = EventLoopThread(fleet.aclose)

    def __call__(self, batch: Any) -> Any:
        """Return the records of a batch, a `pyarrow.Table`.

        Args:
            batch: A mapping of columns, or a `pyarrow.Table`.

        Raises:
            ValueError: A group of episodes is not complete.
        """
        named = self._builder.columns.completion_column
        texts = COMPLETION_COLUMNS if named is None else (named,)
        items = [*self._builder.items(_rows_of(batch, self._builder.service, texts))]
        sizes = Counter(each.group for each in items if each.group is not None)
        wanted = self._group_size
        is_whole = len(sizes) < 2 if wanted == "map_groups" else {*sizes.values()} <= {wanted}
        if not is_whole:
            name, size = sizes.most_common()[-1]
            raise ValueError(
                f"a batch has {size} of the group {name[:60]}, group_size is {wanted}: {_WHOLE}"
            )
        scored = self._loop.run(self._run.score_chunk(items))
        columns = {name: each for name, each in ITEM_COLUMNS.items() if name not in _OF_FILES}
        return arrow_table(records_of(scored, self._builder), columns)


def _rows_of(batch: Any, service: str, texts: Collection[str]) -> list[Row]:
    """Return the rows of a batch; `texts` has what a policy wrote, which may be messages.

    In arrays and DataFrames, JSON within objects is text, so that a program would get a text for an
    object: rows of the code service with such objects get an error.
    """
    if _is_table(batch):
        return [*table_rows(Path(), batch.schema, batch.to_batches())]
    has_lists = all(type(batch[name]) is list for name in batch)
    is_exact = has_lists or SERVICES[service].truth != "tests"
    rows = []
    for values in zip(*(batch[name] for name in batch), strict=True):
        fields = dict(zip(batch, map(_plain, values), strict=True))
        objects = [name for name in fields.keys() - {*texts} if _has_objects(fields[name])]
        error = f"{objects[0]}: {_OBJECTS}" if objects and not is_exact else ""
        rows.append(Row("", fields, error=error, unified=frozenset(batch)))
    return rows


def _is_table(batch: Any) -> bool:
    return hasattr(batch, "to_batches")


def _has_objects(value: Any) -> bool:
    """Return whether a value has objects that are no messages."""
    items = value if isinstance(value, list) else [value]
    return any(isinstance(each, Mapping) and "role" not in each for each in items)


def _plain(value: Any) -> Any:
    """Return a value of a batch without arrays, except for those of frames."""
    is_frames = isinstance(value, np.ndarray) and value.dtype == np.uint8
    return value.tolist() if hasattr(value, "tolist") and not is_frames else value
