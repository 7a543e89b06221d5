"""The page: its routes, and what keeps what a policy wrote from running in it.

Templates escape all values. The policy of the page allows scripts, styles and pictures of this
server only, and none within the page.
"""

import asyncio
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rewardfleet.wire.errors import RewardFleetError
from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.auth import ApiKeys

from .details import CURVE_HEIGHT, CURVE_WIDTH, details_of
from .groups import group_of
from .labels import LABELS, Labels
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
#: Digits of numbers in a query.
_MAX_DIGITS = 16
#: Seconds that a page waits for new records; else it shows those that were read before.
_REFRESH_SECONDS = 0.5


class LookApp:
    """The application.

    Args:
        records: What it shows.
        labels: Where labels go.
        keys: Keys that callers need, as the password of HTTP's basic authentication.
        hosts: The accepted values of `Host`.
    """

    def __init__(
        self, records: Records, labels: Labels, keys: ApiKeys, hosts: AllowedHosts
    ) -> None:
        self._records, self._labels = records, labels
        self._keys, self._hosts = keys, hosts
        self._refreshing: asyncio.Task[None] | None = None
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters["number"] = _number
        self._templates.filters["milliseconds"] = _milliseconds
        self._templates.globals["labels"] = labels.by_id
        self._app: ASGIApp = Starlette(
            routes=[
                Route("/", self._index),
                Route("/record/{number}", self._record),
                Route("/record/{number}/frames", self._frames),
                Route("/record/{number}/references/{place}", self._reference_frames),
                Route("/record/{number}/label", self._label, methods=["POST"]),
                Route("/to-label", self._to_label),
                Route("/to-label", self._seen, methods=["POST"]),
                Route("/compare", self._compare),
                Mount("/static", StaticFiles(directory=_HERE / "static")),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request if its caller may see the page."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [
                    (name.encode(), value.encode()) for name, value in _HEADERS.items()
                ]
            await send(message)

        app = self._refusal(Request(scope)) or self._app
        await app(scope, receive, send_protected)

    def _refusal(self, request: Request) -> Response | None:
        try:
            self._hosts.check(request.scope["headers"])
            self._keys.check(request.headers.get("authorization"))
        except RewardFleetError as error:
            headers = {"www-authenticate": 'Basic realm="rewardfleet"'}
            return PlainTextResponse(
                error.detail, error.status, headers if error.status == 401 else None
            )
        if request.method not in {"GET", "HEAD"} and _HTMX not in request.headers:
            return PlainTextResponse("this request does not come from the page", 403)
        return None

    async def _index(self, request: Request) -> Response:
        chosen, start = _filter(request), _count(request, "start")
        await self._refresh()
        rows, total = await asyncio.to_thread(self._records.page, chosen, start)
        shown = {"rows": rows, "total": total, "start": start, "page": PAGE, "sorted": SORTED}
        shown |= {"query": _query(request, without={"start"}), "chosen": chosen}
        if request.headers.get(_HTMX) and request.headers.get("hx-target") == "table":
            return self._page("table.html", **shown)
        facets = await asyncio.to_thread(self._records.facets)
        steps = await asyncio.to_thread(self._records.steps, chosen)
        problems = self._records.problems()
        return self._page("index.html", facets=facets, steps=steps, problems=problems, **shown)

    async def _refresh(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(asyncio.to_thread(self._records.refresh))
        await asyncio.wait([self._refreshing], timeout=_REFRESH_SECONDS)

    async def _record(self, request: Request) -> Response:
        record = await self._found(request)
        if record is None:
            return PlainTextResponse("there is no such record", 404)
        query, place = _query(request, without={"at"}), _count(request, "at")
        chosen = _filter(request)
        near = {}
        for name, at in (("previous", place - 1), ("next", place + 1)):
            rows = (await asyncio.to_thread(self._records.page, chosen, at))[0] if at >= 0 else []
            near[name] = (rows[0]["n"], at) if rows else None
        return await asyncio.to_thread(self._record_page, record, query, near)

    def _record_page(
        self, record: Mapping[str, Any], query: str, near: Mapping[str, Any]
    ) -> HTMLResponse:
        records = self._records
        details = details_of(record, records.explain(record))
        return self._page(
            "record.html",
            record=record,
            details=details,
            related=records.related(record),
            group=group_of(records.group(record)),
            has_frames=records.frames(record) is not None,
            references=[
                (each, records.reference_frames(each["file"])) for each in details.references
            ],
            curve=(CURVE_WIDTH, CURVE_HEIGHT),
            query=query,
            near=near,
            all_labels=LABELS,
        )

    async def _frames(self, request: Request) -> Response:
        record = await self._found(request)
        frames = await asyncio.to_thread(self._records.frames, record) if record else None
        if frames is None:
            return PlainTextResponse("the log has no frames of this record", 404)
        return Response(frames, media_type="image/jpeg")

    async def _reference_frames(self, request: Request) -> Response:
        record, place = await self._found(request), _integer(request.path_params["place"])
        details = json.loads(record["details"] or "{}") if record else {}
        references = details.get("references", ())
        frames = None
        if place is not None and place < len(references):
            file = references[place]["file"]
            frames = await asyncio.to_thread(self._records.reference_frames, file)
        if frames is None:
            return PlainTextResponse("there are no frames of this reference here", 404)
        return Response(frames, media_type="image/jpeg")

    async def _label(self, request: Request) -> Response:
        record = await self._found(request)
        label = request.query_params.get("label")
        if record is None or record["id"] != request.query_params.get("id"):
            return PlainTextResponse("the log has changed: open the record again", 409)
        if label not in LABELS:
            return PlainTextResponse(f"label: give one of {', '.join(LABELS)}", 400)
        try:
            await asyncio.to_thread(self._labels.add, record, label)
        except OSError as error:
            return _not_written(error)
        return self._page("label.html", record=record, all_labels=LABELS)

    async def _to_label(self, request: Request) -> Response:
        """Show a clip that was drawn for labels, and nothing of what the judge thinks of it."""
        await self._refresh()
        record, total = await asyncio.to_thread(
            self._records.to_label, [*self._labels.by_id], request.query_params.get("after", "")
        )
        frames = await asyncio.to_thread(self._records.frames, record) if record else None
        return self._page(
            "to_label.html", record=record, total=total, has_frames=frames is not None, seen=_SEEN
        )

    async def _seen(self, request: Request) -> Response:
        """Keep what a person saw, and go on with the next clip."""
        number, given = _integer(request.query_params.get("n", "")), request.query_params
        record = None if number is None else await asyncio.to_thread(self._records.record, number)
        if record is None or record["id"] != given.get("id") or record["score"] is None:
            return PlainTextResponse("the log has changed: open the page again", 409)
        if given.get("seen") not in _SEEN:
            return PlainTextResponse(f"seen: give one of {', '.join(_SEEN)}", 400)
        try:
            await asyncio.to_thread(self._labels.add_seen, record, _SEEN[given["seen"]])
        except OSError as error:
            return _not_written(error)
        return Response(headers={"hx-redirect": f"/to-label?{urlencode({'after': record['id']})}"})

    async def _compare(self, request: Request) -> Response:
        by = "source" if request.query_params.get("by") == "source" else "judge"
        facets = await asyncio.to_thread(self._records.facets)
        names = facets[by]
        first = request.query_params.get("first") or (names[0] if names else "")
        second = request.query_params.get("second") or (names[1] if len(names) > 1 else "")
        start = _count(request, "start")
        rows, total = await asyncio.to_thread(self._records.pairs, by, first, second, start)
        compared = {"by": by, "names": names, "first": first, "second": second}
        shown = {"rows": rows, "total": total, "start": start, "page": PAGE}
        query = _query(request, without={"start"})
        return self._page("compare.html", query=query, **compared, **shown)

    async def _found(self, request: Request) -> dict[str, Any] | None:
        number = _integer(request.path_params["number"])
        return None if number is None else await asyncio.to_thread(self._records.record, number)

    def _page(self, template: str, **values: Any) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(**values))


def _not_written(error: OSError) -> Response:
    log.error("the label was not written: %s", error)
    return PlainTextResponse(f"the label was not written: {error.strerror}", 507)


def _filter(request: Request) -> Filter:
    given = {name: value for name, value in request.query_params.items() if value}
    sort = given.get("sort", "time")
    return Filter(
        values={name: given[name] for name in FACETS if name in given},
        text=given.get("text", ""),
        step=_integer(given.get("step", "")),
        uid=given.get("uid", ""),
        suspicious="suspicious" in given,
        sort=sort if sort in SORTED else "time",
        descending=given.get("order") != "up",
    )


def _count(request: Request, name: str) -> int:
    return _integer(request.query_params.get(name, "")) or 0


def _integer(text: str) -> int | None:
    """Return a number from 0 that a table can have; None for any other text."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None


def _query(request: Request, without: set[str]) -> str:
    """Return the query of links that keep what is chosen."""
    given = request.query_params.items()
    return urlencode([(name, value) for name, value in given if value and name not in without])


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
