"""`rewardfleet explain`: the story of one score, of a request or of a record of a score log."""

import asyncio
import json
from pathlib import Path
from typing import Any

import click

from rewardfleet.client import RewardFleet
from rewardfleet.http.index import find_service
from rewardfleet.score_log.reading import Filters, open_log, select
from rewardfleet.services import SERVICES
from rewardfleet.story import parts_of_record, story_of
from rewardfleet.story.texts import escaped, lines_of
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.score import MAX_BATCH_ITEMS, Request, Score, Status
from rewardfleet.wire.validation import validate_json

from .log import cell
from .options import TIMEOUT, one_url
from .settings import api_key


@click.command(name="explain")
@click.argument("source", metavar="REQUEST|LOG", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--id", metavar="PREFIX", help="The record of LOG whose id begins with it.")
@one_url("Base URL of the fleet or the service that scores REQUEST.")
@TIMEOUT
def command(source: Path, id: str | None, url: str, timeout: float) -> int:  # noqa: A002 - click's
    """Tell why a score is what it is.

    REQUEST is a file with the JSON of a request of `POST /score`, or `-` for standard input. LOG is
    the folder of a score log or an output of `rewardfleet score`.
    """
    if source.is_dir():
        if id is None:
            raise ValueError(f"{source} is a folder: give --id, as `rewardfleet log list` shows it")
        _print_record(source, id)
        return 0
    if id is not None:
        raise ValueError("--id goes with the folder of a score log")
    service, request, options = _read(source)
    score = asyncio.run(_score(service, request, options, url, timeout))
    fields = request.model_dump(mode="json", exclude_unset=True)
    given = {**fields, **({"options": options} if options is not None else {})}
    click.echo("\n".join(story_of(service, given, score.model_dump(mode="json"))))
    return {Status.ERROR: 2, Status.ABSTAINED: 3}.get(score.status, 0)


def _read(source: Path) -> tuple[str, Request, Any]:
    """Return the service of a request, itself, and the options of its batch.

    Raises:
        ValueError: The file has no request.
    """
    try:
        with click.open_file(str(source), "rb") as file:
            fields = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source}: not JSON: {escaped(str(error), 200)}") from None
    given = fields if isinstance(fields, dict) else {}
    models = {name: each.client.request_type for name, each in SERVICES.items()}
    required = {
        name: {each for each, field in model.model_fields.items() if field.is_required()}
        for name, model in models.items()
    }
    service = max(
        models,
        key=lambda name: (
            required[name] <= given.keys(),
            len(models[name].model_fields.keys() & given.keys()),
        ),
    )
    if not required[service] & given.keys():
        known = "; ".join(f"{', '.join(sorted(each))} ({name})" for name, each in required.items())
        raise ValueError(f"{source}: give one request, an object with the fields {known}")
    options = fields.pop("options", None) if SERVICES[service].scores == "episode" else None
    try:
        request = validate_json(models[service], json.dumps(fields).encode())
    except InvalidRequest as error:
        raise ValueError(f"{source}: {error.detail}") from None
    return service, request, options


async def _score(service: str, request: Request, options: Any, url: str, timeout_s: float) -> Score:
    """Score one item; its failure is part of the score."""
    (found,) = await find_service(service, [url], api_key())
    given: Any = {service: found}
    async with RewardFleet(api_key=api_key(), timeout_s=timeout_s, **given) as fleet:
        client = getattr(fleet, service)
        if SERVICES[service].scores == "episode":
            response = await client.score_batch([request], options)
            provenance, (score,) = response.provenance, response.results
            score = score.model_copy(update={"provenance": provenance.get(score.backend, {})})
        else:
            (score,) = await client.score_batch([request])
    return score  # type: ignore[no-any-return] # of a client by name


def _print_record(folder: Path, prefix: str) -> None:
    with open_log([folder]) as log:
        filters = Filters(id=prefix)
        records = select(log, filters, order="time DESC NULLS LAST", limit=MAX_BATCH_ITEMS)
    ids = {record["id"] for record in records}
    if not ids:
        raise ValueError(f"{folder} has no record whose id begins with {escaped(prefix, 70)}")
    if len(ids) > 1:
        shown = ", ".join(sorted(ids)[:3])
        raise ValueError(f"several ids begin with {escaped(prefix, 70)}, e.g. {shown}")
    record = records[0]
    labels = {name: cell(name, record[name]) for name in ("run", "step", "uid", "time")}
    shown = ", ".join(f"{name} {each}" for name, each in labels.items() if each)
    click.echo(escaped(f"Record {record['id'][:12]}: {shown or 'no labels'}", 1000))
    if (count := len(records)) > 1:
        click.echo(f"The log has {count} records of this request; this is the newest one.")
    for part in parts_of_record(record):
        for line in lines_of(part):
            click.echo(line)
