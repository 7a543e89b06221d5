"""From videos to advantages over HTTP: judge, score and group real LIBERO rollouts, draw a figure.

    python examples/libero_episodes.py tests/data/libero docs/episodes.png

Starts a video service and an episode service on this machine. Needs matplotlib and the server's
packages.

The rollouts, their lengths and their video scores are real. Two inputs are substitutes: the files
contain no actions, so smoothness is computed from the center of motion in the images; and the
rollouts were recorded with scripted controllers, so each is assigned a temperature that the service
returns for the samples of its task.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import cv2
import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from rewardfleet import EpisodeBatchResponse, EpisodeRequest, RewardFleet, episode_request
from rewardfleet_server.episode.app import create_app as create_episode_app
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.testing import serving
from rewardfleet_server.video.app import create_app as create_video_app
from rewardfleet_server.video.settings import VideoSettings

#: Step limit of LIBERO tasks in SimpleVLA-RL.
MAX_STEPS = 512
OPTIONS = {
    "weights": {"success": 1.0, "efficiency": 1.0, "smoothness": 0.5},
    "combine": "gated",
    "normalize": "group_std",
    # Tasks that are neither hopeless nor solved; of each, the two most efficient episodes.
    "filter": {"accuracy_bounds": [0.3, 0.9], "select": "efficient", "select_count": 2},
}


def main(folder: Path, figure: Path) -> None:
    """Score the rollouts of `folder`; print a table and draw a figure."""
    lines = (folder / "manifest.jsonl").read_text().splitlines()
    rollouts = [json.loads(line) for line in lines]
    video = create_video_app(VideoSettings(video_root=[folder]))
    episode = create_episode_app(EpisodeSettings())
    with serving(video) as video_url, serving(episode) as episode_url:
        items, response = asyncio.run(score(folder, rollouts, video_url, episode_url))
    for item, result in zip(items, response.results, strict=True):
        reason = result.error.detail if result.error else result.drop_reason or ""
        value = "none" if result.score is None else f"{result.score:+.2f}"
        print(f"{item.uid[:60]:60} {value:>6} {'kept' if result.keep else 'dropped'} {reason}")
    draw(items, response, figure)
    print(f"{sum(each.keep for each in response.results)} of {len(items)} kept; see {figure}")


async def score(
    folder: Path, rollouts: list[dict[str, Any]], video_url: str, episode_url: str
) -> tuple[list[EpisodeRequest], EpisodeBatchResponse]:
    """Judge the videos; turn scores, lengths and motion into rewards and advantages by task."""
    tasks: dict[str, list[dict[str, Any]]] = {}
    for rollout in rollouts:
        tasks.setdefault(rollout["task_text"], []).append(rollout)
    items = []
    async with RewardFleet(video=video_url, episode=episode_url) as fleet:
        for task, samples in tasks.items():
            # The manifest lists successes last; temperatures must not depend on success.
            samples.sort(key=seed)
            temperatures = (await fleet.episode.temperatures(len(samples))).temperatures
            for rollout, temperature in zip(samples, temperatures, strict=True):
                path = folder / rollout["file"]
                video = await fleet.video.score(task, path.read_bytes())
                item = episode_request(
                    path.stem,
                    group=task,
                    kind="objectives",
                    success=None if video.score is None else video.score >= 0.5,
                    steps=rollout["frames"],
                    max_steps=MAX_STEPS,
                    temperature=temperature,
                    actions=await asyncio.to_thread(motion, path),
                )
                items.append(item)
        return items, await fleet.episode.score_batch(items, OPTIONS)


def seed(rollout: dict[str, Any]) -> int:
    """Return the simulator's random seed, from the name of the file."""
    return int(Path(rollout["file"]).stem.rpartition("__s")[2])


def motion(path: Path) -> np.ndarray:
    """Return the motion of the center of what moves in the images.

    [T - 2, 2], in image widths per frame.
    """
    capture, centers, before = cv2.VideoCapture(str(path)), [], None
    while True:
        read, frame = capture.read()
        if not read:
            break
        gray = cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY).astype(np.float32)
        if before is not None:
            moved = np.maximum(np.abs(gray - before) - 8, 0) ** 2  # below 8 is noise of the codec
            total = moved.sum()
            if total > 0:
                rows, columns = np.indices(gray.shape) / gray.shape[1]
                centers.append(((moved * columns).sum() / total, (moved * rows).sum() / total))
            else:
                centers.append(centers[-1] if centers else (0.5, 0.5))
        before = gray
    capture.release()
    return np.diff(np.array(centers), axis=0)


def draw(items: list[EpisodeRequest], response: EpisodeBatchResponse, figure: Path) -> None:
    """Draw rewards by length and temperature, and advantages by task and filter rule."""
    scored = [
        (item, each) for item, each in zip(items, response.results, strict=True) if not each.error
    ]
    kept = np.array([each.keep for _, each in scored])
    reward = np.array([each.details["reward"] for _, each in scored])
    length = np.array([item.steps for item, _ in scored])
    heat = np.array([item.temperature for item, _ in scored])
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    shown, (left, right) = plt.subplots(
        1, 2, figsize=(13, 5.5), width_ratios=(1, 1.2), layout="constrained"
    )
    for mask, marker, name in ((kept, "o", "kept"), (~kept, "X", "dropped")):
        dots = left.scatter(
            length[mask], reward[mask], c=heat[mask], marker=marker, s=55, label=name,
            cmap="plasma", vmin=0.55, vmax=0.95, edgecolors="white", linewidths=0.5,
        )  # fmt: skip
    shown.colorbar(dots, ax=left, label="temperature assigned to the sample")
    left.set(xlabel="length, steps", ylabel="reward: success x (1 + efficiency + smoothness/2)")
    left.legend(loc="center right")
    tasks = [each.group for each in response.groups]
    reasons = {
        None: ("kept", "#3566a8"),
        "accuracy": ("dropped: success rate", "#c44e52"),
        "not_selected": ("dropped: not selected", "#b5b5b5"),
        "all_equal": ("dropped: all equal", "#dd8452"),
    }
    within = dict.fromkeys(tasks, 0)
    heights = []  # slightly apart, as all failures of a task have the same advantage
    for item, _ in scored:
        within[str(item.group)] += 1
        heights.append(tasks.index(str(item.group)) - 0.5 + within[str(item.group)] * 0.2)
    for reason, (name, color) in reasons.items():
        points = [
            (each.score, height)
            for (_, each), height in zip(scored, heights, strict=True)
            if each.drop_reason == reason
        ]
        if points:
            right.scatter(*zip(*points, strict=True), c=color, s=30, label=name)
    right.axvline(0, color="#cccccc", zorder=0)
    right.set_yticks(range(len(tasks)), [task[:40] for task in tasks])
    right.invert_yaxis()
    right.set(xlabel="advantage: (reward - mean)/std of the task")
    right.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, fontsize=8)
    shown.savefig(figure, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
