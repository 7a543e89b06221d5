"""Make LIBERO rollouts whose outcome the simulator knows, successes and failures of many kinds.

    python tests/bench/libero_rollouts.py OUT SEED [--successes 5] [--failures 5] [--tasks TEXT]

A scripted controller reads the poses of objects and moves the arm through waypoints; its starts,
speeds, heights, grasps, noise and retreats are random. `success` is LIBERO's own `check_success()`
after the last step, whatever the script meant to do: the kind of failure in the manifest is that
intention, and no rollout is thrown away. Needs the packages `hf-libero` and `av`, LIBERO's assets,
and not this project.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from libero.libero import get_libero_path
from libero.libero.envs import OffScreenRenderEnv
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

Vector = NDArray[np.float64]

#: Suite and file of each task.
TASKS = [
    ("libero_goal", "open_the_middle_drawer_of_the_cabinet"),
    ("libero_goal", "put_the_bowl_on_the_plate"),
    ("libero_goal", "put_the_bowl_on_the_stove"),
    ("libero_goal", "put_the_bowl_on_top_of_the_cabinet"),
    ("libero_goal", "put_the_cream_cheese_in_the_bowl"),
    ("libero_goal", "turn_on_the_stove"),
    ("libero_object", "pick_up_the_alphabet_soup_and_place_it_in_the_basket"),
    ("libero_object", "pick_up_the_butter_and_place_it_in_the_basket"),
    ("libero_object", "pick_up_the_cream_cheese_and_place_it_in_the_basket"),
    ("libero_object", "pick_up_the_tomato_sauce_and_place_it_in_the_basket"),
    (
        "libero_spatial",
        "pick_up_the_black_bowl_between_the_plate_and_the_ramekin_and_place_it_on_the_plate",
    ),
    ("libero_spatial", "pick_up_the_black_bowl_from_table_center_and_place_it_on_the_plate"),
    ("libero_spatial", "pick_up_the_black_bowl_next_to_the_plate_and_place_it_on_the_plate"),
    (
        "libero_10",
        "LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_the_tomato_sauce_in_the_basket",
    ),
]

_OPEN, _CLOSED = -1.0, 1.0
_STRIDE = 8  # steps per picture: 2.5 pictures a second
_SETTLE = 16  # steps until objects lie still, before the first picture
_WIDEST_GRASP = 0.072  # meters
_RIM = 0.004  # meters by which the rim of a bowl is inside of its widest point


class Arm:
    """Moves the arm of an environment, and records pictures and whether the task is done."""

    def __init__(self, env: Any, rng: np.random.Generator) -> None:
        self.env, self.rng = env, rng
        self.speed = rng.uniform(0.55, 1.0)
        self.noise = rng.choice([0.0, 0.0, 0.1, 0.2])
        self.grip = _OPEN
        self.frames: list[NDArray[np.uint8]] = []
        self.success: list[bool] = []
        for _ in range(_SETTLE):
            env.step([0.0] * 6 + [_OPEN])
        self.down = self.rotation
        self.rotation_target = self.down
        self._record()

    @property
    def position(self) -> Vector:
        site = self.env.robots[0].eef_site_id
        return np.array(self.env.sim.data.site_xpos[site])

    @property
    def rotation(self) -> Rotation:
        site = self.env.robots[0].eef_site_id
        return Rotation.from_matrix(self.env.sim.data.site_xmat[site].reshape(3, 3))

    def move(self, target: Vector, *, tolerance: float = 0.012, limit: int = 70) -> None:
        """Move the gripper to a point in a straight line."""
        for _ in range(limit):
            error = target - self.position
            turn = (self.rotation_target * self.rotation.inv()).as_rotvec()
            if np.linalg.norm(error) < tolerance and np.linalg.norm(turn) < 0.15:
                return
            self._step(error * 10, turn * 2)

    def hold(self, steps: int, grip: float | None = None) -> None:
        if grip is not None:
            self.grip = grip
        turn = self.rotation_target
        for _ in range(steps):
            self._step(np.zeros(3), (turn * self.rotation.inv()).as_rotvec(), noise=0.3)

    def turn(self, around: str, degrees: float) -> None:
        """Let later moves end with another rotation: that at the start, turned in the world."""
        self.rotation_target = Rotation.from_euler(around, degrees, degrees=True) * self.down

    def finish(self) -> None:
        self.hold(-(len(self.success) - 1) % _STRIDE)

    def _step(self, move: Vector, turn: Vector, noise: float = 1.0) -> None:
        move = np.clip(move, -self.speed, self.speed)
        move += self.rng.normal(0, 1, 3) * self.noise * noise
        action = np.clip([*move, *np.clip(turn, -0.6, 0.6), self.grip], -1, 1)
        self.env.step(action)
        self._record()

    def _record(self) -> None:
        if len(self.success) % _STRIDE == 0:
            picture = self.env.sim.render(256, 256, camera_name="agentview")
            self.frames.append(np.ascontiguousarray(picture[::-1]))
        self.success.append(bool(self.env.check_success()))


def place_of(env: Any, name: str) -> Vector:
    """Return the position of an object, or of a region."""
    if name in env.env.obj_body_id:
        return np.array(env.sim.data.body_xpos[env.env.obj_body_id[name]])
    return np.array(env.sim.data.get_site_xpos(name))


def corners(env: Any, name: str) -> Vector:
    """Return the corners of the boxes that an object consists of, `[N, 3]`."""
    model, data, points = env.sim.model, env.sim.data, []
    body = env.env.obj_body_id[name] if name in env.env.obj_body_id else model.body_name2id(name)
    for geom in range(model.ngeom):
        if model.geom_bodyid[geom] == body and model.geom_contype[geom]:
            signs = np.array(np.meshgrid(*[[-1, 1]] * 3)).reshape(3, -1).T
            local = signs * model.geom_size[geom]
            points.append(local @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom])
    return np.concatenate(points)


def is_graspable(env: Any, name: str) -> bool:
    points = corners(env, name)
    (_, size, _) = cv2.minAreaRect(points[:, :2].astype(np.float32))
    return min(size) < _WIDEST_GRASP or "bowl" in name


def grasp(arm: Arm, name: str, *, miss: bool = False) -> Vector:
    """Close the gripper around an object; return where its center is, seen from the gripper."""
    env, rng = arm.env, arm.rng
    points = corners(env, name)
    top, bottom = points[:, 2].max(), points[:, 2].min()
    center, size, angle = cv2.minAreaRect(points[:, :2].astype(np.float32))
    point = np.array([*center, max(bottom + 0.012, top - rng.uniform(0.025, 0.035))])
    if min(size) < _WIDEST_GRASP:
        # The fingers open along y: turn so that this is the narrow side.
        narrow = angle if size[0] < size[1] else angle + 90
        arm.turn("z", (narrow - 90 + 90) % 180 - 90 if max(size) > 1.15 * min(size) else 0)
    else:  # a bowl: one finger inside of it
        side = 1 if rng.random() < 0.5 else -1
        point[1] += side * (max(size) / 2 - _RIM)
        point[2] = top - rng.uniform(0.012, 0.02)
    if miss:
        point[:2] += aside(rng, 0.05, 0.09)
    above = point + [0, 0, rng.uniform(0.08, 0.16)]
    arm.move(above, tolerance=0.02)
    arm.move(point, tolerance=0.008)
    arm.hold(rng.integers(10, 14), _CLOSED)
    return place_of(env, name) - arm.position


def carry(arm: Arm, held: Vector, target: Vector, height: float) -> None:
    """Move what is held above a target; `height` is that of its center above the target."""
    lift = max(arm.position[2], target[2]) + arm.rng.uniform(0.14, 0.2)
    arm.move(np.array([*arm.position[:2], lift]), tolerance=0.03)
    goal = target - held + [0, 0, height]
    arm.move(np.array([*goal[:2], max(lift, goal[2])]), tolerance=0.02, limit=90)
    arm.move(goal, tolerance=0.01)


def release(arm: Arm) -> None:
    arm.hold(arm.rng.integers(9, 14), _OPEN)
    retreat(arm)


def retreat(arm: Arm) -> None:
    """Move up and away to a random place, and perhaps wait."""
    rng = arm.rng
    arm.move(arm.position + [0, 0, rng.uniform(0.08, 0.16)], tolerance=0.02)
    if rng.random() < 0.7:
        away = rng.uniform([-0.18, -0.15, 0], [0.02, 0.15, 0.1])
        arm.move(arm.position + away, tolerance=0.03, limit=25)
    arm.hold(rng.integers(0, 16))


def aside(rng: np.random.Generator, least: float, most: float) -> Vector:
    angle, distance = rng.uniform(0, 2 * np.pi), rng.uniform(least, most)
    return distance * np.array([np.cos(angle), np.sin(angle)])


def put(arm: Arm, goals: list[tuple[str, str]], kind: str | None) -> None:
    """Put objects on or into their targets, or fail in some way at the last one."""
    env, rng = arm.env, arm.rng
    *before, (name, target_name) = goals
    for first, first_target in before:
        put(arm, [(first, first_target)], None)
    if kind == "partial_first_only":
        return
    is_basket, in_bowl = "basket" in target_name, "bowl" in target_name
    if kind == "wrong_object":
        others = sorted(
            set(env.env.objects_dict) - {name, target_name, env.env.obj_of_interest[-1]}
        )
        name = str(rng.choice([o for o in others if "basket" not in o and is_graspable(env, o)]))
    if kind == "reach_only":
        arm.move(place_of(env, name) + [*aside(rng, 0, 0.03), rng.uniform(0.03, 0.12)])
        return arm.hold(rng.integers(0, 12))
    held = grasp(arm, name, miss=kind == "miss_grasp")
    if kind == "miss_grasp":
        held = np.zeros(3)
    target = place_of(env, target_name)
    if is_basket:
        target[2] = corners(env, "basket_1")[:, 2].max()
        height = rng.uniform(0.0, 0.03)
    else:
        bottom = place_of(env, name)[2] - corners(env, name)[:, 2].min()
        above_target = 0.05 if in_bowl else 0.022
        height = bottom + above_target + rng.uniform(0, 0.012)
    target[:2] += aside(rng, 0, 0.035 if is_basket else 0.012)
    if kind == "grasp_only":
        arm.move(arm.position + [*aside(rng, 0, 0.05), rng.uniform(0.05, 0.2)], tolerance=0.02)
        return arm.hold(rng.integers(0, 12))
    if kind == "drop_midway":
        share = rng.uniform(0.3, 0.65)
        between = arm.position + (target - held - arm.position) * share
        arm.move(arm.position + [0, 0, rng.uniform(0.1, 0.18)], tolerance=0.03)
        arm.move(np.array([*between[:2], arm.position[2]]), tolerance=0.02)
        return release(arm)
    if kind == "near_miss_offset":
        least, most = (0.125, 0.15) if is_basket else (0.065, 0.09) if in_bowl else (0.055, 0.085)
        if "cook_region" in target_name:
            least, most = 0.11, 0.14
        target[:2] += aside(rng, least, most)
        if is_basket:
            height -= 0.04
    if kind == "near_miss_hover":
        height += rng.uniform(0.06, 0.1) if is_basket else rng.uniform(0.03, 0.07)
    carry(arm, held, target, height)
    if kind == "near_miss_hover":
        return arm.hold(rng.integers(4, 20))
    release(arm)


def open_drawer(arm: Arm, kind: str | None) -> None:
    env, rng = arm.env, arm.rng
    points = corners(env, "wooden_cabinet_1_cabinet_middle")
    front = points[points[:, 1] > points[:, 1].max() - 0.016]
    handle = np.array([front[:, 0].mean(), points[:, 1].max() - 0.008, front[:, 2].mean()])
    arm.turn("x", -90)
    handle += [rng.uniform(-0.02, 0.02), rng.uniform(-0.004, 0.004), 0]
    arm.move(handle + [0, 0.12, rng.uniform(0.02, 0.06)], tolerance=0.02)
    if kind == "reach_only":
        return arm.hold(rng.integers(0, 12))
    arm.move(handle + [0, 0.05, 0], tolerance=0.015)
    if kind == "miss_grasp":
        arm.hold(12, _CLOSED)
    else:
        arm.move(handle, tolerance=0.006, limit=35)
        arm.hold(rng.integers(12, 18), _CLOSED)
    pull = {"near_miss_hover": rng.uniform(0.085, 0.115), "partial_open": rng.uniform(0.04, 0.08)}
    speed, arm.speed = arm.speed, arm.speed * 0.5
    arm.move(arm.position + [0, pull.get(str(kind), rng.uniform(0.165, 0.185)), 0], limit=60)
    arm.speed = speed
    arm.hold(rng.integers(9, 14), _OPEN)
    arm.move(arm.position + [0, rng.uniform(0.06, 0.12), rng.uniform(0, 0.06)], tolerance=0.03)
    arm.hold(rng.integers(0, 16))


def turn_knob(arm: Arm, kind: str | None) -> None:
    env, rng = arm.env, arm.rng
    knob = np.array(env.sim.data.get_body_xpos("flat_stove_1_button"))
    knob[:2] += aside(rng, 0, 0.003)
    arm.move(knob + [0, 0, 0.12], tolerance=0.02)
    if kind == "reach_only":
        return arm.hold(rng.integers(0, 12))
    arm.move(knob + [0, 0, 0.06 if kind == "miss_grasp" else 0.03], tolerance=0.008, limit=50)
    arm.hold(12, _CLOSED)
    arm.turn("z", rng.uniform(14, 24) if kind == "near_miss_hover" else rng.uniform(60, 85))
    arm.hold(45)
    arm.hold(10, _OPEN)
    retreat(arm)


def stay(arm: Arm, kind: str | None) -> None:
    """Move at random, or not at all."""
    if kind == "noop":
        return arm.hold(int(arm.rng.integers(40, 100)))
    move = np.zeros(3)
    for _ in range(arm.rng.integers(60, 120)):
        move = 0.9 * move + 0.1 * arm.rng.uniform(-4, 4, 3)
        arm._step(move, np.zeros(3))


def play(env: Any, seed: int, kind: str | None) -> Arm:
    """Make one rollout; `kind` is that of the failure, or None for a success."""
    env.seed(seed)
    np.random.seed(seed)  # the placement of objects
    env.reset()
    arm = Arm(env, np.random.default_rng(seed))
    goal = env.env.parsed_problem["goal_state"]
    scripts: dict[str, Callable[[Arm, str | None], None]] = {
        "open": open_drawer,
        "turnon": turn_knob,
    }
    script = scripts.get(goal[0][0], lambda arm, kind: put(arm, [g[1:] for g in goal], kind))
    (stay if kind in {"noop", "random"} else script)(arm, kind)
    arm.finish()
    return arm


def kinds_of(task: str) -> tuple[list[str], list[str]]:
    """Return the kinds of near misses and of other failures of a task."""
    if "drawer" in task:
        return ["near_miss_hover", "partial_open"], ["miss_grasp", "reach_only", "random", "noop"]
    if "turn_on" in task:
        return ["near_miss_hover"], ["miss_grasp", "reach_only", "random", "noop"]
    near = ["near_miss_hover", "near_miss_offset"]
    others = ["drop_midway", "miss_grasp", "wrong_object", "grasp_only", "reach_only", "random"]
    if "top_of_the_cabinet" in task:
        near = ["near_miss_hover"]
    if "both" in task:
        near = ["near_miss_hover", "partial_first_only"]
    return near, [*others, "noop"]


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
        stream = file.add_stream("h264", rate=Fraction(20, _STRIDE), options={"crf": "20"})
        stream.width, stream.height, stream.pix_fmt = 256, 256, "yuv420p"
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        file.mux(stream.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--successes", type=int, default=5, help="per task")
    parser.add_argument("--failures", type=int, default=5, help="per task")
    parser.add_argument("--tasks", default="", help="only tasks whose name contains this")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for index, (suite, task) in enumerate(TASKS):
        if args.tasks not in f"{suite}/{task}":
            continue
        rng = np.random.default_rng([args.seed, index])
        bddl = Path(get_libero_path("bddl_files")) / suite / f"{task}.bddl"
        env = OffScreenRenderEnv(
            bddl_file_name=str(bddl), use_camera_obs=False, hard_reset=False, horizon=100_000
        )
        for seed, kind in plan(rng, task, args.successes, args.failures):
            arm = play(env, seed, kind)
            success = arm.success[-1]
            name = f"{suite}__{task[:60]}__{kind or 'success'}__s{seed}.mp4"
            write_video(args.out / name, arm.frames)
            first = arm.success.index(True) if True in arm.success else None
            row = {
                "file": name,
                "task_text": re.sub("^[A-Z_0-9]+SCENE[0-9]+_", "", task).replace("_", " "),
                "suite": suite,
                "success": success,
                "meant": kind or "success",
                "failure_kind": None if success else kind or "meant_success",
                "near_miss": not success and kind in kinds_of(task)[0],
                "success_ever": first is not None,
                "first_success_frame": None if first is None else -(-first // _STRIDE),
                "seed": seed,
                "steps": len(arm.success) - 1,
                "frames": len(arm.frames),
            }
            with (args.out / "manifest.jsonl").open("a") as manifest:
                manifest.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
        env.close()


if __name__ == "__main__":
    main()
