"""`make bench-vlm`: 64 clips through vLLM in three ways, on this machine's CPU, in one run.

(a) the seed's way: mp4 -> process_vision_info -> blocking generate, one after another, no HTTP;
(b) the video service over HTTP with 64 callers, from mp4 files;
(c) the bare engine, given all 64 at once, from frames decoded before, its own processor included.

All three show the model the same frames at the same size and let it speak 64 tokens. The
checkpoint is tiny and random: what is measured is the way to and from the model, on the machine
that both share. Exits with 1 where a ratio misses its bound.
"""

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from rewardfleet import RewardFleet, VideoScore
from rewardfleet_server.video.frames import decode_video
from rewardfleet_server.video.prompts import PERCENTAGE
from rewardfleet_server.video.settings import prepare_engine_environment

sys.path.insert(0, str(Path(__file__).parent))
from load import health_watched

HOUSE = Path(__file__).parent.parent.parent
VIDEOS = HOUSE / "tests" / "data" / "libero" / "videos"
CLIPS = 64
NFRAMES, MAX_PIXELS, MAX_TOKENS = 16, 200_704, 64
TASK = "put the bowl on the plate"
#: As qwen-vl-utils bounds a video's frame, so that the engine's own processor resizes alike.
SIZE = {"shortest_edge": 128 * 28 * 28, "longest_edge": MAX_PIXELS}
ENGINE = {
    "max_model_len": 4096,
    "enforce_eager": True,
    "limit_mm_per_prompt": {"image": 0, "video": 1},
    "mm_processor_cache_gb": 0,
    "enable_prefix_caching": False,  # each round brings the same clips, as rollouts never do
    "disable_log_stats": True,
}


def main() -> int:
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    prepare_engine_environment()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        maker = HOUSE / "tests" / "engines" / "tiny_checkpoint.py"
        subprocess.run([sys.executable, maker, folder / "model"], check=True)
        clips = copies(folder / "clips")
        bare = Bare(folder / "model")
        try:
            with service(folder) as port:
                bare.all_at_once(clips[:8])  # each way once, so that none pays for first times
                over_http(port, clips[:8])
                bare.one_by_one(clips[:2])
                seed, seed_stages = bare.one_by_one(clips)
                at_once, ours = [], []
                for number in range(3):
                    at_once.append(bare.all_at_once(clips))
                    ours.append(over_http(port, clips, f"{TASK} {number}"))
        finally:
            bare.close()
    return report(seed, seed_stages, at_once, ours)


def report(
    seed: float, seed_stages: dict[str, float], at_once: list[float], ours: list["Round"]
) -> int:
    middle = sorted(ours, key=lambda round_: round_.seconds)[len(ours) // 2]
    service_rate, bare_rate = CLIPS / middle.seconds, CLIPS / statistics.median(at_once)
    print(f"\n{CLIPS} clips, {NFRAMES} frames, {MAX_TOKENS} tokens; {os.cpu_count()} cores")
    print(f"(a) seed's way, one by one    {CLIPS / seed:6.2f} clips/s   {stages(seed_stages)}")
    print(
        f"(b) service, {CLIPS} callers       {service_rate:6.2f} clips/s   {stages(middle.stages)}"
    )
    print(f"(c) bare engine, all at once  {bare_rate:6.2f} clips/s")
    print(f"    rounds of (b): {', '.join(f'{CLIPS / r.seconds:.2f}' for r in ours)}")
    print(f"    rounds of (c): {', '.join(f'{CLIPS / seconds:.2f}' for seconds in at_once)}")
    slowest = max(round_.slowest_health for round_ in ours) * 1000
    held = [
        line("b / a", service_rate / (CLIPS / seed), 3.0),
        line("b / c", service_rate / bare_rate, 0.8),
        slowest < 50,
    ]
    print(f"slowest /healthz {slowest:.0f} ms (bound 50) {'' if held[-1] else 'MISSED'}")
    return 0 if all(held) else 1


def line(name: str, ratio: float, bound: float) -> bool:
    print(f"{name} {ratio:.2f} (at least {bound}) {'' if ratio >= bound else 'MISSED'}")
    return ratio >= bound


def stages(times: dict[str, float]) -> str:
    return "  ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in times.items())


def copies(folder: Path) -> list[Path]:
    """64 files, so that nothing is known from before by its name."""
    folder.mkdir()
    originals = sorted(VIDEOS.glob("*.mp4"))
    return [
        Path(shutil.copy(originals[number % len(originals)], folder / f"{number}.mp4"))
        for number in range(CLIPS)
    ]


class Bare:
    """vLLM as the seed uses it: `LLM.generate`."""

    def __init__(self, model: Path) -> None:
        from vllm import LLM, SamplingParams

        self._llm = LLM(model=str(model), **ENGINE)
        self._tokenizer = self._llm.get_tokenizer()
        self._sampling = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()

    def one_by_one(self, clips: list[Path]) -> tuple[float, dict[str, float]]:
        from qwen_vl_utils import process_vision_info

        times = {"process_vision_info": 0.0, "generate": 0.0}
        started = time.perf_counter()
        for number, clip in enumerate(clips):
            video = {"type": "video", "video": str(clip), "nframes": NFRAMES}
            content = [video | {"max_pixels": MAX_PIXELS}]
            begun = time.perf_counter()
            # With the metadata that today's vLLM insists on.
            _, videos, more = process_vision_info(
                [{"role": "user", "content": content}],
                return_video_kwargs=True,
                return_video_metadata=True,
            )
            ready = time.perf_counter()
            inputs = {
                "prompt": self._prompt(number),
                "multi_modal_data": {"video": [videos[0]]},
                "mm_processor_kwargs": more,
            }
            self._llm.generate([inputs], self._sampling, use_tqdm=False)
            times["process_vision_info"] += (ready - begun) / len(clips)
            times["generate"] += (time.perf_counter() - ready) / len(clips)
        return time.perf_counter() - started, times

    def all_at_once(self, clips: list[Path]) -> float:
        inputs = [self._decoded(number, clip) for number, clip in enumerate(clips)]
        started = time.perf_counter()
        self._llm.generate(inputs, self._sampling, use_tqdm=False)
        return time.perf_counter() - started

    def _decoded(self, number: int, clip: Path) -> dict[str, Any]:
        import numpy as np

        decoded = decode_video(
            str(clip), count=NFRAMES, max_pixels=MAX_PIXELS, stop=threading.Event()
        )
        metadata = {
            "fps": decoded.fps,
            "total_num_frames": decoded.total,
            "frames_indices": list(decoded.indices),
            "duration": decoded.total / (decoded.fps or 20),
            "do_sample_frames": False,
        }
        return {
            "prompt": self._prompt(number),
            "multi_modal_data": {"video": [(np.stack(decoded.frames), metadata)]},
            "mm_processor_kwargs": {"size": SIZE, "do_sample_frames": False},
        }

    def _prompt(self, number: int) -> str:
        content = [{"type": "video"}, {"type": "text", "text": PERCENTAGE.render(f"{number}")}]
        prompt: str = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        return prompt


@contextmanager
def service(folder: Path) -> Iterator[int]:
    """The video service as a user starts it."""
    port = 18098
    command = [
        *(sys.executable, "-m", "rewardfleet_server", "serve", "video", "--port", str(port)),
        *("--video-root", str(folder / "clips"), "--model-path", str(folder / "model")),
        *("--max-model-len", "4096", "--enforce-eager", "--cache-mb", "0"),
        *("--log-level", "warning"),
    ]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 180
        while not answers(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the service did not start")
            time.sleep(0.2)
        yield port
    finally:
        server.terminate()
        server.wait(30)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


class Round:
    """What one round over HTTP showed; times in seconds."""

    def __init__(self, seconds: float, stages: dict[str, float], slowest_health: float) -> None:
        self.seconds = seconds
        self.stages = stages
        self.slowest_health = slowest_health


def over_http(port: int, clips: list[Path], task: str = TASK) -> Round:
    with health_watched(port) as slowest:
        seconds, scores = asyncio.run(all_callers(port, clips, task))
        health = slowest()
    times = {
        stage: statistics.mean(getattr(score.timing_ms, stage) for score in scores) / 1000
        for stage in ("queue", "decode", "backend", "total")
    }
    return Round(seconds, times, health)


async def all_callers(port: int, clips: list[Path], task: str) -> tuple[float, list[VideoScore]]:
    async with RewardFleet(video=f"http://127.0.0.1:{port}") as fleet:
        started = time.perf_counter()
        scores = await asyncio.gather(*(fleet.video.score(task, str(clip)) for clip in clips))
        return time.perf_counter() - started, scores


if __name__ == "__main__":
    sys.exit(main())
