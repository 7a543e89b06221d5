"""LeRobot data sets, of the formats v2.1 and v3.0: their episodes, and a copy with rewards.

The formats are those that LeRobot's own writers make: https://github.com/huggingface/lerobot.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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
    try:
        if version == "v2.1":
            return list(_episodes_of_v2(root, info))
        if version == "v3.0":
            return list(_episodes_of_v3(root, info))
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{root}: the metadata is damaged: {error!r}") from None
    raise ValueError(f"{root}: LeRobot data sets of v2.1 and v3.0 are read, not of {version}")


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
        yield _episode(index, episode, clips)


def _episodes_of_v3(root: Path, info: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the episodes of v3.0: many episodes in a video."""
    import pyarrow.parquet  # noqa: PLC0415 - optional

    cameras = cameras_of(root)
    for path in sorted((root / "meta" / "episodes").rglob("*.parquet")):
        for episode in pyarrow.parquet.read_table(path).to_pylist():
            clips = {
                camera: {
                    "path": info["video_path"].format(
                        video_key=camera,
                        chunk_index=episode[f"videos/{camera}/chunk_index"],
                        file_index=episode[f"videos/{camera}/file_index"],
                    ),
                    "start_s": episode[f"videos/{camera}/from_timestamp"],
                    "end_s": episode[f"videos/{camera}/to_timestamp"],
                }
                for camera in cameras
            }
            yield _episode(episode["episode_index"], episode, clips)


def _episode(index: int, given: dict[str, Any], clips: dict[str, Any]) -> dict[str, Any]:
    tasks = given.get("tasks") or []
    return {
        "episode_index": index,
        "task": tasks[0] if tasks else None,
        "length": given["length"],
        "clips": clips,
    }
