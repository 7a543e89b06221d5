"""`make bench-gpu`: clips per second and memory of judges on a GPU, at full size, by transformers.

The judge `transformers` has the shape of Qwen2.5-VL-7B, `robometer` that of Robometer-4B, the other
judges of published models that of Qwen3-VL-8B. The weights are random, as speed and memory do not
depend on their values. The tokenizer is that of the tests' tiny checkpoint. It needs torch,
torchvision and transformers. If torch finds no GPU, it measures tiny checkpoints on the CPU
instead.
"""

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / name) for name in ("clients", "services", "tests/engines")]

from tiny_checkpoint import make_checkpoint, make_robometer  # noqa: E402 - the path above

from rewardfleet_server.video.clip.frames import Clip, DecodeSpec, decode_video  # noqa: E402
from rewardfleet_server.video.judges import DeferredJudge  # noqa: E402
from rewardfleet_server.video.judges.loading import find_judge  # noqa: E402
from rewardfleet_server.video.judges.vlm.engine_robometer import RobometerModel  # noqa: E402
from rewardfleet_server.video.settings import VideoSettings  # noqa: E402

#: What differs between the config.json of a model and that of a tiny checkpoint.
FULL_SIZE = json.loads((ROOT / "tests" / "data" / "engines" / "full_size.json").read_text())
#: How many of the clips, and of their 16 frames, each judge gets: SOLE-R1 answers at each frame.
PUBLISHED = {"topreward": (64, 16), "roboreward": (64, 16), "sole-r1": (16, 4)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if has_gpu else "CPU"
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}")
    if not has_gpu:
        print("torch finds no GPU: tiny checkpoints on the CPU say nothing about speed")
    clips = [_clip(number) for number in range(options.clips)]
    batch = f"batch_size={options.batch_size}"
    with tempfile.TemporaryDirectory() as name:
        folder = make_checkpoint(Path(name))
        if has_gpu:
            _load_full_size(folder, "Qwen2.5-VL-7B")
        for readout, max_tokens in (("probability", 1), ("text", 64)):
            own = [f"readout={readout}", f"max_tokens={max_tokens}", "frame_pixels=200704"]
            found = _find("transformers", folder, [batch, *own])
            asyncio.run(_measure(readout, found, clips))
    with tempfile.TemporaryDirectory() as name:
        folder = make_checkpoint(Path(name), "qwen3_vl")
        if has_gpu:
            _load_full_size(folder, "Qwen3-VL-8B")
        for judge, (count, frames) in PUBLISHED.items():
            few = [_first(clip, frames) for clip in clips[:count]]
            found = _find(judge, folder, [batch, "engine=transformers"])
            asyncio.run(_measure(judge, found, few))
    with tempfile.TemporaryDirectory() as name:
        folder = make_robometer(Path(name) / "robometer")
        found = _find("robometer", folder, [batch])  # checks the shapes of the tiny weights
        if has_gpu:
            _load_full_size(folder, "Qwen3-VL-4B")  # the base of Robometer-4B
        asyncio.run(_measure("robometer", found, clips))
    return 0


def _find(name: str, folder: Path, own: list[str]) -> DeferredJudge:
    found = find_judge(name, VideoSettings(backend=[name], model_path=str(folder), set=own))
    assert isinstance(found, DeferredJudge)
    return found


def _first(clip: Clip, frames: int) -> Clip:
    return replace(clip, frames=clip.frames[:frames], indices=clip.indices[:frames])


def _load_full_size(folder: Path, model: str) -> None:
    """Make the judge load billions of random weights, created on the GPU and never written."""
    config = json.loads((folder / "config.json").read_text())
    config["text_config"].pop("layer_types", None)  # it has one entry per layer
    for part, changes in FULL_SIZE[model].items():
        config[f"{part}_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))

    def of_any_kind(path: str, **_: object) -> torch.nn.Module:
        config = transformers.AutoConfig.from_pretrained(path)
        return _on_gpu(lambda: transformers.AutoModelForImageTextToText.from_config(config))

    def of_robometer(path: str, bins: int, **_: object) -> tuple[torch.nn.Module, dict[str, Any]]:
        config = transformers.AutoConfig.from_pretrained(path)
        return _on_gpu(lambda: RobometerModel(config, bins)), defaultdict(list)

    transformers.AutoModelForImageTextToText.from_pretrained = of_any_kind
    RobometerModel.from_pretrained = of_robometer


def _on_gpu(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return make()
    finally:
        torch.set_default_dtype(torch.float32)


async def _measure(name: str, found: DeferredJudge, clips: list[Clip]) -> None:
    gc.collect()  # the model before, which a reference cycle holds
    judge: Any = found.load()
    engine = judge._engine
    async with judge.lifespan():
        await asyncio.gather(*(judge.judge("warm up", clip, {}) for clip in clips[:4]))
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        passes: list[int] = []
        engine._model.register_forward_pre_hook(lambda *_: passes.append(1))
        started = time.perf_counter()
        await asyncio.gather(*(judge.judge(f"{n}", clip, {}) for n, clip in enumerate(clips)))
        seconds = time.perf_counter() - started
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    print(
        f"{name:12} {len(clips) / seconds:7.2f} clips/s   "
        f"{len(passes)} forward passes   {memory:.1f} GiB peak"
    )


def _clip(number: int) -> Clip:
    videos = sorted((ROOT / "tests" / "data" / "libero" / "videos").glob("*.mp4"))
    return decode_video(str(videos[number % len(videos)]), DecodeSpec(16, 200_704))


if __name__ == "__main__":
    sys.exit(main())
