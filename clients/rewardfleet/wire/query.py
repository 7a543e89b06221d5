"""The text that a policy wrote, in what a trainer has: messages, or a query with its prompt."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from .errors import InvalidRequest

#: How special tokens are written, at the end of a text. Not `[PAD]` and the like, which no model
#: ends with: `x[PAD]` may end a program.
_SPECIAL_TOKEN = re.compile(
    r"(?:<\|[^<>|]{1,40}\|>|<\uff5c[^<>\uff5c]{1,40}\uff5c>|\[\|[a-z]{1,40}\|\]|</?s>"
    r"|<(?:seed:)?(?:eos|bos|pad|unk|eot|eod|sep|EOS|EOT|EOD)>|<turn\|>"
    r"|<end_of_(?:turn|utterance|sentence)>|<(?:SPECIAL|extra_id|reserved)_\d{1,4}>"
    r"|\[(?:EOS|EOT|/INST)\]|\[e~\[)\s*\Z"
)
_TOKEN_LENGTH = 64
#: The shortest end of a prompt by which the beginning of a query is recognized as it, whatever
#: follows. A shorter one is, unless the beginning of the prompt is there, too.
_MIN_OVERLAP = 32


def response_of(query: str, prompt: str) -> str | None:
    """Return what follows the prompt in a query; None if the prompt is not there.

    A tokenizer may have changed white space or composed characters in the prompt, put a special
    token before it, or cut its beginning off, also within a character.
    """
    response = _after_prompt(query, prompt)
    if response is None:
        response = _after_prompt(query, unicodedata.normalize("NFC", prompt))
    # SentencePiece writes a space between the prompt and the first word.
    return None if response is None else response.removeprefix(" ")


def _after_prompt(query: str, prompt: str) -> str | None:
    # Only near the beginning: after a prompt that was cut, the response may repeat all of it.
    position = query.find(prompt, 0, len(prompt) + _TOKEN_LENGTH)
    if position >= 0:
        return query[position + len(prompt) :]
    complete = query.lstrip("\ufffd")  # of which a part of the character was cut off
    overlap = _overlap(complete, prompt)
    if overlap >= _MIN_OVERLAP:
        return complete[overlap:]
    response = _after_words(query, prompt)
    if response is None and overlap and prompt[:_MIN_OVERLAP] not in query[: 4 * _MIN_OVERLAP]:
        response = complete[overlap:]
    return response


def _overlap(query: str, prompt: str) -> int:
    """Return how many characters the longest beginning of the query has that ends the prompt.

    In linear time: the table of Knuth, Morris and Pratt.
    """
    head = query[: len(prompt)]
    borders, matched = [0] * len(head), 0
    for position in range(1, len(head)):
        while matched and head[position] != head[matched]:
            matched = borders[matched - 1]
        matched += head[position] == head[matched]
        borders[position] = matched
    matched = 0
    for character in prompt:
        while matched and (matched == len(head) or character != head[matched]):
            matched = borders[matched - 1]
        matched += bool(head) and character == head[matched]
    return matched


def _after_words(query: str, prompt: str) -> str | None:
    """Return what follows the prompt in a query, except for white space."""
    position = 0
    for character in prompt:
        if character.isspace():
            continue
        while position < len(query) and query[position].isspace():
            position += 1
        if not query.startswith(character, position):
            return None
        position += 1
    return query[position:]


def completion_text(completion: Any) -> str:
    """Return the text of a completion, without the special tokens at its end.

    Args:
        completion: A text; a message; a list of messages, of which the last one of the assistant
            counts; a list of content parts, of which those with `text` count; or `{"code": …}`.
            Messages and parts are mappings or objects. None and a message without content are the
            empty text, and so is a list without a message of the assistant.

    Raises:
        InvalidRequest: It is none of these. As a text, it would be scored as what nobody wrote.
    """
    return without_end_tokens(_text(completion))


def without_end_tokens(text: str) -> str:
    """Return a text without the special tokens at its end, in linear time."""
    end = len(text)
    while token := _SPECIAL_TOKEN.search(text, max(0, end - _TOKEN_LENGTH), end):
        end = token.start()
    return text[:end]


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    is_list = isinstance(value, Iterable) and not isinstance(value, Mapping | BaseModel)
    if not is_list and field_of(value, "role") is None:
        for name in ("code", "content"):  # of an agent's answer, of a model's output
            if (found := field_of(value, name, default=value)) is not value:
                return _text(found)
    items = list(value) if is_list else [value]
    if all(field_of(item, "role") is not None for item in items):
        written = [item for item in items if field_of(item, "role") == "assistant"]
        return _text(field_of(written[-1], "content")) if written else ""
    if is_list and all(_is_part(item) for item in items):
        return "".join(_text(field_of(part, "text")) for part in items)
    forms = 'a text, messages, content parts or {"code": …}'
    raise InvalidRequest(f"a completion is {forms} (got {value!r:.60})")


def _is_part(item: Any) -> bool:
    named = field_of(item, "type") is not None or field_of(item, "text") is not None
    return named and field_of(item, "content") is None  # else a message of an unknown role


def field_of(item: Any, name: str, default: Any = None) -> Any:
    """Return a field of a message: a mapping, or an object with attributes."""
    is_mapping = isinstance(item, Mapping)
    return item.get(name, default) if is_mapping else getattr(item, name, default)
