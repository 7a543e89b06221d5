"""The training loop of the router: routes, answers, rewards over HTTP, one update per step.

```sh
rewardfleet-router train data.train_files=train.parquet \
    actor_rollout_ref.model.path=MODEL router.budget_B=0.3
```

A run that is killed continues from its newest checkpoint and ends with the same numbers as one
that was not, on the same machine and with the same number of threads.
"""

import importlib.metadata
import logging
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from rewardfleet import blocking
from rewardfleet.wire.tools import ToolsOptions

from .batch import choose_group_routes
from .budget import RunBudget, new_run_name
from .checkpoint import (
    Manifest,
    RandomStates,
    checkpoints,
    load_head,
    load_optimizers,
    load_random,
    read_manifest,
    save_checkpoint,
)
from .config import RouterConfig, flatten
from .head import RouterActor, RouterHead
from .metrics import MetricsLog
from .objective import (
    entropy_weight,
    exploration_loss,
    router_advantages,
    router_loss,
    schedule_progress,
)
from .optimizers import build_optimizers, update_weights
from .prompts import TokenizedPrompts
from .responders import ActorResponder, Responder, answer_rows, load_responder
from .rows import Row, digest, read_rows
from .scoring import Scored, score_answers

log = logging.getLogger(__name__)

#: Packages whose versions the manifest names.
_PACKAGES = ("rewardfleet", "rewardfleet-router", "torch", "transformers", "numpy")
#: Keys that may change when a run continues, as they do not change its numbers.
_MAY_CHANGE = ("trainer.", "router.url", "router.timeout_s", "data.val_")
#: Seeds of evaluations, apart from those of training.
_EVALUATION = 0x5EED


class RouterTrainer:
    """A training run of the router.

    Args:
        config: Its configuration.
        responder: Who answers; None: the one that the configuration names.

    Attributes:
        actor: The actor with its head.
        step: Completed steps.
        total_steps: The number of steps of the run.
        multiplier: λ.
        train_rows: Training rows.
        val_rows: Held-out rows.

    Raises:
        ValueError: The rows, the checkpoint or the configuration do not fit.
    """

    def __init__(self, config: RouterConfig, responder: Responder | None = None) -> None:
        self._config = config
        self.device = _device(config)
        self.train_rows = read_rows(config.data.train_files, config.router.labels)
        self.val_rows = read_rows(config.data.val_files, config.router.labels)
        steps_per_epoch = len(self.train_rows) // config.data.train_batch_size
        if not steps_per_epoch:
            raise ValueError(
                f"data.train_batch_size: {config.data.train_batch_size} is more than the "
                f"{len(self.train_rows)} training rows"
            )
        self._steps_per_epoch = steps_per_epoch
        steps = steps_per_epoch * config.trainer.total_epochs
        self.total_steps = min(steps, config.trainer.total_training_steps or steps)
        self._digest = digest(self.train_rows)

        self._random = RandomStates(config.data.seed, self.device)
        found = checkpoints(config.folder)
        resumes = config.trainer.resume_mode == "auto" and bool(found)
        checkpoint = found[-1] if resumes else None
        self._manifest = self._read_manifest(checkpoint) if checkpoint is not None else None
        path = config.actor_rollout_ref.model.path if checkpoint is None else checkpoint / "actor"
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._prompts = TokenizedPrompts(self._tokenizer, config.data)
        self._prompts.check_lengths(self.train_rows)
        self._prompts.check_lengths(self.val_rows)
        self.actor = self._load_actor(path, checkpoint)
        self._optimizers = build_optimizers(self.actor, config)
        self.step = 0
        self.multiplier = config.router.initial_lambda
        run = new_run_name(config.trainer.project_name, config.trainer.experiment_name)
        if checkpoint is not None and self._manifest is not None:
            self.step = self._manifest.step
            self.multiplier = self._manifest.multiplier
            run = self._manifest.run
            load_optimizers(checkpoint, self._optimizers)
            self._random.restore(*load_random(checkpoint))
        self._saved_step = self.step  # before the first step there is nothing to save
        self._responder = responder or self._configured_responder()
        self._options = ToolsOptions(
            variant=config.router.variant,
            cost=config.router.cost,
            cost_weights=config.router.cost_weights,
        )
        self._fleet = blocking.RewardFleet(
            tools=config.router.url, timeout_s=config.router.timeout_s
        )
        self._budget = RunBudget(self._fleet, run, config.router.budget_options())
        self._stops = threading.Event()
        #: What a checkpoint between two steps has; None while weights change.
        self._boundary: tuple[tuple[dict[str, Any], dict[str, Any]], dict[str, Any]] | None = None

    # Training.

    def fit(self) -> dict[str, float]:
        """Train until the last step, or until SIGINT or SIGTERM. Return the last metrics.

        Raises:
            RewardFleetError: The tools service fails for longer than `router.timeout_s`, or an
                answer has no score.
        """
        config = self._config
        self._open_budget()
        run = self._budget.run.rpartition("/")[2]
        metrics_log = MetricsLog(config, step=self.step, run=run)
        metrics: dict[str, float] = {}
        with _stopping_on_signals(self._stops), self._progress() as bar:
            try:
                while self.step < self.total_steps and not self._stops.is_set():
                    metrics = self._train_step()
                    every = config.trainer.test_freq
                    is_last = self.step == self.total_steps
                    if self.val_rows and every > 0 and (self.step % every == 0 or is_last):
                        metrics |= {f"val/{k}": v for k, v in self.evaluate().metrics().items()}
                    metrics_log.log(self.step, metrics)
                    _show(bar, metrics)
                    if config.trainer.save_freq > 0 and self.step % config.trainer.save_freq == 0:
                        metrics_log.flush()
                        self.save()
            finally:
                try:
                    if config.trainer.save_on_exit and self.step != self._saved_step:
                        self.save()
                finally:
                    metrics_log.close()
        return metrics

    def _open_budget(self) -> None:
        if self._manifest is None:
            self.multiplier = self._budget.open()
        else:
            self._budget.open(self._manifest.budget)
        self._boundary = self._random.state(), self._budget.checkpoint

    def _train_step(self) -> dict[str, float]:
        started = time.monotonic()
        rows = self._batch(self.step)
        copies = [row for row in rows for _ in range(self._config.actor_rollout_ref.rollout.n)]
        logits = self._logits(rows).repeat_interleave(len(copies) // len(rows), dim=0)
        chosen = choose_group_routes(
            logits,
            [row.index for row in copies],
            routes_per_prompt=self._config.router.routes_per_prompt,
            generator=self._random.routes,
        )
        responses = answer_rows(self._responder, copies, chosen.action, self._random.responses)
        answered = time.monotonic()
        scored = self._score(copies, chosen.action, logits, responses)
        scored_at = time.monotonic()
        router = self._config.router
        advantages = router_advantages(
            scored.task,
            scored.cost,
            self.multiplier,
            [row.index for row in copies] if len(copies) > len(rows) else None,
            method=router.advantage,
        )
        progress = schedule_progress(self.step, self.total_steps)
        loss, metrics = router_loss(
            logits,
            chosen.action,
            advantages.to(logits.device),
            labels=torch.as_tensor([row.labels.action for row in copies]),
            label_weight=router.label_weight,
            entropy_weight=entropy_weight(router, progress),
        )
        next_multiplier = self._budget.update(self.step, scored.task, scored.cost)
        self._boundary = None
        loss = loss + exploration_loss(router, logits, progress)
        metrics |= update_weights(loss, self._optimizers, self._config, self.step, self.total_steps)
        multiplier, self.multiplier = self.multiplier, next_multiplier
        self.step += 1
        self._boundary = self._random.state(), self._budget.checkpoint
        ended = time.monotonic()
        return {
            "router/lambda": multiplier,
            **scored.metrics(),
            **metrics,
            "perf/seconds": ended - started,
            "perf/seconds_responses": answered - started,
            "perf/seconds_scores": scored_at - answered,
            "perf/prompts_per_second": len(rows) / (ended - started),
        }

    def _batch(self, step: int) -> list[Row]:
        """Return the rows of a step. The order of an epoch depends on the seed and the epoch."""
        epoch, position = divmod(step, self._steps_per_epoch)
        data = self._config.data
        order = np.arange(len(self.train_rows))
        if data.shuffle:
            np.random.default_rng([data.seed, epoch]).shuffle(order)
        start = position * data.train_batch_size
        return [self.train_rows[each] for each in order[start : start + data.train_batch_size]]

    # Evaluation.

    def evaluate(
        self, rows: Sequence[Row] | None = None, *, sample: bool = True, copies: int = 1
    ) -> Scored:
        """Answer and score held-out rows. The run's random numbers do not change.

        Args:
            rows: Other rows.
            sample: Whether to sample the routes, as in training; otherwise the most probable one.
            copies: Answers per row; each samples its own route. Those of a row follow each other.
        """
        rows = self.val_rows if rows is None else rows
        seed = self._config.data.seed
        responses = np.random.default_rng([seed, _EVALUATION])
        routes = torch.Generator(self.device)
        routes.manual_seed(seed ^ _EVALUATION)
        parts = []
        state = torch.get_rng_state()
        size = self._config.data.val_batch_size
        for start in range(0, len(rows), size):
            prompts = rows[start : start + size]
            with torch.no_grad():
                logits = self._logits(prompts).repeat_interleave(copies, dim=0)
            part = [row for row in prompts for _ in range(copies)]
            chosen = choose_group_routes(
                logits, [row.index for row in part], sample=sample, generator=routes
            )
            texts = answer_rows(self._responder, part, chosen.action, responses)
            parts.append(self._score(part, chosen.action, logits, texts))
        torch.set_rng_state(state)
        names = ("action", "task", "cost", "probabilities")
        return Scored(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    # The parts of both.

    def _logits(self, rows: Sequence[Row]) -> Tensor:
        batch = self._prompts.batch(rows)
        logits: Tensor = self.actor(
            batch["input_ids"].to(self.device), batch["attention_mask"].to(self.device)
        )
        return logits

    def _score(
        self, rows: Sequence[Row], action: Tensor, logits: Tensor, responses: Sequence[str]
    ) -> Scored:
        scores = score_answers(self._fleet, rows, responses, step=self.step, options=self._options)
        return Scored(
            action=action.cpu().numpy(),
            task=np.array([score.details["task"] for score in scores]),
            cost=np.array([score.details["cost"] for score in scores]),
            probabilities=torch.softmax(logits.detach().float(), dim=-1).cpu().numpy(),
        )

    # Weights and checkpoints.

    def _load_actor(self, path: Path, checkpoint: Path | None) -> RouterActor:
        config = self._config
        trains = bool(config.actor_rollout_ref.actor.optim.lr)
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32 if trains else "auto"
        )
        model.to(self.device).eval()  # no dropout: routes are sampled from what is trained
        model.requires_grad_(trains)
        if checkpoint is None:
            hidden_size = model.get_input_embeddings().weight.shape[1]
            head = RouterHead(hidden_size, config.router.pooling).to(self.device)
        else:
            head = load_head(checkpoint, self.device)
        return RouterActor(model, head)

    def _configured_responder(self) -> Responder:
        config = self._config
        if config.router.responder != "actor":
            return load_responder(config.router.responder)
        return ActorResponder(
            self.actor.model,
            self._tokenizer,
            max_prompt_length=config.data.max_prompt_length,
            max_response_length=config.data.max_response_length,
            temperature=config.actor_rollout_ref.rollout.temperature,
            truncation=config.data.truncation,
        )

    def save(self) -> Path | None:
        """Write a checkpoint of the last completed step; None if its weights are not complete."""
        if self._boundary is None:
            log.warning("no checkpoint: the run ended within an update of the weights")
            return None
        states, budget = self._boundary
        path = save_checkpoint(
            self._config.folder,
            Manifest(
                step=self.step,
                total_steps=self.total_steps,
                run=self._budget.run,
                multiplier=self.multiplier,
                budget=budget,
                rows=len(self.train_rows),
                rows_digest=self._digest,
                config=flatten(self._config),
                versions={name: importlib.metadata.version(name) for name in _PACKAGES},
            ),
            model=self.actor.model,
            tokenizer=self._tokenizer,
            head=self.actor.head,
            optimizers=self._optimizers,
            random_states=states,
            keep=self._config.trainer.max_actor_ckpt_to_keep,
        )
        self._saved_step = self.step
        return path

    def _read_manifest(self, checkpoint: Path) -> Manifest:
        manifest = read_manifest(checkpoint)
        if manifest.rows_digest != self._digest:
            raise ValueError(
                f"{checkpoint}: was trained on other rows; give them, another "
                "trainer.default_local_dir, or trainer.resume_mode=disable"
            )
        now = flatten(self._config)
        changed = [
            f"{key}: {manifest.config.get(key)} -> {now.get(key)}"
            for key in sorted(manifest.config.keys() | now.keys())
            if manifest.config.get(key) != now.get(key) and not key.startswith(_MAY_CHANGE)
        ]
        if changed:
            log.warning("the configuration differs from the checkpoint's: %s", "; ".join(changed))
        return manifest

    def close(self) -> None:
        """Close the connections."""
        self._fleet.close()

    def _progress(self) -> Any:
        return tqdm(
            total=self.total_steps,
            initial=self.step,
            unit="step",
            desc=self._config.trainer.experiment_name,
            disable="console" not in self._config.trainer.logger,
        )


def _show(bar: Any, metrics: Mapping[str, float]) -> None:
    bar.set_postfix_str(
        f"λ {metrics['router/lambda']:.3f}, cost {metrics['router/mean_cost']:.3f}, "
        f"reward {metrics['router/mean_task_reward']:.3f}, "
        f"{metrics['perf/prompts_per_second']:.0f} prompts/s",
        refresh=False,
    )
    bar.update()


@contextmanager
def _stopping_on_signals(event: threading.Event) -> Iterator[None]:
    """Set an event on SIGINT and SIGTERM, so that a step is completed; a second one interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _device(config: RouterConfig) -> torch.device:
    if config.trainer.device != "auto":
        try:
            return torch.device(config.trainer.device)
        except RuntimeError as error:
            raise ValueError(f"trainer.device: {error}") from None
    has_gpu = torch.cuda.is_available() and config.trainer.n_gpus_per_node
    return torch.device("cuda" if has_gpu else "cpu")
