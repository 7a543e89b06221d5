"""A judge that the user provides, by the protocol of the original LIBERO reward server.

`--custom-backend-factory pkg.mod:build_backend` names a function
`build_backend(args: argparse.Namespace) -> backend`. The backend has a method
`score_video(task_text, video_path, nframes, max_pixels, backend_kwargs) -> (score, raw_output)`:
a plain function runs in a thread, an `async def` on the event loop.
"""

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from rewardfleet.wire.errors import BackendFailed
from rewardfleet_server.threads import run_in_thread
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.prompts import PERCENTAGE, PRIMO_SYSTEM, PRIMO_USER
from rewardfleet_server.video.settings import VideoSettings


def build(name: str, settings: VideoSettings) -> "CustomJudge":
    """Call the user's factory. Its module may be in the current working directory.

    Raises:
        ValueError: There is no such function, it raises, or its backend has no `score_video`.
    """
    factory = settings.custom_backend_factory or ""
    module, colon, attribute = factory.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"--custom-backend-factory {factory}: give pkg.mod:function")
    folder = str(Path.cwd())
    if folder not in sys.path:  # an installed command does not search it, unlike `python -m`
        sys.path.insert(0, folder)
    try:
        build_backend = getattr(importlib.import_module(module), attribute)
        backend = build_backend(_factory_arguments(name, settings))
    except Exception as error:
        raise ValueError(
            f"--custom-backend-factory {factory}: {type(error).__name__}: {error}"
        ) from error
    if not callable(getattr(backend, "score_video", None)):
        raise ValueError(  # noqa: TRY004 - an invalid setting, like the others
            f"--custom-backend-factory {factory}: its backend has no score_video"
        )
    return CustomJudge(factory, backend.score_video)


#: Defaults of the original server that differ from those of this one: its factories rely on them.
_ORIGINAL_DEFAULTS = {
    "model_path": "Qwen/Qwen2.5-VL-7B-Instruct",
    "prompt_template": PERCENTAGE.template,
    "primo_top_p": 0.9,
    "primo_max_tokens": 1024,
    "primo_system_prompt": PRIMO_SYSTEM.template,
    "primo_user_prompt": PRIMO_USER.template,
}


def _factory_arguments(name: str, settings: VideoSettings) -> argparse.Namespace:
    """Return all settings by name; those that are not set have the original server's defaults."""
    values = {**settings.model_dump(), "backend": name}
    defaults = _ORIGINAL_DEFAULTS.keys() - settings.model_fields_set
    return argparse.Namespace(**values | {key: _ORIGINAL_DEFAULTS[key] for key in defaults})


class CustomJudge:
    """Calls `score_video` and checks what it returns.

    Its scores are not cached, because it is unknown what they depend on.

    Args:
        factory: The value of `--custom-backend-factory`, for provenance.
        score_video: The backend's method, a function or a coroutine function.
    """

    deterministic = False
    failure = None

    def __init__(self, factory: str, score_video: Callable[..., Any]) -> None:
        self._score_video = score_video
        self._is_async = inspect.iscoroutinefunction(score_video)
        self._factory = factory
        self._threads = ThreadPoolExecutor(
            min(32, (os.cpu_count() or 1) + 4), thread_name_prefix="custom-judge"
        )

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        return {"judge": "custom", "factory": self._factory}

    def check_options(self, backend_kwargs: Mapping[str, JsonValue]) -> None:
        """Accept any option: they are passed to `score_video`."""

    async def judge_file(
        self,
        task_text: str,
        path: str,
        nframes: int,
        max_pixels: int,
        backend_kwargs: Mapping[str, JsonValue],
    ) -> Judgment:
        """Judge a video file.

        Raises:
            BackendFailed: `score_video` did not return a `(score, text)` with a score in [0, 1].
            Exception: Any exception of `score_video`.
        """
        arguments = (task_text, path, nframes, max_pixels, dict(backend_kwargs))
        if self._is_async:
            result = await self._score_video(*arguments)
        else:
            result = await run_in_thread(self._threads, lambda: self._score_video(*arguments))
        return _checked(result)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _checked(result: object) -> Judgment:
    match result:
        case (bool(), _):
            pass
        case (float() | int() as score, str() as text) if 0 <= score <= 1:
            return Judgment(float(score), text)
    raise BackendFailed(
        f"score_video returned {str(result)[:200]!r}; it must return (score, raw_output_text) "
        "with a number in [0, 1] and a text"
    )
