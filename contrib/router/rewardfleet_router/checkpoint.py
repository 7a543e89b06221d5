"""Checkpoints of a training run: complete or not there, whenever the process is killed.

```text
FOLDER/global_step_200/
    manifest.json     step, run, multiplier, budget, configuration, versions, what was trained on
    actor/            weights, configuration and tokenizer, as transformers stores them
    router_head.pt    weights of the head, its hidden size and pooling
    optimizers.pt     state of the optimizers
    random.json       states of all generators of random numbers
    random.pt         the same, of torch
```
"""

import json
import os
import random
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .head import RouterHead

#: The version of the layout above.
FORMAT = 1
MANIFEST_FILE = "manifest.json"
#: Names the newest checkpoint, as in verl.
LATEST_FILE = "latest_checkpointed_iteration.txt"

_NAME = re.compile(r"global_step_([0-9]+)")


@dataclass(frozen=True)
class Manifest:
    """What a run resumes from, besides tensors.

    Attributes:
        step: Completed steps.
        total_steps: The number of steps of the run.
        run: Name of its budget.
        multiplier: λ of the next step.
        budget: The `checkpoint` of the budget: controller, its averages, and the step.
        rows: Number of training rows.
        rows_digest: SHA-256 of their indices, prompts and ground truths.
        critic: None: GRPO has no critic.
        config: The configuration by dotted keys.
        versions: The versions of the packages.
        format: The version of the layout.
    """

    step: int
    total_steps: int
    run: str
    multiplier: float
    budget: dict[str, Any]
    rows: int
    rows_digest: str
    config: dict[str, Any]
    versions: dict[str, str]
    critic: None = None
    format: int = FORMAT


class RandomStates:
    """The generators of a training run.

    Attributes:
        routes: Samples routes.
        responses: Passed to the responder.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - a responder may use the global generator
        torch.manual_seed(seed)
        self.routes = torch.Generator(device)
        self.routes.manual_seed(seed)
        self.responses = np.random.default_rng(seed)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all states: those that JSON can represent, and tensors."""
        name, words, *others = np.random.get_state()  # noqa: NPY002 - see above
        version, integers, gauss = random.getstate()
        plain = {
            "responses": self.responses.bit_generator.state,
            "numpy": [name, np.asarray(words).tolist(), *others],
            "python": [version, list(integers), gauss],
        }
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return plain, {
            "routes": self.routes.get_state(),
            "torch": torch.get_rng_state(),
            "cuda": cuda,
        }

    def restore(self, plain: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.responses.bit_generator.state = plain["responses"]
        np.random.set_state(tuple(plain["numpy"]))  # noqa: NPY002 - see above
        version, integers, gauss = plain["python"]
        random.setstate((version, tuple(integers), gauss))
        self.routes.set_state(tensors["routes"])
        torch.set_rng_state(tensors["torch"])
        if tensors["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(tensors["cuda"])


def save_checkpoint(
    folder: Path,
    manifest: Manifest,
    *,
    model: Any,
    tokenizer: Any,
    head: RouterHead,
    optimizers: Mapping[str, torch.optim.Optimizer],
    random_states: tuple[dict[str, Any], dict[str, Any]],
    keep: int | None = None,
) -> Path:
    """Write a checkpoint and return its folder.

    It is written to a temporary folder, flushed to disk, and renamed, so a checkpoint is never
    incomplete.

    Args:
        folder: The folder of the run.
        manifest: See `Manifest`.
        model: The actor, a model of transformers.
        tokenizer: Its tokenizer.
        head: The head.
        optimizers: By name.
        random_states: What `RandomStates.state` returned.
        keep: How many of the newest checkpoints are stored; None: all.
    """
    target = folder / f"global_step_{manifest.step}"
    draft = folder / f".{target.name}.incomplete"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    model.save_pretrained(draft / "actor")
    tokenizer.save_pretrained(draft / "actor")
    save_head(draft, head)
    states = {name: optimizer.state_dict() for name, optimizer in optimizers.items()}
    torch.save(states, draft / "optimizers.pt")
    plain, tensors = random_states
    (draft / "random.json").write_text(json.dumps(plain))
    torch.save(tensors, draft / "random.pt")
    (draft / MANIFEST_FILE).write_text(json.dumps(asdict(manifest), indent=2) + "\n")
    for path in sorted(draft.rglob("*")):
        _flush(path)
    _flush(draft)
    if target.exists():  # of an earlier run in the same folder
        shutil.rmtree(target)
    draft.rename(target)
    latest = folder / f".{LATEST_FILE}.incomplete"
    latest.write_text(f"{manifest.step}\n")
    _flush(latest)
    latest.replace(folder / LATEST_FILE)
    _flush(folder)
    if keep is not None:
        for old in checkpoints(folder)[:-keep]:
            shutil.rmtree(old)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first.

    Those after the one that `LATEST_FILE` names are of an earlier run in the same folder.
    """
    latest = folder / LATEST_FILE
    last = int(latest.read_text()) if latest.exists() else None
    found = {}
    for path in folder.glob("global_step_*"):
        match = _NAME.fullmatch(path.name)
        if match and (path / MANIFEST_FILE).exists() and (last is None or int(match[1]) <= last):
            found[int(match[1])] = path
    return [found[step] for step in sorted(found)]


def read_manifest(checkpoint: Path) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises:
        ValueError: Another version of this package wrote it.
    """
    fields = json.loads((checkpoint / MANIFEST_FILE).read_text())
    if fields.get("format") != FORMAT:
        raise ValueError(
            f"{checkpoint}: format {fields.get('format')}; this version reads {FORMAT}"
        )
    return Manifest(**fields)


def save_head(checkpoint: Path, head: RouterHead) -> None:
    """Write the head of a checkpoint, for `load_head`."""
    torch.save(
        {"hidden_size": head.hidden_size, "pooling": head.pooling, "state": head.state_dict()},
        checkpoint / "router_head.pt",
    )


def load_head(checkpoint: Path, device: torch.device | str = "cpu") -> RouterHead:
    """Return the head of a checkpoint."""
    stored = torch.load(checkpoint / "router_head.pt", map_location=device, weights_only=True)
    head = RouterHead(stored["hidden_size"], stored["pooling"])
    head.load_state_dict(stored["state"])
    head.to(device)
    return head


def load_optimizers(checkpoint: Path, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Restore the optimizers.

    Raises:
        ValueError: The checkpoint has other ones.
    """
    states = torch.load(checkpoint / "optimizers.pt", map_location="cpu", weights_only=True)
    if states.keys() != optimizers.keys():
        raise ValueError(
            f"{checkpoint}: has the optimizers {', '.join(states)}, the configuration "
            f"{', '.join(optimizers)}"
        )
    for name, optimizer in optimizers.items():
        optimizer.load_state_dict(states[name])


def load_random(checkpoint: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the states of the generators, for `RandomStates.restore`."""
    plain: dict[str, Any] = json.loads((checkpoint / "random.json").read_text())
    tensors: dict[str, Any] = torch.load(
        checkpoint / "random.pt", map_location="cpu", weights_only=True
    )
    return plain, tensors


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
