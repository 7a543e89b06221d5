"""Write a small data set by LeRobot: python write.py FOLDER, where lerobot is installed."""

import inspect
import sys
from pathlib import Path

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

LENGTHS, FPS = (20, 12, 31), 10
NAMES = ["x", "y"]


def main() -> None:
    image = {"dtype": "video", "shape": (96, 128, 3), "names": ["height", "width", "channels"]}
    vector = {"dtype": "float32", "shape": (2,), "names": NAMES}
    features = {"observation.images.top": image, "observation.state": vector, "action": vector}
    data_set = LeRobotDataset.create(
        "tests/set", fps=FPS, features=features, root=Path(sys.argv[1])
    )
    takes_task = "task" in inspect.signature(data_set.add_frame).parameters  # v2.1
    for episode, length in enumerate(LENGTHS):
        for index in range(length):
            frame = {
                "observation.images.top": np.full((96, 128, 3), 50 * episode + 20, np.uint8),
                "observation.state": np.array([index, episode], np.float32),
                "action": np.array([0, 1], np.float32),
            }
            task = {"task": f"task {episode}"}
            if takes_task:
                data_set.add_frame(frame, **task)
            else:
                data_set.add_frame(frame | task)
        data_set.save_episode()
    if not takes_task:
        data_set.finalize()


if __name__ == "__main__":
    main()
