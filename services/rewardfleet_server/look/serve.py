"""The server of the page."""

import logging
import socket
from pathlib import Path

from rewardfleet.wire.urls import is_loopback
from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.auth import ApiKeys
from rewardfleet_server.http.server import GracefulServer, run_on_fast_loop
from rewardfleet_server.observe.logs import configure_logging
from rewardfleet_server.system.listener import url_of

from .app import LookApp
from .labels import Labels
from .records import Records

log = logging.getLogger(__name__)


def serve_page(
    records: Records, labels: Labels, listener: socket.socket, key_file: Path | None
) -> int:
    """Serve the page until SIGTERM or Ctrl-C; return the exit status.

    Args:
        listener: A bound address.
        key_file: The keys that callers need; None if they need none.

    Raises:
        ValueError: The file has no key.
    """
    host = listener.getsockname()[0]
    hosts = AllowedHosts([], listens_on=host, has_keys=key_file is not None)
    app = LookApp(records, labels, ApiKeys(key_file), hosts)
    configure_logging("warning")
    if key_file is None and not is_loopback(host):
        log.warning("ANYONE WHO REACHES %s CAN READ AND LABEL THE SCORES", url_of(listener))
    server = GracefulServer(app)
    run_on_fast_loop(server.serve([listener]))
    return server.status
