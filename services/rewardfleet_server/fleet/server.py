"""The HTTP server of a gateway."""

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from rewardfleet_server.graceful_server import GracefulServer
from rewardfleet_server.http.openenv import MAX_MESSAGE_BYTES, OpenEnvSocket
from rewardfleet_server.http.protocol import HttpProtocol
from rewardfleet_server.serve import BACKLOG

from .gateway import Gateway

#: Idle connections to the gateway are kept for so many seconds, as those to services.
_KEEP_ALIVE_SECONDS = 75


class GatewayServer(GracefulServer):
    """uvicorn without signal handlers: its owner sets `should_exit`.

    Args:
        gateway: The application.
    """

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(
            uvicorn.Config(
                OpenEnvSocket(gateway),
                http=HttpProtocol,  # type: ignore[arg-type] # asyncio accepts both kinds of protocol
                ws="websockets-sansio",
                ws_max_size=MAX_MESSAGE_BYTES,
                ws_per_message_deflate=False,  # a small message could become a large one
                backlog=BACKLOG,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield
