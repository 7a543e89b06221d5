"""`python -m rewardfleet_server` is the `rewardfleet` command."""

import sys

from rewardfleet.commands.main import main

sys.exit(main())
