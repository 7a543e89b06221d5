"""Evaluation and calibration of judges against labels: `rewardfleet eval`, `rewardfleet calibrate`.

`labels` joins labels and scores, `metrics` computes figures of arrays, `report` collects them,
`page` and `frames` show them, `fitting` makes calibrations (see `rewardfleet.wire.calibration`).
"""

from rewardfleet.wire.optional_imports import require


def check_packages() -> None:
    """Check that the extra `eval` is installed, before anything is scored.

    Raises:
        ValueError: A package is missing.
    """
    require("eval", "this command", "av", "jinja2", "PIL", "scipy", "sklearn")
