"""Functions of tests that run a trainer's own code, each call in a process of its own.

A trainer is installed without what it needs, see requirements-clients.txt and sources.toml. So a
function names the packages that the modules it imports mention, but do not use here: see `absent`.
Neither these nor the trainer must reach other tests.
"""

import asyncio
import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import itertools
import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
#: Configurations of trainers.
CONFIGS = HERE.parent / "data" / "third_party"
CLIENTS, PEERS = ROOT / ".clients", Path(os.environ.get("PEERS", ROOT / ".peers"))

#: Whether the environment has what trainers need.
HAS_CLIENTS = (CLIENTS / ".installed").exists() and importlib.util.find_spec("verl") is not None
needs_clients = pytest.mark.skipif(
    not HAS_CLIENTS, reason="needs .clients and .venv-trainers; `make test-trainers` runs it"
)

#: How `error_of` the call of a dead service begins: its short deadline may pass first.
UNREACHABLE = ("Unavailable: ", "DeadlineExceeded: ")


def error_of(error: BaseException) -> str:
    """Return the name of an error's class and its message."""
    return f"{type(error).__name__}: {error}"


def in_process(function: Callable[..., Any], *sources: Path) -> Callable[..., Any]:
    """Run a function, or coroutine function, of JSON values in a process with `.clients`."""

    @functools.wraps(function)
    def call(*arguments: object) -> Any:
        return run(function, arguments, *sources)

    return call


def run(function: Callable[..., Any], arguments: object, *sources: Path) -> Any:
    """Run a function, without its decorators, with sources on the path.

    Its folder is empty, as trainers write files into it.
    """
    file = inspect.getfile(function)
    command = [sys.executable, "-P", __file__, file, function.__name__, json.dumps(arguments)]
    path = [*map(str, sources), str(CLIENTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        given = {"stdout": subprocess.PIPE, "text": True, "cwd": folder, "env": environment}
        done = subprocess.run(command, check=True, timeout=300, **given)
    return json.loads(done.stdout.splitlines()[-1])


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, or coroutine function."""
    result = function(*arguments)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any module of some packages. Each name in it is a mock."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        def named(name: str) -> MagicMock:
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=name)

        module.__getattr__ = named


def absent(*packages: str) -> None:
    """Let packages be imported that are not installed: the code that is run does not use them."""
    sys.meta_path.append(_Absent(packages))


def bare(name: str, **contents: object) -> None:
    """Register a package without its `__init__`, so that its modules are loaded, unchanged."""
    module = types.ModuleType(name)
    module.__path__ = [str(Path(folder) / name.replace(".", "/")) for folder in sys.path]
    vars(module).update(contents)
    sys.modules[name] = module


def edited(name: str, changes: dict[str, str], **contents: object) -> Any:
    """Import a module of a trainer with lines changed as a page says."""
    spec = importlib.util.find_spec(name)
    source = Path(spec.origin).read_text()
    for old, new in changes.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    module = importlib.util.module_from_spec(spec)
    vars(module).update(contents)
    exec(compile(source, spec.origin, "exec"), vars(module))
    return module


def counted() -> Any:
    """Return a module of names that are not random, so that a recording does not always change."""
    return SimpleNamespace(uuid4=itertools.count().__next__)


def byte_tokenizer() -> Any:
    from transformers import ByT5Tokenizer

    template = "{% for each in messages %}<{{ each.role }}>{{ each.content }}{% endfor %}"
    return ByT5Tokenizer(extra_ids=0, chat_template=template)


def close_fleet_of(reward: Any, trainer: Any = None) -> None:
    """Close what a reward function of TRL has opened, in the trainer's event loop if it awaits."""
    if hasattr(reward, "keywords"):
        closing = reward.keywords["scorer"].fleet.aclose()
        asyncio.run_coroutine_threadsafe(closing, trainer.async_loop).result(30)
    else:
        reward._scorer.loop.close(reward._scorer.fleet.aclose())


def rollouts_of(texts: list[str], truths: list[str], **columns: list[Any]) -> Any:
    """Return a batch as verl's rollout workers do: prompts on the left, responses on the right."""
    import numpy as np
    import torch
    from verl import DataProto

    options = {"add_special_tokens": False, "padding": True, "return_tensors": "np"}
    encoded = byte_tokenizer()(texts, **options)
    mask = torch.tensor(encoded["attention_mask"]).long()
    prompts = torch.full((len(texts), 4), 65)
    tensors = {"prompts": prompts, "responses": torch.tensor(encoded["input_ids"]).long()}
    tensors["attention_mask"] = torch.cat([torch.ones_like(prompts), mask], dim=1)
    tensors["response_mask"] = mask
    others = {"data_source": ["code"] * len(texts), "extra_info": [{} for _ in texts], **columns}
    others["reward_model"] = [{"ground_truth": each} for each in truths]
    arrays = {name: np.array(values, dtype=object) for name, values in others.items()}
    return DataProto.from_dict(tensors=tensors, non_tensors=arrays)


def random_trainer(
    folder: Path, reward: Any, rows: list[dict[str, Any]], kind: Any = None, **options: Any
) -> Any:
    """Return a trainer of TRL, `GRPOTrainer` by default, of a policy that writes random bytes."""
    import torch
    import trl
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=512, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "policy")  # some load it again
    kind = kind or trl.GRPOTrainer
    of_trl = next(each for each in kind.__mro__ if each.__module__.startswith("trl."))
    module = importlib.import_module(of_trl.__module__.rpartition(".")[0])
    config_of = getattr(module, of_trl.__name__.replace("Trainer", "Config"))
    length = "max_new_tokens" if hasattr(config_of, "max_new_tokens") else "max_completion_length"
    arguments = config_of(
        str(folder), seed=0, use_cpu=True, bf16=False, logging_steps=1,
        gradient_checkpointing=False, disable_tqdm=True,
        **{"save_strategy": "no", length: 8, **options},
    )  # fmt: skip
    given = {"train_dataset": Dataset.from_list(rows), "processing_class": tokenizer}
    policy = LlamaForCausalLM.from_pretrained(folder / "policy")
    return kind(policy, reward_funcs=reward, args=arguments, **given)


if __name__ == "__main__":
    # `.clients` has a package `tests` as well.
    for name, folder in {"tests": HERE.parent, "tests.third_party": HERE}.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(folder)]
    module = importlib.import_module(f"tests.third_party.{Path(sys.argv[1]).stem}")
    with contextlib.redirect_stdout(sys.stderr):
        function = inspect.unwrap(getattr(module, sys.argv[2]))
        result = called(function, *json.loads(sys.argv[3]))
    print(json.dumps(result))
