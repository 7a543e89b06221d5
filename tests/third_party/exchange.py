"""What another project's code asks a service or an adapter, and what it gets, as JSON."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np

from rewardfleet import RewardFleetError

from ..adapters.standin import DataProto

#: Fields of answers that differ each time, or with versions and wordings. They are not recorded.
_VOLATILE = {
    *("cached", "cpu_time", "created", "execution_time", "id", "provenance", "request_id"),
    *("reward/cached", "timing", "timing_ms"),
    *("detail", "message", "model_output"),
}

#: What adapters read of objects, and what they make.
_FIELDS = "action artifacts is_correct metadata model_response output reward steps trajectories"


class Recorder:
    """An adapter, or a function, that keeps each call: its arguments, after it too, its result."""

    def __init__(self, adapter: Any, name: str, calls: list[dict[str, Any]]) -> None:
        self._adapter, self._name, self._calls = adapter, name, calls

    def __getattr__(self, method: str) -> Any:
        value = getattr(self._adapter, method)
        return self.recorded(value, method) if callable(value) else value

    def __call__(self, *given: Any, **fields: Any) -> Any:
        return self.recorded(self._adapter, "__call__")(*given, **fields)

    def recorded(self, function: Callable[..., Any], method: str) -> Callable[..., Any]:
        def call(*given: Any, **fields: Any) -> Any:
            made = {"adapter": self._name, "method": method, "given": to_json([given, fields])}
            self._calls.append(made)

            def ended(result: Any) -> Any:
                made["result"] = _without_volatile(to_json(result))
                if comparable(after := to_json([given, fields])) != comparable(made["given"]):
                    made["after"] = after
                return result

            async def waited(result: Any) -> Any:
                with _noting(made):
                    return ended(await result)

            with _noting(made):
                result = function(*given, **fields)
            return waited(result) if inspect.isawaitable(result) else ended(result)

        return call


@contextmanager
def _noting(made: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # A dead service is unavailable, or late: that depends on the machine.
        is_ours = isinstance(error, RewardFleetError)
        made["raised"] = "RewardFleetError" if is_ours else type(error).__name__
        raise


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_volatile(each) for k, each in value.items() if k not in _VOLATILE}
    return [*map(_without_volatile, value)] if isinstance(value, list) else value


class Wire:
    """A service by HTTP, as an adapter with one method."""

    def __init__(self, url: str) -> None:
        self._url = url

    def post(self, path: str, headers: dict[str, str], body: str) -> tuple[int, Any]:
        """Return the status and the body of the answer."""
        options = {"headers": headers, "content": body, "timeout": 150, "trust_env": False}
        answer = httpx.post(self._url + path, **options)
        return answer.status_code, answer.json()


def to_json(value: Any) -> Any:
    """Return numbers, texts, lists and dictionaries; an array or tensor has its type with it.

    Of other objects, only some fields are there.
    """
    if hasattr(value, "non_tensor_batch"):
        batch = {name: value.batch[name] for name in sorted(value.batch.keys())}
        columns = dict(value.non_tensor_batch.items())  # ROLL's cannot be iterated over
        return {"batch": to_json(batch), "non_tensor_batch": to_json(columns)}
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if hasattr(value, "dtype"):
        plain = value.tolist()
        return {"type": str(value.dtype), "values": to_json(plain)} if value.shape else plain
    if value is None or isinstance(value, str | int | float):
        return value
    names = [each for each in _FIELDS.split() if hasattr(value, each)]
    return {"object": {each: to_json(getattr(value, each)) for each in names}}


def from_json(value: Any) -> Any:
    """Return what `to_json` had. The `meta_info` of a `DataProto` is not recorded."""
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"type", "values"}:
        return _array(value["type"], from_json(value["values"]))
    fields = {key: from_json(each) for key, each in value.items()}
    if fields.keys() == {"object"}:
        return SimpleNamespace(**fields["object"])
    return DataProto(**fields) if fields.keys() == {"batch", "non_tensor_batch"} else fields


def _array(kind: str, values: list[Any]) -> Any:
    if kind.startswith("torch."):
        import torch

        return torch.tensor(values, dtype=getattr(torch, kind.removeprefix("torch.")))
    if kind != "object":
        return np.array(values, kind)
    array = np.empty(len(values), object)
    array[:] = values
    return array


def comparable(value: Any) -> str:
    """Return a text that is equal for equal exchanges; NaN is equal to itself."""

    def rounded(each: Any) -> Any:
        if isinstance(each, dict):
            return {key: rounded(item) for key, item in each.items()}
        if isinstance(each, list):
            return [*map(rounded, each)]
        return round(each, 5) if isinstance(each, float) else each

    return json.dumps(rounded(value), sort_keys=True)
