"""How good a judge is, and its calibration: `rewardfleet eval` and `rewardfleet calibrate`."""
