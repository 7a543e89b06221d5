"""Clients for synchronous code: `rewardfleet.RewardFleet` without `await`.

```python
with rewardfleet.blocking.RewardFleet("http://127.0.0.1:18000") as fleet:
    reward = fleet.video.reward("put the bowl on the plate", frames)
```

`blocking.pyi` has the types of all calls; `make docs` generates it from the async clients.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self

from . import client
from .event_loop_thread import EventLoopThread
from .service import ServiceClient
from .services import SERVICES

__all__ = ["RewardFleet"]


class _BlockingClient:
    """The coroutine functions of a service client, as functions that block."""

    def __init__(self, loop: EventLoopThread, client: ServiceClient) -> None:
        self._loop = loop
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        method = getattr(self._client, name)
        if not inspect.iscoroutinefunction(method) or name == "aclose":
            raise AttributeError(f"{type(self._client).__name__} has no coroutine {name!r}")

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._loop.run(method(*args, **kwargs))

        return call

    def __repr__(self) -> str:
        return repr(self._client)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in dir(self._client) if name[0] != "_")]


class RewardFleet:
    """`rewardfleet.RewardFleet` with blocking calls; takes the same arguments."""

    def __init__(self, url: str | Sequence[str] | None = None, **options: Any) -> None:
        self._fleet = client.RewardFleet(url, **options)
        self._loop = EventLoopThread(self._fleet.aclose)

    def __getattr__(self, name: str) -> _BlockingClient:
        if name not in SERVICES:
            raise AttributeError(f"no attribute {name!r}; the services are {', '.join(SERVICES)}")
        return _BlockingClient(self._loop, getattr(self._fleet, name))

    def __repr__(self) -> str:
        return repr(self._fleet)

    def close(self) -> None:
        """Cancel pending calls, close the connections, and end the thread."""
        self._loop.close(self._fleet.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
