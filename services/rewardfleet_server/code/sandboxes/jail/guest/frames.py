"""Data frames of pandas as values: columns and indexes are arrays, or lists of values.

What a column of another kind has, e.g. one of categories, stays in the other process.
"""

import importlib
from collections.abc import Callable, Iterable
from typing import Any


def _pandas() -> Any:
    return importlib.import_module("pandas")  # which is there if one of its values crossed


def _content(value: Any) -> tuple[Any, ...]:
    """Return the items of a column or an index, and the names of their types.

    They are no mutable objects, which might be filled after the value is constructed.
    """
    kind: Any = value.dtype
    if type(kind).__module__.startswith("numpy") and kind.kind in "biufcmM":
        return value.to_numpy().tobytes(), kind.str, str(kind)
    return tuple(value), "", str(kind)


def _items(content: Any, kind: str) -> Any:
    if not kind:
        return list(content)
    return importlib.import_module("numpy").frombuffer(content, kind).copy()


def _is_plain(value: Any) -> bool:
    return not str(value.dtype).startswith(("category", "period", "interval", "Sparse"))


def _series(items: Any, numbers: str, kind: str, name: Any, index: Any) -> Any:
    return _pandas().Series(_items(items, numbers), index, kind, name)


def _parts_of_frame(value: Any) -> list[Any] | None:
    columns = [value.iloc[:, number] for number in range(value.shape[1])]
    if not all(map(_is_plain, columns)):
        return None
    return [tuple(map(_content, columns)), value.index, value.columns]


def _frame(columns: tuple[tuple[Any, str, str], ...], index: Any, names: Any) -> Any:
    content = {n: _series(*each, None, index) for n, each in enumerate(columns)}
    frame = _pandas().DataFrame(content, index)
    frame.columns = names
    return frame


#: By the name of the type: the parts of a value, or None if it stays; and the value of parts.
FRAMES: dict[str, tuple[Callable[[Any], Iterable[Any] | None], Callable[..., Any]]] = {
    "DataFrame": (_parts_of_frame, _frame),
    "Series": (
        lambda value: [*_content(value), value.name, value.index] if _is_plain(value) else None,
        _series,
    ),
    "Index": (
        lambda value: [*_content(value), value.name] if _is_plain(value) else None,
        lambda items, numbers, kind, name: _pandas().Index(
            _items(items, numbers), dtype=kind, name=name
        ),
    ),
    "RangeIndex": (
        lambda value: [value.start, value.stop, value.step, value.name],
        lambda start, stop, step, name: _pandas().RangeIndex(start, stop, step, name=name),
    ),
    "DatetimeIndex": (
        lambda value: [*_content(value), value.name, value.freqstr],
        lambda items, numbers, kind, name, step: _pandas().DatetimeIndex(
            _items(items, numbers), step, dtype=kind, name=name
        ),
    ),
    "MultiIndex": (
        lambda value: [tuple(value), tuple(value.names)],
        lambda items, names: _pandas().MultiIndex.from_tuples(items, names=names),
    ),
    "Timestamp": (
        lambda value: [value.tz_localize(None).isoformat(), value.tz and str(value.tz)],
        lambda text, zone: _pandas().Timestamp(text, tz=zone),
    ),
    "Timedelta": (lambda value: [value.isoformat()], lambda text: _pandas().Timedelta(text)),
    "NaTType": (lambda _: [], lambda: _pandas().NaT),
    "NAType": (lambda _: [], lambda: _pandas().NA),
}
