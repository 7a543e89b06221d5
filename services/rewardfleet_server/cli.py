"""The `rewardfleet` command."""

import argparse
import asyncio
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

import rewardfleet

_SERVER_EXTRA = "pip install 'rewardfleet[server]'"

#: What serves each service, as `module:attribute`; imported only when it is asked for.
SERVICES: dict[str, str] = {
    "video": "rewardfleet_server.video.main:serve",
    "code": "rewardfleet_server.code.main:serve",
    "episode": "rewardfleet_server.episode.main:serve",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) >= 2 and arguments[0] == "serve" and arguments[1] in SERVICES:
        # The service's settings are its flags: they parse the rest themselves.
        return _with_server(SERVICES[arguments[1]], arguments[2:])
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    return run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rewardfleet", description=rewardfleet.__doc__)
    parser.add_argument(
        "--version", action="version", version=f"rewardfleet {rewardfleet.__version__}"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run a service; `serve video --help` lists its flags")
    serve.add_argument("service", choices=SERVICES)
    _add_score(commands.add_parser("score", help="have one rollout judged by a running service"))
    _add_references(
        commands.add_parser("references", help="the labelled rollouts of the judge `reference`")
    )
    return parser


def _add_score(parser: argparse.ArgumentParser) -> None:
    services = parser.add_subparsers(required=True, metavar="SERVICE")
    video = services.add_parser("video", help="send a video file, print the answer as JSON")
    video.add_argument("clip", type=Path, metavar="CLIP", help="video file on this machine")
    video.add_argument("task", metavar="TASK", help="what the robot was told to do")
    video.add_argument(
        "--url",
        default=os.environ.get("REWARDFLEET_VIDEO_URL", "http://127.0.0.1:18080"),
        help="base URL of the video service (environment: REWARDFLEET_VIDEO_URL)",
    )
    video.add_argument("--nframes", type=int, default=16, help="frames that the judge sees, 1-128")
    video.add_argument("--backend", help="the judge; default: the service's")
    video.add_argument("--timeout", type=float, default=120.0, help="seconds to wait")
    video.set_defaults(run=_score_video)


def _score_video(options: argparse.Namespace) -> int:
    """Send the file's content: the service need not see this machine's file system."""
    try:
        score = asyncio.run(_ask_video_service(options))
    except OSError as error:
        return _fail(f"{options.clip}: {error.strerror}")
    except (rewardfleet.RewardFleetError, ValueError) as error:
        return _fail(str(error))
    print(score.model_dump_json(indent=2))
    return 0 if score.score is not None else 3


async def _ask_video_service(options: argparse.Namespace) -> rewardfleet.VideoScore:
    content = options.clip.read_bytes()
    key = os.environ.get("REWARDFLEET_API_KEY")
    async with rewardfleet.RewardFleet(
        video=options.url, api_key=key, timeout_s=options.timeout
    ) as fleet:
        return await fleet.video.score(
            options.task, content, nframes=options.nframes, backend=options.backend
        )


def _add_references(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser("add", help="copy a labelled clip into a library")
    add.add_argument("library", type=Path, metavar="LIBRARY", help="folder; made where missing")
    add.add_argument("clip", type=Path, metavar="CLIP", help="video file")
    add.add_argument("task", metavar="TASK", help="what the robot was told to do")
    outcome = add.add_mutually_exclusive_group(required=True)
    outcome.add_argument("--success", action="store_true", help="the task was done at the end")
    outcome.add_argument("--failure", action="store_true", help="it was not")
    add.add_argument("--success-frame", type=int, help="first frame that shows the success")
    add.set_defaults(run=_add_reference)


def _add_reference(options: argparse.Namespace) -> int:
    arguments = [options.library, options.clip, options.task, options.success]
    target = "rewardfleet_server.video.main:add_reference"
    return _with_server(target, [*arguments, options.success_frame])


def _with_server(target: str, arguments: Sequence[object]) -> int:
    """Call what needs the server's packages, or say how to get them."""
    module, _, attribute = target.partition(":")
    try:
        run: Callable[[Sequence[object]], int] = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        return _fail(f"the server needs packages that are missing ({error.name}): {_SERVER_EXTRA}")
    try:
        return run(arguments)
    except ValidationError as error:
        findings = error.errors(include_url=False, include_input=False)
        return _fail("; ".join(_setting_finding(dict(finding)) for finding in findings))
    except rewardfleet.RewardFleetError as error:
        return _fail(error.detail)
    except (ValueError, OSError) as error:
        return _fail(str(error))


def _setting_finding(finding: dict[str, object]) -> str:
    loc = finding["loc"]
    where = ".".join(map(str, loc)) if isinstance(loc, tuple) else ""
    message = str(finding["msg"]).removeprefix("Value error, ")
    return f"--{where.replace('_', '-')}: {message}" if where else message


def _fail(reason: str) -> int:
    print(f"rewardfleet: {reason}", file=sys.stderr)
    return 2
