"""Find and load the judges that the settings name."""

from rewardfleet_server.video.settings import VideoSettings, gpu_count, select_gpus

from . import DeferredJudge, Judge, custom
from .settings import all_built_in, built_in


def load_judges(settings: VideoSettings) -> dict[str, Judge]:
    """Load the judges of `--backend`, by name.

    GPUs are selected first, then all judges are checked, then their models are loaded.

    Raises:
        ValueError: A judge does not exist, or cannot work with these settings.
    """
    select_gpus(settings)
    found = {name: find_judge(name, settings) for name in settings.backends}
    # All models together must fit on the GPUs, if there are any.
    shares: dict[str, float] = {}
    for judge in found.values():
        if isinstance(judge, DeferredJudge):
            shares |= judge.gpu_memory
    if sum(shares.values()) > 1 and gpu_count():
        named = " and ".join(f"{setting} {share:g}" for setting, share in shares.items())
        raise ValueError(f"{len(shares)} models share the GPUs: {named} are more than 1 together")
    return {
        name: judge.load() if isinstance(judge, DeferredJudge) else judge
        for name, judge in found.items()
    }


def find_judge(name: str, settings: VideoSettings) -> Judge | DeferredJudge:
    """Build a judge that comes with the service, or that the user provides.

    Models are not loaded yet.

    Raises:
        ValueError: There is no such judge, or it cannot work with these settings.
    """
    judge = built_in(name)
    if judge is not None:
        return judge.build(settings.judge_settings(name), settings)
    if settings.custom_backend_factory is None:
        known = ", ".join(each.name for each in all_built_in())
        raise ValueError(
            f"--backend {name}: no such judge; known: {known}, "
            "or your own with --custom-backend-factory"
        )
    return custom.build(name, settings)
