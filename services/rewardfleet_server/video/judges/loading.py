"""Find and load the judges that the settings name."""

from collections.abc import Iterable

from rewardfleet_server.registry import load_attribute
from rewardfleet_server.video.settings import ALIASES, VideoSettings, gpu_count, select_gpus

from . import JUDGES, DeferredJudge, Judge, custom


def load_judges(settings: VideoSettings) -> dict[str, Judge]:
    """Load the judges of `--backend`, by name.

    GPUs are selected first, then all judges are checked, then their models are loaded.

    Raises:
        ValueError: A judge does not exist, or cannot work with these settings.
    """
    select_gpus(settings)
    found = {name: find_judge(name, settings) for name in settings.backends}
    _check_gpu_memory(found.values())
    return {
        name: judge.load() if isinstance(judge, DeferredJudge) else judge
        for name, judge in found.items()
    }


def find_judge(name: str, settings: VideoSettings) -> Judge | DeferredJudge:
    """Build a judge of `JUDGES`, or the one that the user provides; models are not loaded yet.

    Raises:
        ValueError: There is no such judge, or it cannot work with these settings.
    """
    target = JUDGES.get(ALIASES.get(name, name))
    if target is None and settings.custom_backend_factory is None:
        raise ValueError(
            f"--backend {name}: no such judge; known: {', '.join(sorted(JUDGES))}, "
            "or your own with --custom-backend-factory"
        )
    if target is None:
        return custom.build(name, settings)
    judge: Judge | DeferredJudge = load_attribute(target)(settings)
    return judge


def _check_gpu_memory(judges: Iterable[Judge | DeferredJudge]) -> None:
    """Check that all models together fit on the GPUs, if there are any."""
    shares: dict[str, float] = {}
    for judge in judges:
        if isinstance(judge, DeferredJudge):
            shares |= judge.gpu_memory
    if sum(shares.values()) > 1 and gpu_count():
        named = " and ".join(f"{flag} {share:g}" for flag, share in shares.items())
        raise ValueError(f"{len(shares)} models share the GPUs: {named} are more than 1 together")
