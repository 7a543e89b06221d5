"""LeRobot data sets, of the formats v2.1 and v3.0: their episodes, and a copy with rewards.

The formats are those that LeRobot's own writers make: https://github.com/huggingface/lerobot.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rewardfleet.wire.causes import SUCCESS_THRESHOLD

from .arrow import pyarrow


def is_lerobot(root: Path) -> bool:
    """Return whether a folder is a LeRobot data set."""
    return (root / "meta" / "info.json").exists()


def episodes_of(root: Path) -> list[dict[str, Any]]:
    """Return the episodes of a data set, each with its task, length, and clip by camera.

    Returns:
        `episode_index`, `task`, `length` (frames), and `clips`: for each camera `path`, relative to
        the root, and in v3.0 `start_s` and `end_s` in it.

    Raises:
        ValueError: The data set is of another version, or its metadata is damaged.
    """
    info = _info(root)
    version = info.get("codebase_version")
    if version not in _READERS:
        raise ValueError(f"{root}: LeRobot data sets of v2.1 and v3.0 are read, not of {version}")
    try:
        return list(_READERS[version](root, info))
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{root}: the metadata is damaged: {error!r}") from None


def cameras_of(root: Path) -> list[str]:
    """Return the names of a data set's cameras that have videos."""
    features = _info(root)["features"]
    return [name for name, each in features.items() if each.get("dtype") == "video"]


def _info(root: Path) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((root / "meta" / "info.json").read_text())
    return info


def _episodes_of_v2(root: Path, info: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the episodes of v2.1: a video for each episode and camera."""
    for line in (root / "meta" / "episodes.jsonl").read_text().splitlines():
        episode = json.loads(line)
        index = episode["episode_index"]
        place = {"episode_chunk": index // info["chunks_size"], "episode_index": index}
        clips = {
            camera: {"path": info["video_path"].format(video_key=camera, **place)}
            for camera in cameras_of(root)
        }
        yield _episode(episode, clips)


#: The columns of an episode of v3.0 with its place in the videos of a camera.
_PLACE = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")


def _episodes_of_v3(root: Path, info: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the episodes of v3.0: many episodes in a video."""
    cameras = cameras_of(root)
    columns = ["episode_index", "tasks", "length"]  # there are statistics of all columns, too
    columns += [f"videos/{camera}/{name}" for camera in cameras for name in _PLACE]
    for file in sorted((root / "meta" / "episodes").rglob("*.parquet")):
        for episode in pyarrow().parquet.read_table(file, columns=columns).to_pylist():
            clips = {}
            for camera in cameras:
                place = {name: episode[f"videos/{camera}/{name}"] for name in _PLACE}
                path = info["video_path"].format(video_key=camera, **place)
                times = {"start_s": place["from_timestamp"], "end_s": place["to_timestamp"]}
                clips[camera] = {"path": path, **times}
            yield _episode(episode, clips)


def _episode(recorded: dict[str, Any], clips: dict[str, Any]) -> dict[str, Any]:
    task = next(iter(recorded.get("tasks") or ()), None)
    return {**{n: recorded[n] for n in ("episode_index", "length")}, "task": task, "clips": clips}


_READERS = {"v2.1": _episodes_of_v2, "v3.0": _episodes_of_v3}


#: Says, in the metadata of a copy with rewards, which columns a judge wrote.
_OF_JUDGE = Path("meta", "rewardfleet.json")


def successes_of(root: Path) -> dict[int, bool | None]:
    """Return by episode whether `next.success` is true at some frame; None where it is null.

    Raises:
        ValueError: There is no such column, or a judge has written it.
    """
    if (root / _OF_JUDGE).exists() and "next.success" in (root / _OF_JUDGE).read_text():
        raise ValueError(f"{root}: its next.success is a judge's, and no label of the data set")
    if "next.success" not in _info(root)["features"]:
        raise ValueError(f"{root}: the data set has no column next.success, which would be labels")
    found: dict[int, bool | None] = {}
    for path in sorted((root / "data").rglob("*.parquet")):
        table = pyarrow().parquet.read_table(path, columns=["episode_index", "next.success"])
        values = zip(*(column.to_pylist() for column in table.columns), strict=True)
        for episode, success in values:
            value = success[0] if isinstance(success, list) else success
            known = found.get(episode)
            found[episode] = known if value is None else bool(known or value)
    return found


def write_rewards(root: Path, target: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a copy of a data set that has rewards as columns; its videos are links to the original.

    Each frame gets `next.reward` (the score of its episode at the last frame, else 0; NaN without a
    score), `next.success` (whether the score is at least 0.5, at the last frame, else False; null
    without a score), and, if there are curves, `progress` (interpolated; NaN without a curve). If
    the data set has `next.reward` or `next.success`, the new ones are `judge.reward` and
    `judge.success`.

    Args:
        target: A folder, which is replaced.
        records: Of the episodes, whose `uid` is the index of the episode.
    """
    pa = pyarrow()
    by_episode = {
        int(each["uid"]): (each["score"], json.loads(each["details"]).get("curve"))
        for each in records
    }
    info = _info(root)
    prefix = "judge" if {"next.reward", "next.success"} & info["features"].keys() else "next"
    dtypes = {f"{prefix}.reward": "float32", f"{prefix}.success": "bool"}
    if any(curve and curve["values"] for _, curve in by_episode.values()):
        dtypes["progress"] = "float32"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root / "meta", target / "meta")
    features = {name: {"dtype": each, "shape": [1], "names": None} for name, each in dtypes.items()}
    new = {**info, "features": {**info["features"], **features}}
    (target / "meta" / "info.json").write_text(json.dumps(new, indent=4))
    (target / _OF_JUDGE).write_text(json.dumps({"columns_of_the_judge": list(dtypes)}))
    (target / "videos").symlink_to((root / "videos").resolve())
    for path in sorted((root / "data").rglob("*.parquet")):
        table = pa.parquet.read_table(path)
        columns = _columns_of(table, by_episode)
        for name, values in zip(dtypes, columns, strict=False):
            table = table.append_column(name, pa.array(values, dtypes[name]))
        written = target / path.relative_to(root)
        written.parent.mkdir(parents=True, exist_ok=True)
        # By statistics, which leave out NaN, readers skip row groups with a missing reward.
        counted = [name for name in table.column_names if dtypes.get(name) in {None, "bool"}]
        metadata = dict(table.schema.metadata or {})
        if b"huggingface" in metadata:  # of `datasets`, which has features as well
            described = json.loads(metadata[b"huggingface"])
            kinds = {name: {"dtype": each, "_type": "Value"} for name, each in dtypes.items()}
            described["info"]["features"].update(kinds)
            metadata[b"huggingface"] = json.dumps(described).encode()
        table = table.replace_schema_metadata(metadata)
        pa.parquet.write_table(table, written, write_statistics=counted)


def _columns_of(table: Any, judged: Mapping[int, tuple[Any, Any]]) -> tuple[Any, Any, Any]:
    """Return the reward, the success and the progress of each frame.

    Args:
        judged: The score and the curve of each episode; None if it has none.
    """
    episodes, frames = table["episode_index"].to_numpy(), table["frame_index"].to_numpy()
    rewards, progress = np.full((2, len(frames)), np.nan)
    success = np.full(len(frames), None, object)
    for episode in np.unique(episodes).tolist():
        at = episodes == episode
        score, curve = judged.get(episode, (None, None))
        if score is not None:
            is_last = frames[at] == frames[at].max()
            rewards[at], success[at] = score * is_last, is_last & (score >= SUCCESS_THRESHOLD)
        if curve and curve["values"]:
            values = np.array(curve["values"], float)  # NaN where a judge abstained
            progress[at] = np.interp(frames[at], curve["frames"], values)
    return rewards, success, progress
