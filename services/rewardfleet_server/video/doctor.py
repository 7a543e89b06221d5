"""What the video service needs on this machine."""

from collections.abc import Iterator

from rewardfleet_server.doctor import Check, check_extra

from .settings import gpu_count


def checks() -> Iterator[Check]:
    """Check the packages of the judges, and the GPUs."""
    yield Check("ok", "video: judges reference and openai")
    yield check_extra("vllm", "video: judges qwen2_5_vl_vllm and PRIMO-R1", "vllm")
    modules = ("torch", "torchvision", "transformers")
    yield check_extra("transformers", "video: judge transformers", *modules)
    count = gpu_count()
    if count:
        yield Check("ok", f"video: {count} GPUs")
    elif count is None:
        yield Check("missing", "video: GPUs are unknown, as torch is not installed")
    else:
        yield Check("missing", "video: no GPU; the judge transformers also runs on a CPU")
