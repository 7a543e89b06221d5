"""ms-swift: an outcome reward model (ORM) for `--reward_funcs`."""

from collections.abc import Sequence
from typing import Any

from ._rows import RowReward


def orm(service: str, url: str | Sequence[str], **options: Any) -> type:
    """Return a class for ms-swift's `orms`, which it logs as `CodeReward`, `ToolsReward`, ….

    Args:
        service, url, options: See `rewardfleet.adapters`. `on_failure` must not be NaN, which
            ms-swift counts as 0.
    """
    return RowReward(service, url, trainer="ms-swift", **options).subclass_of(_Orm)


class _Orm:
    """An ORM that blocks: ms-swift would run a coroutine in a new event loop each time."""

    scorer: RowReward

    def __init__(self, args: Any = None, **_: Any) -> None:
        self.args = args

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float]:
        return self.scorer.loop.run(self.scorer.rewards(completions, columns))
