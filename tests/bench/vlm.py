"""`make bench-vlm`: clips per second of vLLM on the CPU, in three ways, in one run.

- the original: `original_libero_server.py`, one request at a time behind FastAPI;
- rewardfleet: the video service over HTTP;
- the limit: vLLM alone, with frames that are already decoded and at the model's size.

Each way gets the same clips and texts, shows the model as many frames of the same size, and
generates 64 tokens. No two items of a way share work: each has a clip and a text of its own, and
the benchmark fails if anything came from a cache. The checkpoint is tiny and random, so that the
work around the model is measured, on the same cores. Exits with 1 if a ratio misses its limit.
"""

import asyncio
import hashlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

import av
import httpx
from harness import (
    Ratio,
    Server,
    cpu_seconds,
    post,
    program_serving,
    run,
    seconds_of,
    send,
    spawned,
    until_stopped,
    watch_health,
)
from harness import p99 as p99_of
from items import NFRAMES, ROOT, VIDEOS

from rewardfleet_server.system.threads import usable_cores
from rewardfleet_server.video.clip.frames import Clip, DecodeSpec, decode_video, video_cost
from rewardfleet_server.video.judges.vlm import VideoPart
from rewardfleet_server.video.judges.vlm.checkpoint import Checkpoint, QwenGeometry, read_config
from rewardfleet_server.video.judges.vlm.prompt_layouts import AsVideo
from rewardfleet_server.video.judges.vlm.settings import ModelSettings
from rewardfleet_server.video.prompts import PERCENTAGE
from rewardfleet_server.video.settings import prepare_engine_environment

MAX_PIXELS, MAX_TOKENS = 200_704, 64
#: Items of a round, by callers. The three ways alternate within a round.
ITEMS = {1: 12, 8: 48, 64: 128}
ROUNDS, WARM_UP = 2, 8


class Item(NamedTuple):
    """A clip and a text that no other item has."""

    clip: Path
    text: str


class Result(NamedTuple):
    """What items took.

    Attributes:
        rate: Items per second.
        times: Seconds of each item.
        front: CPU seconds of the process that gets the items, per item.
        engine: CPU seconds of vLLM's processes, per item.
    """

    rate: float
    times: list[float]
    front: float
    engine: float


#: Scores items with a number of callers.
Way = Callable[[list[Item], int], Result]


def compared() -> Iterator[Ratio]:
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    prepare_engine_environment()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model, clips = Path(folder) / "model", Path(folder) / "clips"
        maker = ROOT / "tests" / "engines" / "tiny_checkpoint.py"
        subprocess.run([sys.executable, maker, model], check=True)
        items = make_items(clips, WARM_UP + ROUNDS * sum(ITEMS.values()) + 64)
        waiting = iter(items)
        serve = ["-m", "rewardfleet_server", "serve", "video", "--video-root", clips]
        serve += ["--model-path", model, "--max-model-len", "4096", "--set", "enforce_eager=true"]
        serve += ["--set", "readout=text", "--set", "log_level=error", "--port"]
        ours = stack.enter_context(program_serving("/readyz", *serve))
        other = Path(__file__).with_name("original_libero_server.py")
        original = stack.enter_context(program_serving("/healthz", other, model))
        ways: dict[str, Way] = {
            "original": partial(over_http, original),
            "rewardfleet": partial(over_http, ours),
            "limit": stack.enter_context(limit(model)),
        }
        warm_up = [next(waiting) for _ in range(WARM_UP)]
        for way in ways.values():
            way(warm_up, WARM_UP)
        results: dict[str, dict[int, list[Result]]] = {
            name: {callers: [] for callers in ITEMS} for name in ways
        }
        for _ in range(ROUNDS):
            for callers, count in ITEMS.items():
                own = [next(waiting) for _ in range(count)]
                for name, way in ways.items():
                    results[name][callers].append(way(own, callers))
        with until_stopped(watch_health, ours.port) as slowest:
            over_http(ours, [next(waiting) for _ in range(64)], 64)
            slowest_ms = slowest() * 1000
        assert_no_hits(ours)
        stages = stages_of(items[:64], model)
    yield from compare(results, stages, slowest_ms)


def make_items(folder: Path, count: int) -> list[Item]:
    """Cut a few frames off the ends of rollouts, so that each item shows other frames."""
    folder.mkdir()
    videos, items = sorted(VIDEOS.glob("*.mp4")), []
    for number in range(count):
        cut, video = divmod(number, len(videos))
        clip = folder / f"{number}.mp4"
        with av.open(videos[video]) as source, av.open(clip, "w") as target:
            stream = source.streams.video[0]
            copied = target.add_stream_from_template(stream)
            for packet in list(source.demux(stream))[: stream.frames - cut]:
                packet.stream = copied
                target.mux(packet)
        items.append(Item(clip, f"put the bowl on plate {number}"))
    return items


# The original and rewardfleet


def assert_no_hits(service: Server) -> None:
    """Check in the metrics of the service that no score came from its cache."""
    text = httpx.get(f"{service.url}/metrics", trust_env=False).text
    lookups = re.findall(
        r'^rewardfleet_cache_lookups_total{.*result="(\w+)".*} ', text, re.MULTILINE
    )
    assert lookups == ["miss"], lookups


def over_http(server: Server, items: list[Item], callers: int) -> Result:
    requests = [
        post("/score", {"task_text": text, "video_path": str(clip)}) for clip, text in items
    ]
    before = cpu_of(server.pid)
    answers, seconds = send(server.port, requests, callers=callers)
    for answer in answers:
        score = answer.score
        assert not (score.get("cached") or score.get("cached_tokens")), score
    return result_of(seconds, [each.seconds for each in answers], before, cpu_of(server.pid))


def cpu_of(pid: int) -> tuple[float, float]:
    own = cpu_seconds(pid, with_descendants=False)
    return own, cpu_seconds(pid) - own


def result_of(
    seconds: float, times: list[float], before: tuple[float, float], after: tuple[float, float]
) -> Result:
    front, engine = ((b - a) / len(times) for a, b in zip(before, after, strict=True))
    return Result(len(times) / seconds, times, front, engine)


# The limit


@contextmanager
def limit(model: Path) -> Iterator[Way]:
    with spawned(run_limit, model) as (pipe, _):

        def way(items: list[Item], callers: int) -> Result:
            pipe.send((items, callers))
            return pipe.recv()

        yield way


def run_limit(pipe: Pipe, model: Path) -> None:
    """Score what comes from the pipe with vLLM's own API."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = AsyncEngineArgs(
        str(model),
        max_model_len=4096,
        enforce_eager=True,
        limit_mm_per_prompt={"image": 0, "video": 1},
        mm_processor_cache_gb=0,
        mm_processor_kwargs={"do_resize": False, "do_sample_frames": False},
        disable_log_stats=True,
    )
    geometry = geometry_of(model)
    with asyncio.Runner() as runner:
        engine = AsyncLLM.from_engine_args(arguments)
        tokenizer = engine.get_tokenizer()
        while True:
            items, callers = pipe.recv()
            inputs = [
                engine_input(tokenizer, prepared(decoded(item.clip), geometry), item.text)
                for item in items
            ]
            before = cpu_of(os.getpid())
            seconds, times = runner.run(generate(engine, inputs, callers))
            pipe.send(result_of(seconds, times, before, cpu_of(os.getpid())))


async def generate(
    engine: Any, inputs: list[dict[str, Any]], callers: int
) -> tuple[float, list[float]]:
    from vllm import SamplingParams
    from vllm.renderers.inputs.preprocess import parse_model_prompt
    from vllm.sampling_params import RequestOutputKind

    sampling = SamplingParams(
        temperature=0,
        max_tokens=MAX_TOKENS,
        output_kind=RequestOutputKind.FINAL_ONLY,
        detokenize=False,  # as in the service, which decodes a text once
    )
    waiting = iter(inputs)
    times = []

    async def caller() -> None:
        for each in waiting:
            started = time.perf_counter()
            [ready] = await engine.renderer.render_cmpl_async(
                [parse_model_prompt(engine.model_config, each)]
            )
            async for output in engine.generate(ready, sampling, uuid.uuid4().hex):
                assert not output.num_cached_tokens
            times.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return time.perf_counter() - started, times


def engine_input(tokenizer: Any, video: VideoPart, text: str) -> dict[str, Any]:
    content = [{"type": "video"}, {"type": "text", "text": PERCENTAGE.render(text)}]
    metadata = {
        "fps": video.fps,
        "total_num_frames": video.total,
        "frames_indices": list(video.indices),
        "duration": video.total / video.fps,
        "do_sample_frames": False,
    }
    return {
        "prompt": tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        ),
        "multi_modal_data": {"video": [(video.frames, metadata)]},
        "multi_modal_uuids": {"video": [video.id]},
    }


# The stages


def geometry_of(model: Path) -> QwenGeometry:
    return Checkpoint(read_config(str(model)), ModelSettings(model_path=str(model))).geometry


def decoded(clip: Path) -> Clip:
    return decode_video(str(clip), DecodeSpec(NFRAMES, MAX_PIXELS))


def prepared(clip: Clip, geometry: QwenGeometry) -> VideoPart:
    conversation = geometry.prepare(AsVideo().full_prompt(clip, "", None))
    assert isinstance(conversation.parts[0], VideoPart)
    return conversation.parts[0]


def stages_of(items: list[Item], model: Path) -> dict[str, float]:
    """Return the CPU seconds per item of what the service does with a clip before the engine."""
    geometry = geometry_of(model)
    prepared(decoded(items[0].clip), geometry)  # imports torch
    clips: list[Clip] = []
    steps: dict[str, Callable[[Item], object]] = {
        "hashing": lambda item: hashlib.sha256(item.clip.read_bytes()).digest(),
        "headers": lambda item: video_cost(str(item.clip)),
        "decoding": lambda item: clips.append(decoded(item.clip)),
        "resizing": lambda _: prepared(clips.pop(), geometry),
    }
    return {
        name: seconds_of(lambda step=step: [step(item) for item in items], time.process_time)
        / len(items)
        for name, step in steps.items()
    }


def compare(
    results: dict[str, dict[int, list[Result]]], stages: dict[str, float], slowest_ms: float
) -> Iterator[Ratio]:
    """Print the results; yield what has a limit."""
    print(f"{NFRAMES} frames, {MAX_TOKENS} tokens; {usable_cores()} cores; clips/s by round")
    for name, by_callers in results.items():
        for callers, rounds in by_callers.items():
            rates = ", ".join(f"{each.rate:.2f}" for each in rounds)
            print(f"{name:12} {callers:3} callers: {rates}; p99 {p99(rounds):.2f} s", end="; ")
            front, engine = (
                statistics.median(column) * 1000
                for column in zip(*((each.front, each.engine) for each in rounds), strict=True)
            )
            print(f"CPU ms per clip: front {front:.0f}, engine {engine:.0f}")
    print("CPU ms per clip:", {name: round(each * 1000, 1) for name, each in stages.items()})
    for other, callers, limit in (
        ("original", 1, ">= 1.4"),
        ("original", 8, ">= 2.5"),
        ("original", 64, ">= 3.2"),
        ("limit", 64, ">= 0.9"),
    ):
        rates = (rate(results[name][callers]) for name in ("rewardfleet", other))
        yield Ratio(f"clips/s, {callers} callers; {other}", *rates, limit)
    slow = (p99(results[name][64]) for name in ("rewardfleet", "original"))
    yield Ratio("p99 in s, 64 callers; original", *slow, "<= 1/3")
    yield Ratio("ms of the slowest /healthz meanwhile; 50 ms", slowest_ms, 50, "<= 1")


def rate(rounds: list[Result]) -> float:
    return statistics.median(each.rate for each in rounds)


def p99(rounds: list[Result]) -> float:
    return p99_of([each for one in rounds for each in one.times])


if __name__ == "__main__":
    run({"vlm": compared})
