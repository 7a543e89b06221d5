"""OpenEnv's WebSocket, by the routes `/reset` and `/step`: its client knows no other way.

Each message is one request of the application, so that keys, limits, deadlines, replicas and
metrics are those of any request. Source: the client and server of openenv-core 0.3.0.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

#: The most connections, and the most bytes of one message.
MAX_CONNECTIONS, MAX_MESSAGE_BYTES = 1024, 8 * 2**20
#: Seconds of the request that decides whether a connection is accepted; its client waits for 10 s.
_HANDSHAKE_SECONDS = 5
#: How a message begins, and the body of the request that the rest of it belongs to.
_TYPE = re.compile(r'\s*\{\s*"type"\s*:\s*"(\w{1,20})"(?:\s*,\s*"data"\s*:)?')
_BODIES = {"reset": ("/reset", '{"data":'), "step": ("/step", '{"action":')}
#: Headers of the handshake that a request for a message does not have.
_OF_HANDSHAKE = re.compile(rb"connection|upgrade|sec-websocket-.*|content-.*|transfer-encoding")
#: OpenEnv's codes of failures, by the kind of a problem.
_CODES = {"invalid": "VALIDATION_ERROR", "overloaded": "CAPACITY_REACHED"}


class OpenEnvSocket:
    """An application with routes at `…/reset` and `…/step`, and OpenEnv's WebSocket at `…/ws`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._connections = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        await receive()  # "websocket.connect"
        self._connections += 1
        try:
            if self._connections > MAX_CONNECTIONS or not await self._is_accepted(scope):
                await send({"type": "websocket.close", "code": 1008})  # uvicorn answers 403
                return
            await send({"type": "websocket.accept"})
            await self._serve(scope, receive, send)
        finally:
            self._connections -= 1

    async def _is_accepted(self, scope: Message) -> bool:
        """Return whether the caller may use the routes; at capacity, that is known as well."""
        if not scope["path"].endswith("/ws"):
            return False
        timeout = (b"x-request-timeout", b"%d" % _HANDSHAKE_SECONDS)
        status, _ = await self._answered(scope, "/reset", b"{}", asyncio.Event(), timeout)
        return status == 200 or status >= 429

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one message after another."""
        steps = 0
        text = await _next_text(receive)
        while text is not None:
            incoming = asyncio.create_task(_next_text(receive))
            match = _TYPE.match(text)
            kind = match[1] if match else None
            if kind == "close":
                incoming.cancel()
                await send({"type": "websocket.close", "code": 1000})
                return
            if kind == "state":
                answer = _answer("state", json.dumps({"episode_id": None, "step_count": steps}))
            elif kind in _BODIES and match is not None:
                path, start = _BODIES[kind]
                answer = await self._request(scope, path, start + text[match.end() :], incoming)
                steps = 0 if kind == "reset" else steps + 1
            else:
                answer = _error("UNKNOWN_TYPE", "begin with `type`: reset, step, state or close")
            if incoming.done() and incoming.result() is None:
                return  # the caller has disconnected
            await send({"type": "websocket.send", "text": answer})
            text = await incoming

    async def _request(
        self, scope: Message, path: str, body: str, incoming: asyncio.Task[str | None]
    ) -> str:
        """Return the answer to a message. If its sender disconnects, the request does, too."""
        disconnected = asyncio.Event()

        def on_incoming(task: asyncio.Task[str | None]) -> None:
            if task.cancelled() or task.result() is None:
                disconnected.set()

        incoming.add_done_callback(on_incoming)
        status, answer = await self._answered(scope, path, body.encode(), disconnected)
        if status == 200:
            return _answer("observation", answer)
        try:
            problem = json.loads(answer)
            kind, detail = problem["kind"], problem["detail"]
        except (ValueError, KeyError, TypeError):
            kind, detail = "internal", f"HTTP {status}: {answer[:200]}"
        return _error(_CODES.get(kind, "EXECUTION_ERROR"), f"{kind}: {detail}")

    async def _answered(
        self,
        scope: Message,
        path: str,
        content: bytes,
        disconnected: asyncio.Event,
        *headers: tuple[bytes, bytes],
    ) -> tuple[int, str]:
        """Return status and body of an answer, 500 if there is none; `disconnected` cancels it."""
        own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        kept = [each for each in scope["headers"] if not _OF_HANDSHAKE.fullmatch(each[0])]
        request = {
            **scope,
            "type": "http",
            "method": "POST",
            "scheme": "http",
            "path": scope["path"].removesuffix("/ws") + path,
            "raw_path": scope["raw_path"].removesuffix(b"/ws") + path.encode(),
            "query_string": b"",
            "headers": [*kept, *own, *headers],
        }
        status, body, is_sent = 500, b"", False

        async def receive() -> Message:
            nonlocal is_sent
            if not is_sent:
                is_sent = True
                return {"type": "http.request", "body": content, "more_body": False}
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status, body
            status = message.get("status", status)
            body += message.get("body", b"")

        await self._app(request, receive, send)
        return status, body.decode()


async def _next_text(receive: Receive) -> str | None:
    """Return the next message; None if there is none any more."""
    message = await receive()
    if message["type"] != "websocket.receive":
        return None
    text: str | None = message.get("text")
    content: bytes = message.get("bytes") or b""
    return text if text is not None else content.decode(errors="replace")


def _answer(kind: str, data: str) -> str:
    return f'{{"type":"{kind}","data":{data}}}'


def _error(code: str, message: str) -> str:
    return _answer("error", json.dumps({"message": message, "code": code}))
