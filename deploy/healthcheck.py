"""The health check of the images: is the service ready?

    python healthcheck.py [PORT] [PATH]

Exits with 0 if it is, else with 1. Docker reports an unhealthy container and does nothing else, but
it restarts one that has ended. So a service that takes connections and answers none for 32 s, e.g.
because it was stopped by SIGSTOP, is killed here. Its container needs an init process (`--init`),
as the first process of a container cannot be killed from inside.
"""

import os
import signal
import sys
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

#: Seconds for one answer, and how many in a row may be missing: 32 s, as with `rewardfleet up`. It
#: is not measured as a time, because in a paused container this process is paused as well.
ANSWER_SECONDS, ATTEMPTS = 4.0, 8
_LISTENS = "0A"


def main() -> int:
    """Check the service; return the exit status."""
    port, path = (*sys.argv[1:], *("8080", "/readyz")[len(sys.argv) - 1 :])
    for _ in range(ATTEMPTS):
        connection = HTTPConnection("127.0.0.1", int(port), timeout=ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            return int(connection.getresponse().status != 200)
        except TimeoutError:
            continue
        except (OSError, HTTPException) as error:  # it does not listen yet, or any more
            print(error)
            return 1
        finally:
            connection.close()
    for process in listening(int(port)):
        print(f"no answer to {ATTEMPTS} requests: process {process} is killed")
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    return 1


def listening(port: int) -> list[int]:
    """Return the processes that listen on a port, of those of the same user."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is another user's, or has ended
            if any(str(each.readlink()) in sockets for each in (process / "fd").iterdir()):
                found.append(int(process.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
