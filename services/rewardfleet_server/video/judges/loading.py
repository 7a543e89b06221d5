"""Finding and loading the judges that the settings name."""

from rewardfleet_server.registry import load_attribute
from rewardfleet_server.video.settings import VideoSettings, select_gpus

from . import ALIASES, JUDGES, DeferredJudge, Judge, custom


def load_judges(settings: VideoSettings) -> dict[str, Judge]:
    """Load the judges of `--backend`; nothing is loaded before all are found to be good.

    Raises:
        ValueError: A judge does not exist, or cannot work with these settings.
    """
    select_gpus(settings)
    found = {name: find_judge(name, settings) for name in settings.backends}
    return {
        name: judge.load() if isinstance(judge, DeferredJudge) else judge
        for name, judge in found.items()
    }


def find_judge(name: str, settings: VideoSettings) -> Judge | DeferredJudge:
    """Find a judge in the table `JUDGES`, or the user's own.

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
