"""The page: its routes, and what keeps what a policy wrote from running in it.

Templates escape all values. The policy of the page allows scripts, styles and pictures of this
server only, and none within the page.
"""

import logging
import math
import socket
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rewardfleet.services import SERVICES
from rewardfleet.story import parts_of_record
from rewardfleet.wire.errors import RewardFleetError
from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.auth import ApiKeys
from rewardfleet_server.http.server import GracefulServer, run_on_fast_loop
from rewardfleet_server.observe.logs import configure_logging

from .details import CURVE_HEIGHT, CURVE_WIDTH, details_of, group_of
from .labels import LABELS, Labels, label_of
from .records import FACETS, PAGE, SORTED, Filter, Records

log = logging.getLogger(__name__)

_HERE = Path(__file__).parent
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
#: The header that htmx sends, and that a page of another origin cannot.
_HTMX = "hx-request"
#: What a person may see in a clip: whether it is a success.
_SEEN = {"success": True, "failure": False, "unclear": None}
#: Tests, and calls of tools, that are shown, at most.
_MOST_ROWS = 100
#: Digits of numbers in a query.
_MAX_DIGITS = 16
#: Seconds that a page waits for new records; else it shows those that were read before.
_REFRESH_SECONDS = 0.5


class LookApp:
    """The application. Its handlers run in Starlette's threads.

    Callers need a key as the password of HTTP's basic authentication.
    """

    def __init__(
        self, records: Records, labels: Labels, keys: ApiKeys, hosts: AllowedHosts
    ) -> None:
        self._records, self._labels = records, labels
        self._keys, self._hosts = keys, hosts
        self._refresher = ThreadPoolExecutor(1, "look-refresh")
        self._refreshing: Future[None] | None = None
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {"number": _number, "milliseconds": _milliseconds}
        drawn = {"curve": (CURVE_WIDTH, CURVE_HEIGHT), "most_rows": _MOST_ROWS}
        self._templates.globals |= {"labels": labels.by_id, "all_labels": LABELS, **drawn}
        self._app: ASGIApp = Starlette(
            routes=[
                Route("/", self._index),
                Route("/record/{number}", self._record),
                Route("/record/{number}/frames", self._frames),
                Route("/record/{number}/references/{place}", self._reference_frames),
                Route("/record/{number}/label", self._label, methods=["POST"]),
                Route("/to-label", self._to_label),
                Route("/compare", self._compare),
                Mount("/static", StaticFiles(directory=_HERE / "static")),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._refusal(Request(scope)) or self._app
        await app(scope, receive, send_protected)

    def _refusal(self, request: Request) -> Response | None:
        try:
            self._hosts.check(request.scope["headers"])
            self._keys.check(request.headers.get("authorization"))
        except RewardFleetError as error:
            headers = {"www-authenticate": 'Basic realm="rewardfleet"'}
            shown = headers if error.status == 401 else None
            return PlainTextResponse(error.detail, error.status, shown)
        if request.method not in {"GET", "HEAD"} and _HTMX not in request.headers:
            return PlainTextResponse("this request does not come from the page", 403)
        return None

    def _index(self, request: Request) -> Response:
        chosen, start = _filter(request), _count(request, "start")
        self._refresh()
        rows, total = self._records.page(chosen, start)
        shown = {"rows": rows, "total": total, "start": start, "page": PAGE, "sorted": SORTED}
        shown |= {"query": _query(request, without="start"), "chosen": chosen}
        if request.headers.get(_HTMX) and request.headers.get("hx-target") == "table":
            return self._page("table.html", **shown)
        shown |= {"facets": self._records.facets(), "steps": self._records.steps(chosen)}
        shown |= {"services": SERVICES}
        return self._page("index.html", problems=self._records.problems(), **shown)

    def _refresh(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._refresher.submit(self._records.refresh)
        wait([self._refreshing], timeout=_REFRESH_SECONDS)

    def _record(self, request: Request) -> Response:
        records, record = self._records, self._found(request)
        if record is None:
            return PlainTextResponse("there is no such record", 404)
        place, chosen = _count(request, "at"), _filter(request)
        near = {}
        for name, at in (("previous", place - 1), ("next", place + 1)):
            rows = records.page(chosen, at)[0] if at >= 0 else []
            near[name] = (rows[0]["n"], at) if rows else None
        details = details_of(record)
        of_references = [{"video_path": each["file"]} for each in details["references"]]
        pictures = map(records.decode, of_references)
        return self._page(
            "record.html",
            record=record,
            details=details,
            story=list(parts_of_record({**record, "backend": record["judge"]})),
            related=records.related(record),
            group=group_of(records.group(record)),
            has_frames=records.frames(record) is not None,
            references=list(zip(details["references"], pictures, strict=True)),
            query=_query(request, without="at"),
            near=near,
        )

    def _frames(self, request: Request) -> Response:
        record = self._found(request)
        return _jpeg(self._records.frames(record) if record else None)

    def _reference_frames(self, request: Request) -> Response:
        record, place = self._found(request), _integer(request.path_params["place"])
        references = details_of(record)["references"] if record else ()
        if place is None or place >= len(references):
            return _jpeg(None)
        return _jpeg(self._records.decode({"video_path": references[place]["file"]}))

    def _label(self, request: Request) -> Response:
        """Keep what a person says of a score, or saw in a clip without knowing the score."""
        record, given = self._found(request), request.query_params
        if record is None or record["id"] != given.get("id"):
            return PlainTextResponse("the log has changed: open the record again", 409)
        label, seen = given.get("label"), given.get("seen")
        if seen in _SEEN and record["score"] is not None:
            label = label_of(record, _SEEN[seen])
        if label not in LABELS:
            choices = f"label={'|'.join(LABELS)}, or seen={'|'.join(_SEEN)}"
            return PlainTextResponse(f"give {choices}", 400)
        try:
            self._labels.add(record, label)
        except OSError as error:
            log.warning("the label was not written: %s", error)
            return PlainTextResponse(f"the label was not written: {error.strerror}", 507)
        if seen is not None:  # go on with the next clip
            after = urlencode({"after": record["id"]})
            return Response(headers={"hx-redirect": f"/to-label?{after}"})
        return self._page("label.html", record=record)

    def _to_label(self, request: Request) -> Response:
        """Show a clip that was drawn for labels, and nothing of what the judge thinks of it."""
        self._refresh()
        after = request.query_params.get("after", "")
        record, total = self._records.to_label([*self._labels.by_id], after)
        frames = self._records.frames(record) if record else None
        return self._page(
            "to_label.html", record=record, total=total, has_frames=frames is not None, seen=_SEEN
        )

    def _compare(self, request: Request) -> Response:
        by = "source" if request.query_params.get("by") == "source" else "judge"
        names = self._records.facets()[by]
        first = request.query_params.get("first") or (names[0] if names else "")
        second = request.query_params.get("second") or (names[1] if len(names) > 1 else "")
        start = _count(request, "start")
        rows, total = self._records.pairs(by, first, second, start)
        compared = {"by": by, "names": names, "first": first, "second": second}
        shown = {"rows": rows, "total": total, "start": start, "page": PAGE}
        query = _query(request, without="start")
        return self._page("compare.html", query=query, **compared, **shown)

    def _found(self, request: Request) -> dict[str, Any] | None:
        number = _integer(request.path_params["number"])
        return None if number is None else self._records.record(number)

    def _page(self, template: str, **values: Any) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(**values))


def serve_page(
    records: Records, labels: Labels, listener: socket.socket, key_file: Path | None
) -> int:
    """Serve the page until SIGTERM or Ctrl-C; ValueError if a file of keys has none."""
    host = listener.getsockname()[0]
    hosts = AllowedHosts([], listens_on=host, has_keys=key_file is not None)
    app = LookApp(records, labels, ApiKeys(key_file), hosts)
    configure_logging("warning")
    server = GracefulServer(app)
    run_on_fast_loop(server.serve([listener]))
    return server.status


def _jpeg(frames: bytes | None) -> Response:
    if frames is None:
        return PlainTextResponse("there are no such frames here", 404)
    return Response(frames, media_type="image/jpeg")


def _filter(request: Request) -> Filter:
    given = {name: value for name, value in request.query_params.items() if value}
    sort = given.get("sort", "time")
    step = _integer(given.get("step", ""))
    values = {name: given[name] for name in (*FACETS, "uid") if name in given}
    return Filter(
        values=values if step is None else {**values, "step": step},
        text=given.get("text", ""),
        suspicious="suspicious" in given,
        label_differs="label_differs" in given,
        sort=sort if sort in SORTED else "time",
        descending=given.get("order") != "up",
    )


def _count(request: Request, name: str) -> int:
    return _integer(request.query_params.get(name, "")) or 0


def _integer(text: str) -> int | None:
    """Return a number from 0 that a table can have; None for any other text."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None


def _query(request: Request, without: str) -> str:
    """Return the query of links that keep what is chosen, but for one name."""
    given = request.query_params.items()
    return urlencode([(name, value) for name, value in given if value and name != without])


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
