"""The requests of rows: which columns hold what, and one item per completion."""

import contextlib
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewardfleet.services import SERVICES, Service
from rewardfleet.video import VideoOptions
from rewardfleet.wire.code import check_values
from rewardfleet.wire.episode import EpisodeOptions
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.score import LABELS, Request
from rewardfleet.wire.truth import NESTED_COLUMNS, TRUTH_COLUMNS, given, is_missing
from rewardfleet.wire.validation import validate
from rewardfleet.wire.video import JSON_INPUTS, VideoRequest

from .rows import Row

#: Columns that are read if none is named, by what they hold; the first that a row has counts.
COMPLETION_COLUMNS = (
    "revision", "response", "completion", "completions", "responses", "output", "program",
)  # fmt: skip
_TASK = ("task_text", "task", "instruction")
_CLIP = ("clip", "video", "file", "file_name", "path")
_OPTIONS = VideoOptions.__optional_keys__ - {"fps", *LABELS}
#: Characters of a text of a column that is kept with the score, at most.
_MAX_METADATA = 200
#: The largest video that is sent; a larger one is given by path.
_MAX_SENT_BYTES = 48 * 2**20


@dataclass(frozen=True)
class Columns:
    """The columns that hold what a request is made of; None for the usual names."""

    completion_column: str | None = None
    tests_column: str | None = None
    clip_column: str | None = None
    task_column: str | None = None
    id_column: str | None = None
    camera: str | None = None  #: of LeRobot data sets; None for the only one


@dataclass(slots=True)
class Item:
    """One thing to score: a completion of a row, a clip, or an episode."""

    index: int  #: its row of the output
    row: Row
    completion: int | None = None  #: which completion of its row; None if it has one
    uid: str | None = None  #: of the column that was named for it
    error: str = ""  #: why it cannot be scored
    group: str | None = None  #: of episodes, which are scored together

    @property
    def place(self) -> str:
        """Where it is in the input."""
        place = self.row.place
        return place if self.completion is None else f"{place}, completion {self.completion}"


@dataclass
class RequestBuilder:
    """Builds the requests of rows.

    Args:
        task: The task of clips without one.
        by_path: Whether the service reads video files by their paths.
        changes: Fields of all requests.
    """

    service: str
    columns: Columns = Columns()
    task: str | None = None
    by_path: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def declared(self) -> Service:
        """What is known of the service."""
        return SERVICES[self.service]

    @functools.cached_property
    def options(self) -> EpisodeOptions | None:
        """The options of batches of episodes, which must be valid; None for another service."""
        is_episode = self.declared.scores == "episode"
        return validate(EpisodeOptions, self.changes) if is_episode else None

    def check_columns(self, rows: Iterable[Row]) -> None:
        """Check that rows have the columns of a request, by the first of them that do.

        Raises:
            InvalidRequest: There is one that no row has.
        """
        fields: dict[str, Any] = {}
        for row in rows if self.declared.scores == "text" else ():
            fields.update(row.fields)
            with contextlib.suppress(InvalidRequest):
                self._sample(Row("", fields))
                return
        if fields:  # if no row can be read, each says why
            self._sample(Row("", fields))

    def items(self, rows: Iterable[Row]) -> Iterator[Item]:
        """Yield the items of rows, in order."""
        index, seen = 0, set[bytes]()
        for row in rows:
            group = group_of(row) if self.declared.scores == "episode" else None
            texts = self._completions(row)
            uid = row.fields.get(self.columns.id_column or "episode_index")
            uid = None if uid is None else str(uid)
            error = row.error
            if (column := self.columns.id_column) and not error:
                digest = hashlib.sha256((uid or "").encode(errors="surrogatepass")).digest()[:12]
                if uid is None:
                    error = f"no id in the column {column}"
                elif digest in seen:
                    error = f"the id {uid[:60]!r} occurs twice"
                else:
                    seen.add(digest)
            for place in [None] if texts is None else range(len(texts)):
                yield Item(index, row, place, uid, error, group)
                index += 1

    def build(self, item: Item) -> Request:
        """Return the request of an item. Blocks, as it reads the files of clips.

        Raises:
            InvalidRequest: The row cannot be read, or is no valid request.
        """
        if item.error:
            raise InvalidRequest(item.error)
        try:
            if self.options is not None:
                fields = given(item.row.fields, self.declared.client.request_type.model_fields)
                return self.declared.request(**{"uid": str(item.index), **fields})
            if self.declared.scores == "clip":
                return self._video(item.row)
            return self._text(item)
        except OSError as error:
            raise InvalidRequest(f"{error.filename}: {error.strerror}") from None

    def clip_path(self, row: Row) -> Path | None:
        """Return the file that a row names as its clip; None if it has the content, or no clip."""
        if self.declared.scores != "clip" or row.error:
            return None
        with contextlib.suppress(InvalidRequest):
            fields = {**row.fields, **self._episode_clip(row)}
            clip = fields.get(_column(row, self.columns.clip_column, _CLIP) or "clip")
            path = clip.get("path") if isinstance(clip, Mapping) and not clip.get("bytes") else clip
            return row.folder / path if isinstance(path, str) else None
        return None

    def metadata_of(self, row: Row) -> dict[str, Any]:
        """Return the columns with numbers, short texts and truth values that no request has."""
        named, truths = self.columns, (self.declared.truth, "ground_truth")
        of_clip = _column(row, named.clip_column, _CLIP), _column(row, named.task_column, _TASK)
        of_text = self._completion_column(row), _column(row, named.tests_column, truths)
        more = {"clip": of_clip, "text": of_text}.get(self.declared.scores, ())
        used = {*self.declared.client.request_type.model_fields, *more}
        return {
            name: value
            for name, value in row.fields.items()
            if name not in used
            and isinstance(value, bool | int | float | str)
            and len(str(value)) <= _MAX_METADATA
        }

    def _completions(self, row: Row) -> list[Any] | None:
        """Return the completions of a row that has several, i.e. a list of texts or of messages."""
        if self.declared.scores != "text":
            return None
        value = row.fields.get(self._completion_column(row) or "")
        if not (isinstance(value, list) and value):
            return None
        return value if all(isinstance(each, str | list | None) for each in value) else None

    def _completion_column(self, row: Row) -> str | None:
        # Where it is null, a later one is not the policy's: `output` may be the right answer.
        named = self.columns.completion_column
        for name in COMPLETION_COLUMNS if named is None else (named,):
            if name in row.fields:
                return name
        return None

    def _text(self, item: Item) -> Request:
        """Return the request of what a policy wrote."""
        if item.row.unified and self.declared.truth == "tests":
            # What the policy got and wrote has such names as well.
            others = {self._completion_column(item.row), "responses_create_params"}
            for column in item.row.unified - others:
                check_values({column: item.row.fields.get(column)}, "row")
        text, truth, fields = self._sample(item.row)
        completion = text if item.completion is None else text[item.completion]
        return self._changed(self._request(completion, truth, fields))

    def _sample(self, row: Row) -> tuple[Any, Any, Mapping[str, Any]]:
        """Return what a policy wrote, the truth, and the other fields of a row."""
        fields = dict(row.fields)
        name = self._completion_column(row)
        if name is None:
            raise self._missing(row, "completion", COMPLETION_COLUMNS)
        text = fields.pop(name)
        names = dict.fromkeys((self.declared.truth, "ground_truth"))
        truth_name = _column(row, self.columns.tests_column, names)
        truth = None if truth_name is None else fields.pop(truth_name)
        if truth is None and self.declared.takes_rows and self.columns.tests_column is None:
            is_any = self.declared.truth == "tests"  # columns of data sets, which the service knows
            known = None if is_any else (*TRUTH_COLUMNS, *NESTED_COLUMNS)
            truth = given(fields, known) or None
        if truth is None:
            raise self._missing(row, "tests", names)
        return text, truth, fields

    def _video(self, row: Row) -> Request:
        fields = {**given(row.fields), **self._episode_clip(row)}
        task = task_of(row, self.columns, self.task)
        if task is None:
            raise self._missing(row, "task", _TASK, ", or give --task")
        known = given(fields, VideoRequest.model_fields)
        is_request = bool(known.keys() & JSON_INPUTS)
        if is_request and self.columns.clip_column is None:
            return validate(VideoRequest, {**known, "task_text": task, **self.changes})
        name = _column(row, self.columns.clip_column, _CLIP)
        content = fields.get(name or "clip")
        if content is None or (isinstance(content, str) and not content):
            raise self._missing(row, "clip", _CLIP)
        if isinstance(content, bool | int | float):
            raise InvalidRequest(f"{name}: give the path or the content of a clip, not {content}")
        clip, sha256 = self._clip(content, row.folder)
        # The rate of a row is that of its file, which has it.
        options = given(known, _OPTIONS)
        ranges = given(fields, ("start_s", "end_s"))
        request = self._request(None, clip, {"task": task, **options})
        return self._changed(request, sha256=sha256, **ranges)

    def _episode_clip(self, row: Row) -> Mapping[str, Any]:
        """Return the clip of an episode of a LeRobot data set, of one camera."""
        clips = row.fields.get("clips")
        if not isinstance(clips, Mapping) or "episode_index" not in row.fields:
            return {}
        camera = self.columns.camera or (next(iter(clips)) if len(clips) == 1 else "")
        if camera not in clips:
            raise InvalidRequest(f"--camera: give one of {', '.join(clips)}")
        clip = dict(clips[camera])
        if "start_s" in clip and not self.by_path:
            raise InvalidRequest(
                "videos of LeRobot v3.0 hold several episodes: give --by-path, with a service "
                "whose --video-root has them"
            )
        return {"clip": clip.pop("path"), **clip}

    def _clip(self, value: Any, folder: Path) -> tuple[Any, str | None]:
        """Return a clip as the client takes it, and its digest if the service reads the file."""
        if isinstance(value, Mapping):  # a video of `datasets`
            value = value.get("bytes") or value.get("path")
        if not isinstance(value, str):
            return value, None
        path = folder / value
        if not path.is_file():
            raise InvalidRequest(f"there is no file {path}")
        size = path.stat().st_size
        if self.by_path:
            return str(path.resolve()), _sha256(path, size, path.stat().st_mtime_ns)
        if size > _MAX_SENT_BYTES:
            raise InvalidRequest(f"{path} has {size} bytes, more than are sent: give --by-path")
        return path.read_bytes(), None

    def _missing(self, row: Row, of: str, usual: Iterable[str], more: str = "") -> InvalidRequest:
        wanted = f"none of the columns {', '.join(usual)}: name it with --{of}-column{more}"
        if named := getattr(self.columns, f"{of}_column"):
            wanted = f"no column {named}"
        found = ", ".join(sorted(map(str, row.fields))) or "none"
        return InvalidRequest(f"{wanted}; the row has: {found}")

    def _request(self, *sample: Any) -> Request:
        return self.declared.request(**self.declared.fields(*sample))

    def _changed(self, request: Request, **more: Any) -> Request:
        """Return a request with the fields that all requests get."""
        changes = {**given(more), **self.changes}
        if not changes:
            return request
        fields = {name: getattr(request, name) for name in request.model_fields_set}
        return validate(type(request), {**fields, **changes})


def group_of(row: Row) -> str | None:
    """Return the name of an episode's group; None if it has none."""
    group = row.fields.get("group")
    return None if is_missing(group) else ascii(group)


def task_of(row: Row, columns: Columns, default: str | None) -> Any:
    """Return the task of a clip; None if it has none."""
    return row.fields.get(_column(row, columns.task_column, _TASK) or "") or default


def clip_name(row: Row) -> str:
    """Return the name of a row's clip: that of its file or episode, or its place."""
    if "episode_index" in row.fields:
        return f"episode {row.fields['episode_index']}"
    names = (row.fields.get(each) for each in (*_CLIP, "video_path"))
    return next((each for each in names if isinstance(each, str)), row.place)


def _column(row: Row, named: str | None, usual: Iterable[str]) -> str | None:
    """Return the first of some columns that the row has, at best with a value."""
    found = None
    for name in usual if named is None else (named,):
        if name in row.fields:
            if not is_missing(row.fields[name]):
                return name
            found = found or name
    return found


@functools.lru_cache(maxsize=16)  # LeRobot has many episodes in one file
def _sha256(path: Path, size: int, changed: int) -> str:  # noqa: ARG001 - of this state of the file
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
