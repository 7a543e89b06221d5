"""verl without accelerators: a platform `cpu`, for tests and small models.

verl loads it where `VERL_PLATFORM` is `cpu` and `VERL_USE_EXTERNAL_MODULES` names this module; see
`settings.choose_cpu`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from .settings import CPU, is_cpu_chosen


class _Device(ModuleType):
    """What verl calls of `torch.cuda`: memory of which nothing is used, nothing to wait for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("memory_", "max_memory_")):
            return lambda *_: 0
        if name in {"empty_cache", "synchronize", "set_device", "manual_seed", "manual_seed_all"}:
            return lambda *_: None
        if name in {"get_rng_state", "set_rng_state"}:
            return getattr(torch, name)
        return getattr(torch.cpu, name)

    @staticmethod
    def is_available() -> bool:
        return False

    @staticmethod
    def get_device_name() -> str:
        return CPU

    @staticmethod
    def mem_get_info() -> tuple[int, int]:
        return 0, 0


@PlatformRegistry.register(platform=CPU)
class PlatformCPU(PlatformBase):  # type: ignore[misc]  # verl is not installed where types are checked
    """Processes on CPUs that communicate by gloo."""

    device_name = CPU
    vendor_name = CPU
    device_module = _Device("torch.cpu")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return whether it was chosen; verl must not find it where a driver has no GPU."""
        return is_cpu_chosen()

    def current_device(self) -> str:
        return CPU

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_cpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
