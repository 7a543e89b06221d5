"""The services of rewardfleet. Importing this package imports no third-party server package."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the client can be installed on 3.10
    raise ImportError(
        "the services and their commands need Python 3.11 or newer; on "
        f"{sys.version_info[0]}.{sys.version_info[1]}, use the client: import rewardfleet",
        name=__name__,
    )
