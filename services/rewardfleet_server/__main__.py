"""`python -m rewardfleet_server` is the `rewardfleet` command."""

import sys

from rewardfleet_command import main

sys.exit(main())
