"""Checks of `rewardfleet doctor` for the video service."""

import importlib
from collections.abc import Iterator

from rewardfleet.wire.optional_imports import install_command
from rewardfleet_server.system.diagnosis import Diagnosis, check_extra

from .judges.settings import ENGINES, built_in
from .settings import VideoSettings, gpu_count

#: The modules that decode frames, and their packages.
_DECODERS = {"av": "PyAV", "cv2": "OpenCV", "PIL.Image": "Pillow"}


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
    try:
        built_ins = [name for name in settings.backends if built_in(name)]
    except ImportError:  # of a package that decodes frames, which is reported above
        built_ins = []
    engines = {settings.judge_settings(name).runs_on for name in built_ins}
    for engine, modules in ENGINES.items():
        what = f"video: judges on {engine}"
        yield check_extra(engine, what, *modules, required=engine in engines)
    count = gpu_count()
    if count:
        yield Diagnosis("ok", f"video: {count} GPUs")
    elif count is None:
        yield Diagnosis("note", "video: GPUs are unknown, as torch is not installed")
    else:
        yield Diagnosis("note", "video: no GPU; the judge transformers also runs on a CPU")
