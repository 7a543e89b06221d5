"""A scripted arm in a LIBERO environment, for `libero_rollouts.py`."""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

Vector = NDArray[np.float64]

OPEN, CLOSED = -1.0, 1.0
STRIDE = 8  # steps per picture: 2.5 pictures a second
_SETTLE = 16  # steps until objects lie still, before the first picture
WIDEST_GRASP = 0.072  # meters
_RIM = 0.004  # meters by which the rim of a bowl is inside of its widest point


class Arm:
    """Moves the arm of an environment, and records pictures and whether the task is done."""

    def __init__(self, env: Any, rng: np.random.Generator) -> None:
        self.env, self.rng = env, rng
        self.speed = rng.uniform(0.55, 1.0)
        self.noise = rng.choice([0.0, 0.0, 0.1, 0.2])
        self.grip = OPEN
        self.frames: list[NDArray[np.uint8]] = []
        self.success: list[bool] = []
        for _ in range(_SETTLE):
            env.step([0.0] * 6 + [OPEN])
        self.down = self.target_rotation = self.rotation
        self._record()

    @property
    def position(self) -> Vector:
        return np.array(self.env.sim.data.site_xpos[self.env.robots[0].eef_site_id])

    @property
    def rotation(self) -> Rotation:
        matrix = self.env.sim.data.site_xmat[self.env.robots[0].eef_site_id]
        return Rotation.from_matrix(matrix.reshape(3, 3))

    def move(self, target: Vector, *, tolerance: float = 0.012, limit: int = 70) -> None:
        """Move the gripper to a point in a straight line."""
        for _ in range(limit):
            error = target - self.position
            turn = (self.target_rotation * self.rotation.inv()).as_rotvec()
            if np.linalg.norm(error) < tolerance and np.linalg.norm(turn) < 0.15:
                return
            self.step(error * 10, turn * 2)

    def hold(self, steps: int, grip: float | None = None) -> None:
        self.grip = self.grip if grip is None else grip
        for _ in range(steps):
            turn = (self.target_rotation * self.rotation.inv()).as_rotvec()
            self.step(np.zeros(3), turn, noise=0.3)

    def turn(self, axis: str, degrees: float) -> None:
        """Let later moves end with another rotation: that at the start, turned in the world."""
        self.target_rotation = Rotation.from_euler(axis, degrees, degrees=True) * self.down

    def finish(self) -> None:
        self.hold(-(len(self.success) - 1) % STRIDE)

    def step(self, move: Vector, turn: Vector, noise: float = 1.0) -> None:
        move = np.clip(move, -self.speed, self.speed)
        move += self.rng.normal(0, 1, 3) * self.noise * noise
        self.env.step(np.clip([*move, *np.clip(turn, -0.6, 0.6), self.grip], -1, 1))
        self._record()

    def _record(self) -> None:
        if len(self.success) % STRIDE == 0:
            picture = self.env.sim.render(256, 256, camera_name="agentview")
            self.frames.append(np.ascontiguousarray(picture[::-1]))
        self.success.append(bool(self.env.check_success()))


def vector(x: float, y: float, z: float) -> Vector:
    return np.array([x, y, z])


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


def aside(rng: np.random.Generator, least: float, most: float) -> Vector:
    angle, distance = rng.uniform(0, 2 * np.pi), rng.uniform(least, most)
    return vector(distance * np.cos(angle), distance * np.sin(angle), 0)


def grasp(arm: Arm, name: str, *, miss: bool) -> Vector:
    """Close the gripper around an object; return where its center is, seen from the gripper."""
    rng, points = arm.rng, corners(arm.env, name)
    top, bottom = points[:, 2].max(), points[:, 2].min()
    center, size, angle = cv2.minAreaRect(points[:, :2].astype(np.float32))
    point = vector(*center, max(bottom + 0.012, top - rng.uniform(0.025, 0.035)))
    if min(size) < WIDEST_GRASP:
        # The fingers open along y: turn so that this is the narrow side.
        narrow = angle if size[0] < size[1] else angle + 90
        arm.turn("z", (narrow - 90 + 90) % 180 - 90 if max(size) > 1.15 * min(size) else 0)
    else:  # a bowl: one finger inside of it
        side = 1 if rng.random() < 0.5 else -1
        point[1] += side * (max(size) / 2 - _RIM)
        point[2] = top - rng.uniform(0.012, 0.02)
    if miss:
        point += aside(rng, 0.05, 0.09)
    arm.move(point + vector(0, 0, rng.uniform(0.08, 0.16)), tolerance=0.02)
    arm.move(point, tolerance=0.008)
    arm.hold(rng.integers(10, 14), CLOSED)
    return np.zeros(3) if miss else place_of(arm.env, name) - arm.position


def carry(arm: Arm, held: Vector, target: Vector) -> None:
    """Bring the center of what is held to a target, from above."""
    lift = max(arm.position[2], target[2]) + arm.rng.uniform(0.14, 0.2)
    arm.move(vector(*arm.position[:2], lift), tolerance=0.03)
    goal = target - held
    arm.move(vector(*goal[:2], max(lift, goal[2])), tolerance=0.02, limit=90)
    arm.move(goal, tolerance=0.01)


def release(arm: Arm) -> None:
    arm.hold(arm.rng.integers(9, 14), OPEN)
    retreat(arm)


def retreat(arm: Arm) -> None:
    """Move up and away to a random place, and perhaps wait."""
    rng = arm.rng
    arm.move(arm.position + vector(0, 0, rng.uniform(0.08, 0.16)), tolerance=0.02)
    if rng.random() < 0.7:
        away = rng.uniform([-0.18, -0.15, 0], [0.02, 0.15, 0.1])
        arm.move(arm.position + away, tolerance=0.03, limit=25)
    arm.hold(rng.integers(0, 16))
