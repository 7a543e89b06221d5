"""`enum.StrEnum`, which Python 3.10 does not have."""

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """An enumeration whose members are strings."""

        __str__ = str.__str__


__all__ = ["StrEnum"]
