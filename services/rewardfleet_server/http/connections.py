"""What an application decides about its connections; uvicorn does the rest."""

import asyncio
from contextlib import suppress

from rewardfleet.wire.errors import InvalidRequest

from .openenv import App, Message, Receive, Send
from .problems import problem_response

#: How much of a body is read, and for how long, after a response that came before its end. A proxy
#: that sends all of the body first gets the response in this way, and so does a caller whose
#: connection ends with it: what is unread when a connection is closed resets it.
_DISCARD_SECONDS, _DISCARD_BYTES = 1, 16 * 1024 * 1024
_CLOSE = (b"connection", b"close")
#: Headers with which uvicorn may take a body for something else.
_REFUSED = {b"upgrade", b"transfer-encoding"}


class OrderlyConnections:
    """An application whose responses are not lost where connections end.

    It refuses requests that offer another protocol, as those of `curl --http2` do: uvicorn loses
    the body of such a request, or takes it for the next request. And those whose transfer coding
    is not `chunked`: it passes them on before it refuses them.

    Args:
        app: The application.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self.is_ending = False  #: whether each response ends its connection

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length, ends = 0, scope["http_version"] == "1.0"
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                length = _DISCARD_BYTES + 1  # it may be any
            elif name == b"connection":
                ends = ends or b"close" in value.lower()
            elif name in _REFUSED:
                shown = name.decode().title()
                refusal = problem_response(InvalidRequest(f"send the request without `{shown}`"))
                refusal.raw_headers.append(_CLOSE)
                await refusal(scope, receive, send)
                return
        if not length and not self.is_ending:
            await self._app(scope, receive, send)
            return
        body = _Body(receive, is_read=not length)

        async def respond(message: Message) -> None:
            # The parser passes over what is left of a small body, and reads the next request.
            ends_unread = ends or self.is_ending or length > _DISCARD_BYTES
            is_start = message["type"] == "http.response.start"
            if is_start and (self.is_ending or (ends_unread and not body.is_read)):
                message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            elif not is_start and ends_unread and not body.is_read:
                await send({**message, "more_body": True})
                if message.get("more_body", False):
                    return
                await body.discard()
                message = {"type": "http.response.body"}
            await send(message)

        await self._app(scope, body.receive, respond)


class _Body:
    """The body of a request, of which it is known whether all was read."""

    def __init__(self, receive: Receive, *, is_read: bool) -> None:
        self._receive = receive
        self.is_read = is_read

    async def receive(self) -> Message:
        message = await self._receive()
        self.is_read = not message.get("more_body", False)
        return message

    async def discard(self) -> None:
        """Read what is left of it, as far as that is little."""
        left = _DISCARD_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while left > 0 and not self.is_read:
                    left -= len((await self.receive()).get("body", b""))
