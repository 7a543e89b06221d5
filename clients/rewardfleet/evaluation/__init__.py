"""Evaluation and calibration of judges against labels: `rewardfleet eval`, `rewardfleet calibrate`.

`labels` joins labels and scores, `metrics` computes figures of arrays, `report` collects them,
`page` shows them, `fitting` makes calibrations (see `rewardfleet.wire.calibration`).
"""
