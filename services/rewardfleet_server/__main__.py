"""`python -m rewardfleet_server` is the `rewardfleet` command."""

import sys

from .cli import main

sys.exit(main())
