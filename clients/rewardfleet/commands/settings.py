"""What commands read from the environment, besides click."""

import os

from rewardfleet.client import header_safe


def api_key() -> str:
    """Return the API key of `REWARDFLEET_API_KEY`; "" if there is none.

    There is no option for it, as other users could read the command line.

    Raises:
        ValueError: It is not one line of plain ASCII.
    """
    return header_safe(os.environ.get("REWARDFLEET_API_KEY")) or ""
