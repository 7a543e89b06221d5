"""`rewardfleet size`: how many replicas a load needs."""

import click

from rewardfleet.commands.options import API_KEY, AS_JSON, Number

from . import sizing


@click.command(
    name="size",
    help="Predict by simulation how many replicas a load needs. Give the load by --rate or "
    "--callers, and the time at the backend by --seconds or --metrics-url.",
)
@click.option("--rate", type=Number(), metavar="N", help="Rollouts per second, on average.")
@click.option(
    "--burst",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Rollouts that end at the same time, e.g. those of a training step.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Scores per rollout, e.g. one for each of its steps.",
)
@click.option(
    "--callers",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Callers that send the next item once they have the last score; instead of --rate.",
)
@click.option(
    "--seconds",
    metavar="S,S,…",
    help="Measured times of an item at the backend; each is equally probable.",
)
@click.option(
    "--metrics-url",
    metavar="URL",
    help="Running service, whose measured times are used.",
)
@click.option(
    "--decode-seconds",
    type=Number(above_zero=False),
    default=0.0,
    metavar="S",
    help="Measured time to decode a clip, in addition to --seconds.  [default: 0]",
)
@click.option(
    "--clip-frames",
    nargs=2,
    type=click.IntRange(1),
    metavar="N MEASURED",
    help="Frames of a clip, and of the clips that were measured; decoding takes in proportion.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100_000),
    required=True,
    metavar="N",
    help="Items at the backend of a replica at the same time: --workers of the code service, "
    "decode threads or the batch of a model of the video service.",
)
@click.option(
    "--gpus", type=Number(above_zero=False), default=0.0, metavar="N", help="GPUs per replica."
)
@click.option(
    "--p95-s",
    type=Number(),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time in which 95 % of the items must have their score.",
)
@click.option(
    "--deadline-s",
    type=Number(),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Deadline of the service or the caller, whichever is less.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Predict what this many replicas do, instead.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, metavar="N", help="Of the random numbers."
)
@AS_JSON
@API_KEY
def command(
    rate: float | None,
    burst: int,
    steps: int,
    callers: int | None,
    seconds: str | None,
    metrics_url: str | None,
    decode_seconds: float,
    clip_frames: tuple[int, int] | None,
    concurrency: int,
    gpus: float,
    p95_s: float,
    deadline_s: float,
    replicas: int | None,
    seed: int,
    as_json: bool,
    api_key: str | None,
) -> None:
    """Print how many replicas a load needs."""
    if (rate is None) == (callers is None):
        raise click.UsageError("give either --rate or --callers")
    if (seconds is None) == (metrics_url is None):
        raise click.UsageError("give either --seconds or --metrics-url")
    if callers is not None and burst * steps > 1:
        raise click.UsageError("--burst and --steps go with --rate, not with --callers")
    if burst * steps > sizing.MAX_BURST:
        raise click.UsageError(f"--burst times --steps: give at most {sizing.MAX_BURST} items")
    if metrics_url is not None and decode_seconds:
        raise click.UsageError("--decode-seconds goes with --seconds: --metrics-url measures it")
    if clip_frames is not None and metrics_url is None and not decode_seconds:
        raise click.UsageError("--clip-frames needs --decode-seconds or --metrics-url")
    times = (
        sizing.given_times(str(seconds), decode_seconds)
        if metrics_url is None
        else sizing.measured_times(metrics_url, api_key)
    )
    if clip_frames is not None:
        times = times.for_clips(*clip_frames)
    load = sizing.Load(None if rate is None else rate * steps, burst * steps, callers)
    wanted = sizing.Sizing(times, load, concurrency, p95_s, deadline_s, gpus, seed)
    predictions = wanted.solve() if replicas is None else [wanted.predict(replicas)]
    print(sizing.report(wanted, predictions, as_json=as_json))
