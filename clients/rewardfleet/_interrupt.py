"""Ctrl-C ends `python -m rewardfleet` while it imports this package; see `rewardfleet_command`."""

import sys

if sys.argv[:1] == ["-m"]:  # the package is imported to find its `__main__`
    from rewardfleet_command import end_at_interrupt

    end_at_interrupt()
