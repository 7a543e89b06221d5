"""Print the part of a lock file that an image needs in addition to what its base has.

    python missing_requirements.py LOCK

A package is needed if the base does not have it, or if rewardfleet, which is installed, does not
accept its version. All others stay as they are: vLLM is built for them.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

_EXTRAS = ("server", "redis", "vllm")
#: One package of a lock file, with its hashes.
_ENTRY = re.compile(r"(?m)^\S+==.*(?:\n[ \t]+.*)*")


def main(lock: Path) -> None:
    """Print the entries of the lock file that are needed."""
    given = [Requirement(text) for text in requires("rewardfleet") or ()]
    accepted = {
        each.name: each.specifier
        for each in given
        if each.marker is None or any(each.marker.evaluate({"extra": name}) for name in _EXTRAS)
    }
    for entry in _ENTRY.findall(lock.read_text()):
        locked = Requirement(entry.partition("\\")[0])
        if locked.marker is None or locked.marker.evaluate():
            try:
                has = version(locked.name)
            except PackageNotFoundError:
                print(entry)
            else:
                if locked.name in accepted and has not in accepted[locked.name]:
                    print(entry)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
