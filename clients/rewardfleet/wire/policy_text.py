"""Text that a policy wrote. It is always scored: no text is an invalid request.

What cannot be part of a program is replaced by a NUL, which no Python source may contain: a lone
surrogate, and a complete text of more than `MAX_CHARACTERS`. The client does so before it sends the
text, and the service again.
"""

import json
import re
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rewardfleet.text.messages import answer_text, completion_text, is_null

from .errors import InvalidRequest
from .truth import is_missing

#: Maximum number of characters of a text that is judged by its content.
MAX_CHARACTERS = 1_000_000
#: The text that is judged in place of one that is too long.
UNUSABLE = "\0"

#: The fields of requests that contain such a text.
POLICY_FIELDS = frozenset(
    {"revision", "critique", "original_program", "completion", "code", "response", "program"}
)

_SURROGATE = re.compile("[\ud800-\udfff]")
#: Its escape in JSON, or its bytes where an encoder lets it pass.
_ENCODED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")


def text_of(completion: Any, *, with_calls: bool = False) -> str | None:
    """Return the text of a completion: `answer_text` with its calls, else `completion_text`.

    None if it is null: by `is_null`, or NaN, as pandas has it.

    Raises:
        InvalidRequest: The completion has no text that can be read.
    """
    try:
        if is_missing(completion) or is_null(completion):
            return None
        has_calls = with_calls and not isinstance(completion, str)  # which takes a while
        return answer_text(completion) if has_calls else completion_text(completion)
    except TypeError as error:
        raise InvalidRequest(str(error)) from None


def replace_unusable(text: Any) -> Any:
    """Return the text that is judged in place of `text`. Anything but a text is returned as it is.

    The result has at most `MAX_CHARACTERS` characters, and can be encoded as UTF-8.
    """
    if not isinstance(text, str):
        return text
    return _without_surrogates(text) if len(text) <= MAX_CHARACTERS else UNUSABLE


def _without_surrogates(text: str) -> str:
    # A search takes milliseconds per megabyte, during which other threads wait.
    return text if text.isascii() else _SURROGATE.sub(UNUSABLE, text)


#: A field with such a text.
PolicyText = Annotated[str, BeforeValidator(replace_unusable)]
#: One that may be null, as an empty list of responses is.
PolicyAnswer = Annotated[
    str | None,
    BeforeValidator(
        lambda value: None if value == [] else replace_unusable(value),
        json_schema_input_type=str | None | Annotated[list[str], Field(max_length=0)],
    ),
]


def _usable(value: Any) -> Any:
    if not isinstance(value, list):
        return replace_unusable(value)
    # Each may have a prompt before the policy's text, so its length is no reason to refuse it.
    return [_without_surrogates(each) if isinstance(each, str) else each for each in value]


def without_lone_surrogates(body: bytes, names: Collection[str] = POLICY_FIELDS) -> bytes:
    r"""Replace lone surrogates, escaped (`\ud800`) or not, in a JSON body's policy texts.

    The JSON parser refuses them, and encoders like Python's `json.dumps` write them. Elsewhere they
    stay, and are refused, because the caller wrote them. A body that is not JSON is returned as it
    is.
    """
    if not _ENCODED_SURROGATE.search(body):
        return body

    def replaced(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: _usable(value) if name in names else value for name, value in pairs}

    try:
        return json.dumps(
            json.loads(body.decode(errors="surrogatepass"), object_pairs_hook=replaced)
        ).encode()
    except (ValueError, RecursionError):
        return body
