"""The response in a query that begins with its prompt."""

import unicodedata

from .marks import LONGEST

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
    position = query.find(prompt, 0, len(prompt) + LONGEST)
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
    """Return how many characters the longest beginning of the query has that ends the prompt."""
    text = [*query[: len(prompt)], None, *prompt]  # None: no beginning is longer than the query
    borders, matched = [0] * len(text), 0  # the table of Knuth, Morris and Pratt: linear time
    for position in range(1, len(text)):
        while matched and text[position] != text[matched]:
            matched = borders[matched - 1]
        matched += text[position] == text[matched]
        borders[position] = matched
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
