"""`python -m rewardfleet` is the `rewardfleet` command."""

import sys

from rewardfleet_command import main

sys.exit(main())
