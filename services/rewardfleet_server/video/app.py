"""Assembly of the video service."""

import os
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager

from rewardfleet.wire.video import FILE_REPLACES, VideoHealth, VideoRequest, VideoScore
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.http.routes import Service
from rewardfleet_server.http.trainers import TrainerApi
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.system.threads import lower_thread_priority

from .chat_api import ChatApi
from .fetch import Fetcher
from .judges import Judge
from .judges.loading import load_judges
from .metrics import JudgeMetrics
from .scorer import VideoScorer
from .settings import VideoSettings
from .sources import VideoFiles

_NO_VIDEO_ROOT = (
    "every video_path will be refused; --video-root FOLDER names a folder whose files may be read"
)


def create_app(settings: VideoSettings, judges: Mapping[str, Judge] | None = None) -> RewardApp:
    """Create the application of the video service.

    Args:
        settings: Its settings.
        judges: The judges by name, the default one first; None to load those of the settings.

    Raises:
        ValueError: The settings name a judge that does not exist or cannot be loaded.
    """
    judges = judges or load_judges(settings)
    default = next(iter(judges))
    readers = ThreadPoolExecutor(2, thread_name_prefix="read")
    decode_threads = max(2, os.cpu_count() or 1)
    decoders = ThreadPoolExecutor(
        2 * decode_threads,  # for small and for large clips; the system shares the cores
        thread_name_prefix="decode",
        initializer=lower_thread_priority,
    )
    max_bytes = settings.max_body_mb * 2**20
    fetcher = Fetcher(settings.video_url_host, max_bytes=max_bytes)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.callback(readers.shutdown, wait=False, cancel_futures=True)
            stack.callback(decoders.shutdown, wait=False, cancel_futures=True)
            stack.push_async_callback(fetcher.aclose)
            for judge in judges.values():
                await stack.enter_async_context(judge.lifespan())
            yield

    scorer = VideoScorer(
        judges,
        default=default,
        files=VideoFiles(settings.video_root, max_bytes=max_bytes),
        fetcher=fetcher,
        readers=readers,
        decoders=decoders,
        max_decoders=decode_threads,
        max_video_bytes=max_bytes,
    )
    service = Service(
        name="video",
        description=SERVICES["video"].description,
        scorer=scorer,
        request_type=VideoRequest,
        score_type=VideoScore,
        lifespan=lifespan,
        upload_replaces=FILE_REPLACES,
        takes_frames=True,
        field_schemas={"backend": {"enum": [*scorer.accepted_names, "", None]}},
        routes=lambda engine: [
            *ChatApi(engine, scorer).routes(),
            *TrainerApi(engine, VideoRequest).routes(),
        ],
        collectors=(JudgeMetrics(judges),),
        health=lambda: VideoHealth(
            status="ok", default_backend=default, loaded_backends=sorted(judges)
        ),
        failure=lambda: next((judge.failure for judge in judges.values() if judge.failure), None),
        overview={"judge": ", ".join(judges), "workers": f"{decode_threads} decode threads"},
        warnings=() if settings.video_root else (_NO_VIDEO_ROOT,),
        abstention_fails=settings.abstention == "error",
    )
    return RewardApp(service, settings)
