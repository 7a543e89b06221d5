"""`enum.StrEnum`, which Python 3.10 does not have, with members that are faster to encode."""

from enum import Enum


class StrEnum(str, Enum):
    """An enumeration whose members are strings."""

    __str__ = str.__str__

    @property
    def value(self) -> str:
        """The string. The property of `Enum` takes a microsecond, for each encoded verdict."""
        value: str = self._value_
        return value
