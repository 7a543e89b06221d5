"""`make bench-vlm`: score 64 clips with vLLM on the CPU in three ways, in one run.

(a) like the original LIBERO reward server: mp4 -> process_vision_info -> blocking generate, one
    after another, without HTTP;
(b) the video service over HTTP, 64 concurrent requests with mp4 files;
(c) the engine alone, one batch of all 64, from frames decoded before, with its own processor.

All three show the model the same frames at the same size and generate 64 tokens. The checkpoint is
tiny and random, so the benchmark measures the work around the model, on the same cores. It exits
with 1 if a ratio misses its limit.
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
from pathlib import Path
from typing import Any, NamedTuple

from harness import Ratio, command_serving, health_watched, report

from rewardfleet import RewardFleet, VideoScore
from rewardfleet_server.video.frames import decode_video
from rewardfleet_server.video.prompts import PERCENTAGE
from rewardfleet_server.video.settings import prepare_engine_environment

ROOT = Path(__file__).parent.parent.parent
VIDEOS = ROOT / "tests" / "data" / "libero" / "videos"
CLIPS = 64
NFRAMES, MAX_PIXELS, MAX_TOKENS = 16, 200_704, 64
TASK = "put the bowl on the plate"
#: The limits of qwen-vl-utils, so that the engine's own processor resizes to the same size.
SIZE = {"shortest_edge": 128 * 28 * 28, "longest_edge": MAX_PIXELS}
ENGINE = {
    "max_model_len": 4096,
    "enforce_eager": True,
    "limit_mm_per_prompt": {"image": 0, "video": 1},
    "mm_processor_cache_gb": 0,
    "enable_prefix_caching": False,  # every round has the same clips, unlike rollouts
    "disable_log_stats": True,
}


def main() -> int:
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    prepare_engine_environment()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        maker = ROOT / "tests" / "engines" / "tiny_checkpoint.py"
        subprocess.run([sys.executable, maker, folder / "model"], check=True)
        clips = copies(folder / "clips")
        flags = [
            *("--video-root", str(folder / "clips"), "--model-path", str(folder / "model")),
            *("--max-model-len", "4096", "--set", "enforce_eager=true", "--cache-mb", "0"),
        ]
        engine = OfflineEngine(folder / "model")
        try:
            with command_serving("video", *flags) as url:
                engine.one_batch(clips[:8])  # warm up each way
                over_http(url, clips[:8])
                engine.one_by_one(clips[:2])
                sequential, sequential_stages = engine.one_by_one(clips)
                batches, rounds = [], []
                for number in range(3):
                    batches.append(engine.one_batch(clips))
                    rounds.append(over_http(url, clips, f"{TASK} {number}"))
        finally:
            engine.close()
    return compare(sequential, sequential_stages, batches, rounds)


def compare(
    sequential: float,
    sequential_stages: dict[str, float],
    batches: list[float],
    rounds: list["Round"],
) -> int:
    """Print the results; return the exit status."""
    middle = sorted(rounds, key=lambda each: each.seconds)[len(rounds) // 2]
    service_rate, engine_rate = CLIPS / middle.seconds, CLIPS / statistics.median(batches)
    print(f"\n{CLIPS} clips, {NFRAMES} frames, {MAX_TOKENS} tokens; {os.cpu_count()} cores")
    print(f"(a) one after another: {stages(sequential_stages)}")
    print(f"(b) service, {CLIPS} requests: {stages(middle.stages)}")
    print(f"    rounds, clips/s: {', '.join(f'{CLIPS / each.seconds:.2f}' for each in rounds)}")
    print("(c) engine alone, one batch")
    print(f"    rounds, clips/s: {', '.join(f'{CLIPS / seconds:.2f}' for seconds in batches)}")
    slowest_ms = max(each.slowest_health for each in rounds) * 1000
    return report(
        [
            Ratio("clips/s; (a)", service_rate, CLIPS / sequential, ">= 3"),
            Ratio("clips/s; (c)", service_rate, engine_rate, ">= 0.8"),
            Ratio("ms of the slowest /healthz meanwhile; 50 ms", slowest_ms, 50, "<= 1"),
        ]
    )


def stages(times: dict[str, float]) -> str:
    return "  ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in times.items())


def copies(folder: Path) -> list[Path]:
    """Copy the rollouts to 64 files, so that no stored digest of a path applies."""
    folder.mkdir()
    originals = sorted(VIDEOS.glob("*.mp4"))
    return [
        Path(shutil.copy(originals[number % len(originals)], folder / f"{number}.mp4"))
        for number in range(CLIPS)
    ]


class OfflineEngine:
    """vLLM as the original LIBERO reward server uses it: `LLM.generate`."""

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
            before = time.perf_counter()
            # Current versions of vLLM need the metadata.
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
            times["process_vision_info"] += (ready - before) / len(clips)
            times["generate"] += (time.perf_counter() - ready) / len(clips)
        return time.perf_counter() - started, times

    def one_batch(self, clips: list[Path]) -> float:
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


class Round(NamedTuple):
    """The results of one round over HTTP; times in seconds."""

    seconds: float
    stages: dict[str, float]
    slowest_health: float


def over_http(url: str, clips: list[Path], task: str = TASK) -> Round:
    with health_watched(int(url.rpartition(":")[2])) as slowest:
        seconds, scores = asyncio.run(score_all(url, clips, task))
        health = slowest()
    times = {
        stage: statistics.mean(getattr(score.timing_ms, stage) for score in scores) / 1000
        for stage in ("queue", "decode", "backend", "total")
    }
    return Round(seconds, times, health)


async def score_all(url: str, clips: list[Path], task: str) -> tuple[float, list[VideoScore]]:
    async with RewardFleet(video=url) as fleet:
        started = time.perf_counter()
        scores = await asyncio.gather(*(fleet.video.score(task, str(clip)) for clip in clips))
        return time.perf_counter() - started, scores


if __name__ == "__main__":
    sys.exit(main())
