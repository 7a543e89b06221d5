"""A user's own judge, by the contract of the first LIBERO reward server.

`--custom-backend-factory pkg.mod:build_backend` names a function
`build_backend(args: argparse.Namespace) -> backend`, and the backend has
`score_video(task_text, video_path, nframes, max_pixels, backend_kwargs) -> (score, raw_output)`:
a plain function, which runs in a thread, or an `async def`, which runs on the event loop.
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
    """Call the user's factory.

    Raises:
        ValueError: There is no such function, it raises, or what it returns has no `score_video`.
    """
    factory = settings.custom_backend_factory or ""
    module, colon, attribute = factory.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"--custom-backend-factory: give pkg.mod:function, not {factory!r}")
    here = str(Path.cwd())
    if here not in sys.path:  # a command does not look there, unlike `python -m`
        sys.path.insert(0, here)
    try:
        build_backend = getattr(importlib.import_module(module), attribute)
        backend = build_backend(_factory_arguments(name, settings))
    except Exception as error:
        raise ValueError(
            f"--custom-backend-factory {factory}: {type(error).__name__}: {error}"
        ) from error
    if not callable(getattr(backend, "score_video", None)):
        raise ValueError(  # noqa: TRY004 - a wrong setting, like the others
            f"--custom-backend-factory {factory}: its backend has no score_video"
        )
    return CustomJudge(factory, backend.score_video)


#: Defaults of the original server where ours differ: its factories rely on them.
_ORIGINAL_DEFAULTS = {
    "model_path": "Qwen/Qwen2.5-VL-7B-Instruct",
    "prompt_template": PERCENTAGE.template,
    "primo_top_p": 0.9,
    "primo_max_tokens": 1024,
    "primo_system_prompt": PRIMO_SYSTEM.template,
    "primo_user_prompt": PRIMO_USER.template,
}


def _factory_arguments(name: str, settings: VideoSettings) -> argparse.Namespace:
    """Return all settings by name; what is not set has the original server's default."""
    values = {**settings.model_dump(), "backend": name}
    defaults = _ORIGINAL_DEFAULTS.keys() - settings.model_fields_set
    return argparse.Namespace(**values | {key: _ORIGINAL_DEFAULTS[key] for key in defaults})


class CustomJudge:
    """Calls `score_video` and checks what it returns. Its answers are not cached.

    They may hang on anything; the user's own cache knows better.
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
        """Take any: they are the backend's own."""

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
            BackendFailed: What came back is no `(score, text)` with a score in [0, 1].
            Exception: Whatever the backend raises.
        """
        arguments = (task_text, path, nframes, max_pixels, dict(backend_kwargs))
        if self._is_async:
            answer = await self._score_video(*arguments)
        else:
            answer = await run_in_thread(self._threads, lambda: self._score_video(*arguments))
        return _checked(answer)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        yield
        self._threads.shutdown(wait=False, cancel_futures=True)


def _checked(answer: object) -> Judgment:
    match answer:
        case (bool(), _):
            pass
        case (float() | int() as score, str() as text) if 0 <= score <= 1:
            return Judgment(float(score), text)
    raise BackendFailed(
        f"score_video returned {str(answer)[:200]!r}; it must return (score, raw_output_text) "
        "with a number in [0, 1] and a text"
    )
