"""Assembly of the video service."""

import logging
from collections.abc import Iterator, Mapping

from rewardfleet.wire.video import FILE_REPLACES, VideoHealth, VideoRequest, VideoScore
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.http.routes import Service
from rewardfleet_server.http.trainers import TrainerApi

from .chat_api import ChatApi
from .judges import Judge
from .judges.calibration import JudgeCalibration
from .judges.labels import LABEL_MASS
from .judges.loading import load_judges
from .metrics import JudgeMetrics
from .rlinf_api import Refusals, RlinfApi
from .scorer import VideoScorer
from .settings import VideoSettings

log = logging.getLogger(__name__)


def create_app(settings: VideoSettings, judges: Mapping[str, Judge] | None = None) -> RewardApp:
    """Create the application of the video service; see `load_judges` for errors.

    Args:
        judges: The judges by name, the default one first; None to load those of the settings.
    """
    if settings.profile:
        log.info("--profile %s: %s", settings.profile, settings.profile_summary())
    calibration = JudgeCalibration(settings.calibration) if settings.calibration else None
    judges = judges or load_judges(settings)
    refusals = Refusals()
    abstention = settings.abstention if isinstance(settings.abstention, float) else None
    rlinf = RlinfApi(abstention, refusals, judges)
    scorer = VideoScorer(settings, judges, refusals, calibration)
    service = Service(
        name="video",
        scorer=scorer,
        request_type=VideoRequest,
        score_type=VideoScore,
        lifespan=scorer.lifespan,
        upload_replaces=FILE_REPLACES,
        takes_frames=True,
        field_schemas={"backend": {"enum": [*sorted(scorer.loaded_names), "", None]}},
        routes=lambda engine: [
            *ChatApi(engine, scorer).routes(),
            *TrainerApi(engine, VideoRequest).routes(),
            *rlinf.routes(engine),
        ],
        collectors=(JudgeMetrics(judges, scorer.calibrations), rlinf.replaced, LABEL_MASS),
        probe=scorer.probe,
        outage=lambda: next((judge.outage for judge in judges.values() if judge.outage), None),
        health=lambda: VideoHealth(
            status="ok", default_backend=scorer.judge_names[0], loaded_backends=sorted(judges)
        ),
        failure=lambda: next((judge.failure for judge in judges.values() if judge.failure), None),
        overview={"judge": ", ".join(judges), "workers": f"{scorer.decode_threads} decode threads"},
        warnings=[*_warnings(settings, calibration)],
        abstention_fails=settings.abstention == "error",
        label_fraction=settings.label_fraction,
    )
    return RewardApp(service, settings)


def _warnings(settings: VideoSettings, calibration: JudgeCalibration | None) -> Iterator[str]:
    if not settings.video_root:
        yield (
            "every video_path will be refused; --video-root FOLDER names a folder whose files may "
            "be read"
        )
    if isinstance(settings.abstention, float):
        yield (
            f"ABSTENTIONS ARE SCORED {settings.abstention:g} ON /rlinf/score: a trainer that calls "
            "it learns from this number as from a judgment, although the judge saw no evidence; a "
            "high rewardfleet_replaced_abstentions_total means that it learns from nothing else. "
            "On all other routes, an abstention has no score"
        )
    elif settings.profile:
        yield (
            f"--profile {settings.profile} without a number as --abstention: /rlinf/score is "
            "closed, and RLinf-RLAIF's client takes the simulator's success for a score that is "
            "null; --abstention 0 answers what the original did"
        )
    if calibration is not None and calibration.drift is None:
        yield (
            f"--calibration {settings.calibration} has no distribution of scores: scores are "
            "calibrated, and not compared with those of the labels; `rewardfleet calibrate` of "
            "this version writes it"
        )
    for name in settings.judges_with_own_prompts():
        judge = f"{name}." if len(settings.backends) > 1 else ""
        yield (
            f"--profile {settings.profile}: the judge {name} asks in other words than the "
            f"original; --set {judge}prompts=FILE reads its prompts from your copy of "
            "vlm_reward/libero_reward_server.py"
        )
