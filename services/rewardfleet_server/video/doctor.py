"""Checks of `rewardfleet doctor` for the video service."""

import importlib
from collections.abc import Iterator

from rewardfleet_server.commands.doctor import Diagnosis, check_extra
from rewardfleet_server.system.optional_imports import install_command

from .settings import VideoSettings, gpu_count

#: The modules that decode frames, and their packages.
_DECODERS = {"cv2": "OpenCV", "PIL.Image": "Pillow"}


def checks(settings: VideoSettings) -> Iterator[Diagnosis]:
    """Check the packages that decode frames, those of the judges, and the GPUs."""
    for module, package in _DECODERS.items():
        try:
            importlib.import_module(module)
        except ImportError as error:  # also if a shared library of the system is missing
            what = f"video: decoding with {package}: {error}"
            yield Diagnosis("failed", what, install_command("server"))
        else:
            yield Diagnosis("ok", f"video: decoding with {package}")
    yield Diagnosis("ok", "video: judges reference and openai")
    requested = set(settings.backends)
    uses_vllm = bool(requested & {"qwen2_5_vl_vllm", "PRIMO-R1", "primo_r1_vllm"})
    what = "video: judges qwen2_5_vl_vllm and PRIMO-R1"
    yield check_extra("vllm", what, "vllm", required=uses_vllm)
    yield check_extra(
        "transformers",
        "video: judge transformers",
        *("torch", "torchvision", "transformers"),
        required="transformers" in requested,
    )
    count = gpu_count()
    if count:
        yield Diagnosis("ok", f"video: {count} GPUs")
    elif count is None:
        yield Diagnosis("note", "video: GPUs are unknown, as torch is not installed")
    else:
        yield Diagnosis("note", "video: no GPU; the judge transformers also runs on a CPU")
