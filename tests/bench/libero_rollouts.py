"""Make LIBERO rollouts whose outcome the simulator knows, successes and failures of many kinds.

    python tests/bench/libero_rollouts.py FOLDER SEED [--successes 5] [--failures 5] [--tasks TEXT]

A scripted controller reads the poses of objects and moves the arm through waypoints; its starts,
speeds, heights, grasps, noise and retreats are random. `success` is LIBERO's own `check_success()`
after the last step, whatever the script meant to do, and no rollout is thrown away. It runs in an
environment of its own: `hf-libero` 0.1.4, `av` and LIBERO's assets, without rewardfleet.
"""

import argparse
import json
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from libero.libero import get_libero_path
from libero.libero.envs import OffScreenRenderEnv
from libero_arm import (
    CLOSED,
    OPEN,
    STRIDE,
    WIDEST_GRASP,
    Arm,
    Vector,
    aside,
    carry,
    corners,
    grasp,
    place_of,
    release,
    retreat,
    vector,
)
from numpy.typing import NDArray

#: Suite and name of each task.
TASKS = [
    "libero_goal/open_the_middle_drawer_of_the_cabinet",
    "libero_goal/put_the_bowl_on_the_plate",
    "libero_goal/put_the_bowl_on_the_stove",
    "libero_goal/put_the_bowl_on_top_of_the_cabinet",
    "libero_goal/put_the_cream_cheese_in_the_bowl",
    "libero_goal/turn_on_the_stove",
    "libero_object/pick_up_the_alphabet_soup_and_place_it_in_the_basket",
    "libero_object/pick_up_the_butter_and_place_it_in_the_basket",
    "libero_object/pick_up_the_cream_cheese_and_place_it_in_the_basket",
    "libero_object/pick_up_the_tomato_sauce_and_place_it_in_the_basket",
    "libero_spatial/pick_up_the_black_bowl_between_the_plate_and_the_ramekin_and_place_it_on_the_plate",
    "libero_spatial/pick_up_the_black_bowl_from_table_center_and_place_it_on_the_plate",
    "libero_spatial/pick_up_the_black_bowl_next_to_the_plate_and_place_it_on_the_plate",
    "libero_10/LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_the_tomato_sauce_in_the_basket",
]


def drop(arm: Arm, held: Vector, target: Vector) -> None:
    """Let go of what is held on the way to a target."""
    between = arm.position + (target - held - arm.position) * arm.rng.uniform(0.3, 0.65)
    arm.move(arm.position + vector(0, 0, arm.rng.uniform(0.1, 0.18)), tolerance=0.03)
    arm.move(vector(*between[:2], arm.position[2]), tolerance=0.02)
    release(arm)


def another_object(env: Any, rng: np.random.Generator, name: str, target_name: str) -> str:
    """Return an object that is not the one of the task."""

    def is_graspable(other: str) -> bool:
        size = cv2.minAreaRect(corners(env, other)[:, :2].astype(np.float32))[1]
        return "basket" not in other and (min(size) < WIDEST_GRASP or "bowl" in other)

    of_task = {name, target_name, env.env.obj_of_interest[-1]}
    return str(
        rng.choice([o for o in sorted({*env.env.objects_dict} - of_task) if is_graspable(o)])
    )


def release_point(env: Any, rng: np.random.Generator, name: str, target_name: str) -> Vector:
    """Return where the center of an object is let go, so that it ends on or in its target."""
    target = place_of(env, target_name)
    if "basket" in target_name:
        target[2] = corners(env, "basket_1")[:, 2].max() + rng.uniform(0.0, 0.03)
        return target + aside(rng, 0, 0.035)
    bottom = place_of(env, name)[2] - corners(env, name)[:, 2].min()
    target[2] += bottom + (0.05 if "bowl" in target_name else 0.022) + rng.uniform(0, 0.012)
    return target + aside(rng, 0, 0.012)


def put(arm: Arm, goals: list[tuple[str, str]], kind: str | None) -> None:
    """Put objects on or into their targets, or fail in some way at the last one."""
    env, rng = arm.env, arm.rng
    *before, (name, target_name) = goals
    for goal in before:
        put(arm, [goal], None)
    if kind == "partial_first_only":
        return
    if kind == "wrong_object":
        name = another_object(env, rng, name, target_name)
    if kind == "reach_only":
        above = aside(rng, 0, 0.03) + vector(0, 0, rng.uniform(0.03, 0.12))
        arm.move(place_of(env, name) + above)
        arm.hold(rng.integers(0, 12))
        return
    held = grasp(arm, name, miss=kind == "miss_grasp")
    target = release_point(env, rng, name, target_name)
    is_basket = "basket" in target_name
    if kind == "grasp_only":
        target = arm.position + aside(rng, 0, 0.05) + vector(0, 0, rng.uniform(0.05, 0.2))
        arm.move(target, tolerance=0.02)
        arm.hold(rng.integers(0, 12))
    elif kind == "drop_midway":
        drop(arm, held, target)
    elif kind == "near_miss_hover":
        target[2] += rng.uniform(0.06, 0.1) if is_basket else rng.uniform(0.03, 0.07)
        carry(arm, held, target)
        arm.hold(rng.integers(4, 20))
    else:
        if kind == "near_miss_offset":
            far = {"basket": (0.125, 0.15), "bowl": (0.065, 0.09), "cook_region": (0.11, 0.14)}
            distances = (each for part, each in far.items() if part in target_name)
            target += aside(rng, *next(distances, (0.055, 0.085)))
            target[2] -= 0.04 if is_basket else 0
        carry(arm, held, target)
        release(arm)


def open_drawer(arm: Arm, kind: str | None) -> None:
    env, rng = arm.env, arm.rng
    points = corners(env, "wooden_cabinet_1_cabinet_middle")
    front = points[points[:, 1] > points[:, 1].max() - 0.016]
    handle = vector(front[:, 0].mean(), points[:, 1].max() - 0.008, front[:, 2].mean())
    arm.turn("x", -90)
    handle += vector(rng.uniform(-0.02, 0.02), rng.uniform(-0.004, 0.004), 0)
    arm.move(handle + vector(0, 0.12, rng.uniform(0.02, 0.06)), tolerance=0.02)
    if kind == "reach_only":
        arm.hold(rng.integers(0, 12))
        return
    arm.move(handle + vector(0, 0.05, 0), tolerance=0.015)
    if kind == "miss_grasp":
        arm.hold(12, CLOSED)
    else:
        arm.move(handle, tolerance=0.006, limit=35)
        arm.hold(rng.integers(12, 18), CLOSED)
    pull = {"near_miss_hover": rng.uniform(0.085, 0.115), "partial_open": rng.uniform(0.04, 0.08)}
    speed, arm.speed = arm.speed, arm.speed * 0.5
    distance = pull.get(str(kind), rng.uniform(0.165, 0.185))
    arm.move(arm.position + vector(0, distance, 0), limit=60)
    arm.speed = speed
    arm.hold(rng.integers(9, 14), OPEN)
    away = vector(0, rng.uniform(0.06, 0.12), rng.uniform(0, 0.06))
    arm.move(arm.position + away, tolerance=0.03)
    arm.hold(rng.integers(0, 16))


def turn_knob(arm: Arm, kind: str | None) -> None:
    env, rng = arm.env, arm.rng
    knob = np.array(env.sim.data.get_body_xpos("flat_stove_1_button")) + aside(rng, 0, 0.003)
    arm.move(knob + vector(0, 0, 0.12), tolerance=0.02)
    if kind == "reach_only":
        arm.hold(rng.integers(0, 12))
        return
    height = 0.06 if kind == "miss_grasp" else 0.03
    arm.move(knob + vector(0, 0, height), tolerance=0.008, limit=50)
    arm.hold(12, CLOSED)
    arm.turn("z", rng.uniform(14, 24) if kind == "near_miss_hover" else rng.uniform(60, 85))
    arm.hold(45)
    arm.hold(10, OPEN)
    retreat(arm)


def stay(arm: Arm, kind: str | None) -> None:
    """Move at random, or not at all."""
    if kind == "noop":
        arm.hold(arm.rng.integers(40, 100))
        return
    move = np.zeros(3)
    for _ in range(arm.rng.integers(60, 120)):
        move = 0.9 * move + 0.1 * arm.rng.uniform(-4, 4, 3)
        arm.step(move, np.zeros(3))


def play(env: Any, seed: int, kind: str | None) -> Arm:
    """Make one rollout; `kind` is that of the failure, or None for a success."""
    env.seed(seed)
    env.reset()
    arm = Arm(env, np.random.default_rng(seed))
    goals = env.env.parsed_problem["goal_state"]
    if kind in {"noop", "random"}:
        stay(arm, kind)
    elif goals[0][0] == "open":
        open_drawer(arm, kind)
    elif goals[0][0] == "turnon":
        turn_knob(arm, kind)
    else:
        put(arm, [(name, target) for _, name, target in goals], kind)
    arm.finish()
    return arm


def kinds_of(task: str) -> tuple[list[str], list[str]]:
    """Return the kinds of near misses and of other failures of a task."""
    if "drawer" in task or "turn_on" in task:
        near = ["near_miss_hover"] + ["partial_open"] * ("drawer" in task)
        return near, ["miss_grasp", "reach_only", "random", "noop"]
    second = "partial_first_only" if "both" in task else "near_miss_offset"
    near = ["near_miss_hover"] + [second] * ("top_of_the_cabinet" not in task)
    others = "drop_midway miss_grasp wrong_object grasp_only reach_only random noop"
    return near, others.split()


def plan(
    rng: np.random.Generator, task: str, successes: int, failures: int
) -> Iterator[tuple[int, str | None]]:
    """Draw a seed and a kind for each rollout; at least two fifths of failures are near misses."""
    near, others = kinds_of(task)
    misses = -(-2 * failures // 5)
    kinds: list[str | None] = [None] * successes
    kinds += [near[i % len(near)] for i in range(misses)]
    kinds += list(rng.choice(others, failures - misses, replace=failures - misses > len(others)))
    for kind in kinds:
        yield int(rng.integers(2**31)), kind


def write_video(path: Path, frames: list[NDArray[np.uint8]]) -> None:
    with av.open(str(path), "w") as file:
        stream = file.add_stream("h264", rate=Fraction(20, STRIDE), options={"crf": "20"})
        stream.width, stream.height, stream.pix_fmt = 256, 256, "yuv420p"
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        file.mux(stream.encode())


def row_of(arm: Arm, suite: str, task: str, seed: int, kind: str | None) -> dict[str, Any]:
    success = arm.success[-1]
    first = arm.success.index(True) if True in arm.success else None
    return {
        "file": f"{suite}__{task[:60]}__{kind or 'success'}__s{seed}.mp4",
        "task_text": re.sub("^[A-Z_0-9]+SCENE[0-9]+_", "", task).replace("_", " "),
        "suite": suite,
        "success": success,
        "meant": kind or "success",
        "failure_kind": None if success else kind or "meant_success",
        "near_miss": not success and kind in kinds_of(task)[0],
        "success_ever": first is not None,
        "first_success_frame": None if first is None else -(-first // STRIDE),
        "seed": seed,
        "steps": len(arm.success) - 1,
        "frames": len(arm.frames),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--successes", type=int, default=5, help="per task")
    parser.add_argument("--failures", type=int, default=5, help="per task")
    parser.add_argument("--tasks", default="", help="only tasks whose name contains this")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for index, name in enumerate(TASKS):
        if args.tasks not in name:
            continue
        suite, task = name.split("/")
        bddl = Path(get_libero_path("bddl_files")) / f"{name}.bddl"
        env = OffScreenRenderEnv(
            bddl_file_name=str(bddl), use_camera_obs=False, hard_reset=False, horizon=100_000
        )
        rng = np.random.default_rng([args.seed, index])
        for seed, kind in plan(rng, task, args.successes, args.failures):
            arm = play(env, seed, kind)
            row = row_of(arm, suite, task, seed, kind)
            write_video(args.folder / row["file"], arm.frames)
            with (args.folder / "manifest.jsonl").open("a") as manifest:
                manifest.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
        env.close()


if __name__ == "__main__":
    main()
