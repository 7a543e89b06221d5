"""The judge `reference`; see `rewardfleet_server.video.references.matcher`."""

from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from pydantic import DirectoryPath, JsonValue

from rewardfleet_server.system.threads import run_in_thread, usable_cores
from rewardfleet_server.video.clip.frames import Clip
from rewardfleet_server.video.references.library import SHIPPED, load_library
from rewardfleet_server.video.references.matcher import Library, ReferenceMatcher
from rewardfleet_server.video.settings import VideoSettings

from . import BackendKwargs, Judgment
from .options import JudgeOptions
from .settings import BuiltInJudge, JudgeSettings, own

#: Increased when scores change, so that judgments cached before are not used any more.
_VERSION = 5


class ReferenceSettings(JudgeSettings):
    library: DirectoryPath | None = own(None, "Labeled rollouts. Default: those in the package.")


def build(settings: ReferenceSettings, service: VideoSettings) -> "ReferenceJudge":
    """Build the judge; raise ValueError if there is no library, or if it is damaged."""
    del service
    folder = settings.library or SHIPPED
    try:
        return ReferenceJudge(load_library(folder))
    except ValueError as error:
        raise ValueError(f"library {folder}: {error}") from error


class ReferenceJudge:
    """Compares the end of a clip with labeled rollouts of its task, without a model or a GPU."""

    deterministic = True
    failure = outage = None

    def __init__(self, library: Library) -> None:
        self._matcher = ReferenceMatcher(library)
        self._threads = ThreadPoolExecutor(usable_cores(), thread_name_prefix="compare")
        self.provenance: Mapping[str, JsonValue] = {
            "judge": f"reference v{_VERSION}",
            "library": library.fingerprint,
            "references": len(library.references),
        }

    def check_options(self, backend_kwargs: BackendKwargs) -> None:
        if backend_kwargs:
            JudgeOptions.of(backend_kwargs)  # which have no effect

    async def judge(self, task_text: str, clip: Clip, backend_kwargs: BackendKwargs) -> Judgment:
        del backend_kwargs  # they have no effect
        comparing = partial(self._matcher.compare, task_text, clip.frames)
        return await run_in_thread(self._threads, comparing)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)


JUDGE = BuiltInJudge(
    "reference",
    ReferenceSettings,
    build,
    "Compares the end of a clip with labeled rollouts of the same task. No model.",
)
