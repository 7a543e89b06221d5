"""The HTTP server of a gateway."""

from collections.abc import Iterator
from contextlib import contextmanager

from rewardfleet_server.http.server import GracefulServer

from .gateway import Gateway


class GatewayServer(GracefulServer):
    """A server without signal handlers: its owner sets `should_exit`.

    Args:
        gateway: The application.
    """

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, has_lifespan=False)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield
