"""The program in a model's text."""

import re

from rewardfleet.wire.errors import InvalidRequest

#: A fenced block: its opening line, what is in it, and its closing line.
_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)


def program_of(revision: str) -> str:
    """Return a plain program as it is, or the content of the one fence in a text.

    Raises:
        InvalidRequest: There are several fences.
    """
    if "```" not in revision:
        return revision
    blocks: list[str] = _FENCE.findall(revision.replace("\r\n", "\n"))
    if len(blocks) > 1:
        raise InvalidRequest(
            f"revision: holds {len(blocks)} fences; give a plain program, or one fence"
        )
    return blocks[0] if blocks else revision
