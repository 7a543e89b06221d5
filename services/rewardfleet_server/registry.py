"""The services, and where the parts of each are; `rewardfleet.services` has what callers know."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rewardfleet.lazy import Lazy

if TYPE_CHECKING:  # the command's help works without the server's packages
    from .system.diagnosis import Diagnosis


@dataclass(frozen=True)
class ServiceEntry:
    """Where the parts of a service are. Its modules are imported when a part is loaded."""

    description: str  #: one sentence, for the command's help and the documentation
    settings: Lazy  #: the class of its settings
    app: Lazy  #: makes its application from its settings
    #: Yields what is missing of what the service needs with its settings, for `rewardfleet doctor`.
    checks: "Callable[[Any], Iterable[Diagnosis]]" = lambda _: ()
    metric_labels: str = ""  #: what the labels of its own metrics are, for the documentation
    #: Whether its container, its pods and its application of Ray Serve are written by hand, as it
    #: needs more than run state or a cache. Others are generated, see docs/deployment_files.py.
    has_own_deployment: bool = False
    cores: int = 1  #: how many its container may use, and twice as many GiB of memory as that


#: The services by name, as `rewardfleet serve NAME` takes it.
SERVICES: dict[str, ServiceEntry] = {
    "video": ServiceEntry(
        "Score robot rollouts from video, by a vision-language model or a reference library.",
        Lazy("rewardfleet_server.video.settings:VideoSettings"),
        Lazy("rewardfleet_server.video.app:create_app"),
        Lazy("rewardfleet_server.video.doctor:checks"),
        metric_labels="`backend`: the name of the judge; `task`: of the calibration, or `other`",
        has_own_deployment=True,
    ),
    "code": ServiceEntry(
        "Score programs by running them against tests in a sandbox.",
        Lazy("rewardfleet_server.code.settings:CodeSettings"),
        Lazy("rewardfleet_server.code.app:create_app"),
        Lazy("rewardfleet_server.code.running.doctor:checks"),
        metric_labels="`level`: the isolation of programs; `requested`: what it should be; "
        "`package`: what raised the error, one of 50 or `other`; empty if the program did",
        has_own_deployment=True,
    ),
    "episode": ServiceEntry(
        "Turn rollout batches into rewards, group statistics and temperatures.",
        Lazy("rewardfleet_server.episode.settings:EpisodeSettings"),
        Lazy("rewardfleet_server.episode.app:create_app"),
        metric_labels="`temperature`: to the nearest tenth, up to 2.0",
    ),
    "tools": ServiceEntry(
        "Score tool-use answers, and keep the cost of tools within a budget.",
        Lazy("rewardfleet_server.tools.settings:ToolsSettings"),
        Lazy("rewardfleet_server.tools.app:create_app"),
        metric_labels="`run`: one of the 32 runs whose budgets this process changed last",
    ),
    "answers": ServiceEntry(
        "Score answers to questions of mathematics and others with short answers.",
        Lazy("rewardfleet_server.answers.settings:AnswersSettings"),
        Lazy("rewardfleet_server.answers.app:create_app"),
        cores=2,
    ),
}
