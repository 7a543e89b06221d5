"""The settings of the answers service."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from rewardfleet.services import SERVICES
from rewardfleet_server.settings import CacheSettings, setting
from rewardfleet_server.system.threads import usable_cores


class AnswersSettings(CacheSettings):
    """`rewardfleet serve answers`."""

    flags = (*CacheSettings.flags, "accept")

    # One line per setting.
    # fmt: off
    port: int = setting(SERVICES["answers"].port, "TCP port. 0 picks a free one and prints it.", ge=0, le=65535, metavar="PORT")
    accept: Literal["both", "any"] = setting("any", "Which of both checkers must find a formula right: both, or any of them.", metavar="WHICH")
    workers: PositiveInt = setting(help_text="Checks that use a core at the same time; others go on at a lower priority.", default_factory=usable_cores, shown="one per core")
    max_cpu_s: PositiveFloat = setting(3.0, "Most seconds of CPU time of a check.")
    max_memory_mb: PositiveInt = setting(512, "Most MiB of memory of a check, besides that of the libraries.")
    # fmt: on
