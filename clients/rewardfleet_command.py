"""Where the command `rewardfleet` starts: Ctrl-C ends it without a traceback from here on.

It is a module of its own, because importing a command takes most of a second, in which Ctrl-C
would be a KeyboardInterrupt anywhere in an import.
"""

import os
import signal
import sys

#: The exit status of a command that Ctrl-C has ended, as shells report it.
INTERRUPTED = 128 + signal.SIGINT


def main() -> int:
    """Run the command; return its exit status.

    Commands that have something to end before handle SIGINT themselves.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))  # until a command handles it
    from rewardfleet.commands.main import main as run  # noqa: PLC0415 - see above

    return run()


if __name__ == "__main__":
    sys.exit(main())
