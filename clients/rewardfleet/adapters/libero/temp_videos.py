"""Scored clips as mp4 files, for people to look at."""

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class TempVideos:
    """A new folder with one mp4 per episode. Nothing in it is ever deleted.

    Args:
        parent: Where the folder is created; it is created as well if it does not exist. None means
            the system's folder for temporary files.
        fps: Frames per second of the files, above 0.

    Attributes:
        folder: The folder.

    Raises:
        ValueError: Nothing can be written there.
        ImportError: OpenCV is not installed.
    """

    def __init__(self, parent: str | None, fps: float) -> None:
        try:
            import cv2  # noqa: F401, PLC0415 - optional
        except ModuleNotFoundError:
            raise ImportError(
                "keep_temp_video needs OpenCV: pip install opencv-python-headless"
            ) from None
        try:
            if parent is not None:
                Path(parent).mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix="rewardfleet-", dir=parent))
        except OSError as error:
            raise ValueError(f"temp_video_dir: nothing can be written there: {error}") from None
        self._fps = fps

    def write(self, name: str, frames: NDArray[np.uint8]) -> None:
        """Write frames, [T, H, W, 3], to `name`.mp4.

        Raises:
            OSError: It cannot be written.
        """
        import cv2  # noqa: PLC0415 - optional

        path = self.folder / f"{name}.mp4"
        height, width = frames.shape[1:3]
        fourcc = cv2.VideoWriter.fourcc(*"mp4v")
        writer = cv2.VideoWriter(str(path), fourcc, self._fps, (width, height))
        try:
            if not writer.isOpened():
                raise OSError(f"{path}: OpenCV cannot write this file")
            for frame in frames:
                writer.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
        finally:
            writer.release()
