"""The program in a model's text."""

import re
from collections.abc import Iterator

from rewardfleet.wire.errors import InvalidRequest

#: The opening line of a fenced block, which may be a closing one, too. A line is looked at once:
#: the text is a model's, and one expression for a whole block would take minutes for some.
_FENCE = re.compile(r"[ \t]*```([^\n`]*)")


def program_of(revision: str) -> str:
    """Return a plain program as it is, or the content of the one fence in a text.

    Raises:
        InvalidRequest: There are several fences.
    """
    if "```" not in revision:
        return revision
    blocks = list(_blocks(revision.replace("\r\n", "\n")))
    if len(blocks) > 1:
        raise InvalidRequest(
            f"revision: holds {len(blocks)} fences; give a plain program, or one fence"
        )
    return blocks[0] if blocks else revision


def _blocks(text: str) -> Iterator[str]:
    """The contents of the fences that are closed."""
    opened: list[str] | None = None
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        if opened is None:
            opened = [] if fence else None
        elif fence and not fence[1].strip(" \t"):
            yield "".join(opened)
            opened = None
        else:
            opened.append(line + "\n")
