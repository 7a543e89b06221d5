"""`make bench-builds OTHER=FOLDER`: CPU time of an item, next to that of another checkout.

Both run in this environment, in turns, with the same requests, of which nothing is cached. Exits
with 1 if the median of the pairs is more than 1.07; the same build differs from itself by up to
0.05 on a quiet machine.
"""

import base64
import json
import os
import statistics
import subprocess
import sys
import tempfile
from code import plus_submission
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from episode import EPISODES, bodies
from harness import (
    Ratio,
    cpu_seconds,
    environment_of,
    post,
    program_serving,
    run,
    seconds_of,
    send,
    serving,
)
from items import CLIP, NFRAMES, ROOT, TASK, VIDEOS, numbers, rows, submission

from rewardfleet_server.video.clip.frames import DecodeSpec, as_mp4, decode_video

PAIRS = 3
#: Settings as variables, which have the same names in all builds; flags have not.
SETTINGS = {
    "REWARDFLEET_CACHE": "",
    "REWARDFLEET_CACHE_MB": "0",
    "REWARDFLEET_VIDEO_ROOT": str(CLIP.parent),
}
CALLERS = 4


def tools() -> tuple[list[bytes], int]:
    """Return requests, and how many items they have; the others as well."""
    items = [{"response": text, "ground_truth": truth} for text, truth in rows(256 * 40)]
    batches = (items[first : first + 256] for first in range(0, len(items), 256))
    return [post("/score/batch", {"items": each}) for each in batches], len(items)


def episodes() -> tuple[list[bytes], int]:
    return [post("/score/batch", body) for body in bodies()], EPISODES


def programs() -> tuple[list[bytes], int]:
    items = [submission(next(numbers)) for _ in range(60)]
    return [post("/score", each) for each in items], len(items)


def samples() -> tuple[list[bytes], int]:
    """Of one problem with 100 asserts."""
    first = next(numbers)
    items = [plus_submission(100, first, number) for number in range(64)]
    return [post("/score", each) for each in items], len(items)


def clips() -> tuple[list[bytes], int]:
    item = {"task_text": TASK, "video_path": CLIP.name}
    sizes = [200_000 - next(numbers) % 90_000 for _ in range(40)]
    return [post("/score", {**item, "max_pixels": each}) for each in sizes], len(sizes)


#: The service, and the requests of a round.
WORK: dict[str, tuple[str, Callable[[], tuple[list[bytes], int]]]] = {
    "tools": ("tools", tools),
    "episode": ("episode", episodes),
    "code": ("code", programs),
    "code, samples": ("code", samples),
    "video": ("video", clips),
}


def of_service(name: str, builds: tuple[Path, Path]) -> Iterator[Ratio]:
    service, make = WORK[name]
    command = ("-m", "rewardfleet_server", "serve", service, "--port")
    with (
        program_serving("/readyz", *command, build=builds[0]) as ours,
        program_serving("/readyz", *command, build=builds[1]) as other,
    ):

        def measure() -> list[float]:
            requests, count = make()
            return [
                each.cpu_of(partial(send, each.port, requests, callers=CALLERS)) / count * 1e6
                for each in (ours, other)
            ]

        measure()  # warms up
        yield compared(name, measure)


def sampled() -> dict[str, list[bytes]]:
    """Return 64 requests by their tasks, each with an mp4 file of frames sampled from a rollout."""
    lines = (VIDEOS.parent / "manifest.jsonl").read_text().splitlines()
    rollouts = [*map(json.loads, lines)] * 2
    requests: dict[str, list[bytes]] = {}
    for number, rollout in enumerate(rollouts[:64]):
        clip = decode_video(
            str(VIDEOS.parent / rollout["file"]), DecodeSpec(NFRAMES - number // len(lines), 65_536)
        )
        with as_mp4(clip) as path:
            video = base64.b64encode(path.read_bytes()).decode()
        task = rollout["task_text"]
        request = post("/score", {"task_text": task, "video_base64": video})
        requests.setdefault(task, []).append(request)
    return requests


def cold(builds: tuple[Path, Path]) -> Iterator[Ratio]:
    """The judge `reference` after the start of its service: all clips at once, or one by one."""
    command = ("-m", "rewardfleet_server", "serve", "video", "--port")
    requests = sampled()
    clips = [each for of_task in requests.values() for each in of_task]
    rows, scores = [], []
    for round_ in range(PAIRS + 1):
        for build in builds:
            with program_serving("/readyz", *command, build=build) as server:
                started = cpu_seconds(server.pid)
                answers, seconds = send(server.port, clips, callers=len(clips))
                cpu = cpu_seconds(server.pid) - started
            scores.append(sorted(each.score["score"] for each in answers))
            if round_:  # the first one may prepare the library
                rows.append((seconds, cpu))
    assert np.ptp(scores, axis=0).max() <= 1e-6
    print(f"cold: {', '.join(f'{s:.2f} s, CPU {c:.2f} s' for s, c in rows)} (ours, the other)")
    for unit, column in zip(("s", "CPU s"), zip(*rows, strict=True), strict=True):
        ours, other = statistics.median(column[::2]), statistics.median(column[1::2])
        name = f"{unit} of {len(clips)} clips after the start; the other build"
        yield Ratio(name, ours, other, "<= 1/2")
    rounds: list[list[float]] = []  # the seconds of each task, right after a start and later
    for _ in range(PAIRS):
        with program_serving("/readyz", *command, build=builds[0]) as server:
            rounds += [
                [send(server.port, of_task[:1])[1] for of_task in requests.values()]
                for _ in range(5)
            ]
    first, *later = (1000 * float(np.median(rounds[each::5])) for each in range(5))
    yield Ratio(
        "ms of the first clip of a task; of it again", first, statistics.median(later), "<= 1.2"
    )


def bulk(builds: tuple[Path, Path]) -> Iterator[Ratio]:
    """The command that scores a file, without its service."""
    answers = rows(20_000)
    with tempfile.TemporaryDirectory() as folder, serving("tools") as service:
        table = Path(folder) / "answers.jsonl"
        lines = (json.dumps({"response": text, "ground_truth": truth}) for text, truth in answers)
        table.write_text("\n".join(lines))

        def cpu_us(build: Path) -> float:
            output = tempfile.mkdtemp(dir=folder)
            words = ["score", "tools", str(table), "--url", service.url, "-o", output]
            command = [sys.executable, "-m", "rewardfleet", *words]
            options = {"stderr": subprocess.DEVNULL, "env": environment_of(build)}
            work = partial(subprocess.run, command, check=True, **options)
            return seconds_of(work, clock=lambda: sum(os.times()[2:4])) / len(answers) * 1e6

        yield compared("bulk", lambda: [cpu_us(each) for each in builds])


def compared(name: str, measure: Callable[[], list[float]]) -> Ratio:
    pairs = [measure() for _ in range(PAIRS)]
    print(f"{name}: {', '.join(f'{a:.1f} to {b:.1f}' for a, b in pairs)} us", flush=True)
    # The median of the pairs, as other load on the machine affects both of a pair.
    ratio = statistics.median(a / b for a, b in pairs)
    baseline = statistics.median(b for _, b in pairs)
    name = f"CPU us of an item, {name}; the other build"
    return Ratio(name, ratio * baseline, baseline, "<= 1.07")


if __name__ == "__main__":
    os.environ |= SETTINGS
    both = (ROOT, Path(os.environ["OTHER"]).resolve())
    parts = {"bulk": bulk, "cold": cold}
    run(
        {name: partial(of_service, name, both) for name in WORK}
        | {name: partial(part, both) for name, part in parts.items()}
    )
