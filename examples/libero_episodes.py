"""From videos to advantages, over HTTP: real LIBERO rollouts, judged, scored, grouped, drawn.

    python examples/libero_episodes.py tests/data/libero docs/episodes.png

Starts a video and an episode service on this machine. Needs matplotlib, and the server's packages.

What is real: the rollouts, their lengths, the video scores, the motion seen in the pictures. The
files hold no actions, so the smoothness is that of the point around which the picture moves. They
came of scripted controllers, so the temperatures are those that the service hands to the samples
of each task, not what the rollouts were sampled at.
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

from rewardfleet import EpisodeAnswer, EpisodeRequest, RewardFleet, episode_request
from rewardfleet_server.episode.app import create_app as create_episode_app
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.testing import serving
from rewardfleet_server.video.app import create_app as create_video_app
from rewardfleet_server.video.settings import VideoSettings

#: Steps that LIBERO allows a task in SimpleVLA-RL.
MAX_STEPS = 512
OPTIONS = {
    "weights": {"success": 1.0, "efficiency": 1.0, "smoothness": 0.5},
    "combine": "gated",
    "normalise": "group_deviation",
    # Of tasks that are neither hopeless nor solved, the two best: its success, and the failure
    # that gave up soonest.
    "keep": {"accuracy_bounds": [0.3, 0.9], "select": "efficient", "select_count": 2},
}


def main(folder: Path, figure: Path) -> None:
    """Score the rollouts of `folder`; print a table and draw a figure of it."""
    lines = (folder / "manifest.jsonl").read_text().splitlines()
    rollouts = [json.loads(line) for line in lines]
    video = create_video_app(VideoSettings(video_root=[folder]))
    episode = create_episode_app(EpisodeSettings())
    with serving(video) as video_url, serving(episode) as episode_url:
        items, answer = asyncio.run(score(folder, rollouts, video_url, episode_url))
    for item, result in zip(items, answer.results, strict=True):
        why = result.error.detail if result.error else result.dropped or ""
        value = "none" if result.score is None else f"{result.score:+.2f}"
        print(f"{item.uid[:60]:60} {value:>6} {'kept' if result.keep else 'dropped'} {why}")
    draw(items, answer, figure)
    print(f"{sum(each.keep for each in answer.results)} of {len(items)} kept; see {figure}")


async def score(
    folder: Path, rollouts: list[dict[str, Any]], video_url: str, episode_url: str
) -> tuple[list[EpisodeRequest], EpisodeAnswer]:
    """Video score → success, efficiency and smoothness → groups → advantages."""
    tasks: dict[str, list[dict[str, Any]]] = {}
    for rollout in rollouts:
        tasks.setdefault(rollout["task_text"], []).append(rollout)
    items = []
    async with RewardFleet(video=video_url, episode=episode_url) as fleet:
        for task, samples in tasks.items():
            samples.sort(key=seed)  # the list has successes last: temperatures must not tell
            temperatures = (await fleet.episode.temperatures(len(samples))).temperatures
            for rollout, temperature in zip(samples, temperatures, strict=True):
                path = folder / rollout["file"]
                seen = await fleet.video.score(task, path.read_bytes())
                item = episode_request(
                    path.stem,
                    group=task,
                    kind="objectives",
                    success=None if seen.score is None else seen.score >= 0.5,
                    steps=rollout["frames"],
                    max_steps=MAX_STEPS,
                    temperature=temperature,
                    actions=await asyncio.to_thread(motion, path),
                )
                items.append(item)
        return items, await fleet.episode.score_batch(items, OPTIONS)


def seed(rollout: dict[str, Any]) -> int:
    """The simulator's, from the name of the file."""
    return int(Path(rollout["file"]).stem.rpartition("__s")[2])


def motion(path: Path) -> np.ndarray:
    """How the centre of what moves goes through the picture: [T - 2, 2], widths a frame."""
    capture, centres, before = cv2.VideoCapture(str(path)), [], None
    while True:
        read, frame = capture.read()
        if not read:
            break
        grey = cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY).astype(np.float32)
        if before is not None:
            moved = np.maximum(np.abs(grey - before) - 8, 0) ** 2  # less than 8 is the codec's
            total = moved.sum()
            if total > 0:
                rows, columns = np.indices(grey.shape) / grey.shape[1]
                centres.append(((moved * columns).sum() / total, (moved * rows).sum() / total))
            else:
                centres.append(centres[-1] if centres else (0.5, 0.5))
        before = grey
    capture.release()
    return np.diff(np.array(centres), axis=0)


def draw(items: list[EpisodeRequest], answer: EpisodeAnswer, figure: Path) -> None:
    """Reward by length and temperature; and each task's advantages, who was kept and why."""
    scored = [
        (item, each) for item, each in zip(items, answer.results, strict=True) if not each.error
    ]
    kept = np.array([each.keep for _, each in scored])
    reward = np.array([each.components["reward"] for _, each in scored])
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
    shown.colorbar(dots, ax=left, label="temperature handed to the sample")
    left.set(xlabel="length, steps", ylabel="reward: success x (1 + efficiency + smoothness/2)")
    left.legend(loc="center right")
    tasks = [each.group for each in answer.groups]
    reasons = {
        None: ("kept", "#3566a8"),
        "accuracy": ("dropped: success rate", "#c44e52"),
        "not_selected": ("dropped: not selected", "#b5b5b5"),
        "all_equal": ("dropped: all equal", "#dd8452"),
    }
    within = dict.fromkeys(tasks, 0)
    heights = []  # a little apart, as failures of a task have one advantage
    for item, _ in scored:
        within[str(item.group)] += 1
        heights.append(tasks.index(str(item.group)) - 0.5 + within[str(item.group)] * 0.2)
    for why, (name, colour) in reasons.items():
        points = [
            (each.score, height)
            for (_, each), height in zip(scored, heights, strict=True)
            if each.dropped == why
        ]
        if points:
            right.scatter(*zip(*points, strict=True), c=colour, s=30, label=name)
    right.axvline(0, color="#cccccc", zorder=0)
    right.set_yticks(range(len(tasks)), [task[:40] for task in tasks])
    right.invert_yaxis()
    right.set(xlabel="advantage: reward less the task's mean, by its deviation")
    right.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, fontsize=8)
    shown.savefig(figure, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
