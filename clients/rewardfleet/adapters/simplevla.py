"""SimpleVLA-RL: its reward manager, with test-time RL, and a temperature per sample.

Run in SimpleVLA-RL at 7c51662.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal

import numpy as np

from rewardfleet import episodes
from rewardfleet.arrays import to_array
from rewardfleet.episodes.clustering import cluster_batch
from rewardfleet.wire.episode import EpisodeOptions, EpisodeRequest
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.truth import plain
from rewardfleet.wire.validation import validate

from ._rows import quartiles_of

#: The step limit of the original test-time RL integration, for all suites.
_MAX_STEPS = 500.0
#: The tokens of actions are the last 256 of OpenVLA's 32000, for bins from 1 to -1.
_VOCABULARY, _BINS = 32000, 255
#: The objectives that are computed from actions.
_MOTION = {"smoothness", "low_energy", "short_path"}


class _EpisodeReward(EpisodeOptions):
    """`episode_reward` in the config: the options of a batch, and which reward a rollout has."""

    kind: Literal["success", "efficiency", "objectives"] | None = None
    accuracy: Literal["success", "score"] = "success"
    vote: bool = False


class RobRewardManager:
    """A reward manager that puts each rollout's reward at its last action token.

    Args:
        num_examine: Accepted as upstream; nothing is printed.
        config: `actor_rollout_ref.model.action_token_len` and `verifier.reward_coef` as upstream,
            and the settings in docs/trainers/simplevla-rl.md.

    Raises:
        InvalidRequest: `episode_reward` is not valid.
    """

    def __init__(self, num_examine: int, config: Any) -> None:
        self.num_examine, self.config = num_examine, config
        self.test_time_rl_mode = bool(config.get("test_time_rl", False))
        self.schedule = _schedule(config)  #: the temperatures of the next rollouts
        self.over_limit = 0  #: the rollouts so far that took more steps than their limit
        fields = plain(config.get("episode_reward") or {})
        fields["filter"] = {"drop_all_equal": False, **fields.get("filter", {})}
        self._options = validate(_EpisodeReward, fields, prefix="episode_reward: ")
        self._default_kind = "efficiency" if self.test_time_rl_mode else "success"
        self._kind = self._options.kind or self._default_kind
        self._target_success = config.get("target_success_rate")
        self._target_diversity = config.get("target_diversity")
        vote = self._options.vote
        if self._options.clusters is None and (vote or self._target_diversity is not None):
            name = "vote" if vote else "target_diversity"
            raise InvalidRequest(f"{name}: needs episode_reward.clusters, e.g. {{over: actions}}")
        self._signals: list[tuple[float, int]] = []

    def verify(self, data: Any) -> tuple[list[float], dict[str, float], dict[str, float],
                                         dict[str, float]]:  # fmt: skip
        """Return scores, and the metrics of reward, format and both, as upstream.

        `batch["acc"]` is success, 0 or 1, on whose mean upstream filters; with `vote`, the vote.
        With `accuracy: score`, it is the score, and so is the metric `all`, the mean.
        `batch["episode_reward"]` is the score, and `batch["keep"]` whether to train on a rollout.
        One without steps, whose environment failed, has the score 0, is not kept, and its `acc` is
        the mean of its group. The groups are the rows with the same `uid`. In validation there are
        none: the score is then success or efficiency.

        Raises:
            InvalidRequest: `episode_reward` cannot be computed for these rollouts.
        """
        import torch  # noqa: PLC0415 - the trainer's package

        by_score = self._options.accuracy == "score"
        completes = episodes.success(to_array(data.batch["complete"]))
        labels, rewards, result = self._score(data, completes)
        scores = np.nan_to_num(result.scores)
        accuracies, uids = scores if by_score else labels, data.non_tensor_batch.get("uid")
        if uids is not None:  # else there are no groups: validation
            grouping, _ = episodes.Grouping.by_name([str(uid) for uid in uids])
            means = grouping.broadcast(grouping.where(result.batch.ok).mean(accuracies))
            accuracies = np.where(result.batch.ok, accuracies, means)
        kept = result.batch.grouping.where(result.keep)
        keep = result.keep & (kept.broadcast(kept.sizes.astype(float)) != 1)  # none alone
        device = data.batch["responses"].device
        columns = {"acc": accuracies, "format_correctness": np.ones_like(labels)}
        for name, values in {**columns, "episode_reward": scores}.items():
            data.batch[name] = torch.as_tensor(values, dtype=torch.float32, device=device)
        data.batch["keep"] = torch.as_tensor(keep, dtype=torch.bool, device=device)
        accuracy = {"all": float((accuracies if by_score else completes).mean())}
        metrics = accuracy | self._metrics(rewards, result, keep, labels == completes)
        return scores.tolist(), metrics, {"all": 1.0}, accuracy

    def __call__(self, data: Any) -> tuple[dict[str, Any], dict[str, float]]:
        """Return `{"gt_scores", "all"}`, each [B, T] float32, and metrics, as upstream.

        The reward is at token `finish_step x action_token_len - 1` of the flattened responses, at
        most the last one. The row of a rollout without steps is 0; upstream writes at -1. Rollouts
        that `verify` has scored are not scored again, as upstream. The temperatures are adapted to
        all rollouts that it has scored since the last call.

        Raises:
            ValueError: As upstream, the batch has `rm_scores`.
            InvalidRequest: As in `verify`.
        """
        import torch  # noqa: PLC0415 - the trainer's package

        names = set(data.batch.keys())
        if "rm_scores" in names:
            raise ValueError("rm_scores: this manager computes the rewards itself")
        metrics = {} if "episode_reward" in names else self.verify(data)[1]
        flat = data.batch["responses"].reshape((len(data.batch["responses"]), -1))
        rewards = torch.zeros_like(flat, dtype=torch.float32)
        action_tokens = self.config.actor_rollout_ref.model.action_token_len
        ends = to_array(data.batch["finish_step"]).astype(int) * action_tokens
        scores = to_array(data.batch["episode_reward"])
        for row in np.flatnonzero(ends).tolist():
            rewards[row, min(int(ends[row]), flat.shape[1]) - 1] = float(scores[row])
        coefficient = self.config.verifier.reward_coef
        tensors = {"gt_scores": rewards, "all": coefficient * rewards}
        if coefficient != 0:
            metrics["verifier"] = float(to_array(rewards).sum(axis=1).mean())
        metrics["reward_all"] = float(to_array(tensors["all"]).sum(axis=1).mean())
        if self._signals:
            signals, weights = zip(*self._signals, strict=True)
            self.schedule = self.schedule.after(float(np.average(signals, weights=weights)))
            self._signals = []
        return tensors, metrics

    def _score(self, data: Any, completes: Any) -> tuple[Any, Any, episodes.BatchResult]:
        """Return the labels that count as success, [B], the `Rewards`, and the scored batch."""
        uids = data.non_tensor_batch.get("uid")
        kind, options = self._kind, self._options
        if uids is None:  # validation
            kind, options = self._default_kind, _EpisodeReward()
        fields = self._fields(data, kind, options)
        fields["success"] = completes.tolist()
        if uids is not None:
            fields["group"] = [str(uid) for uid in uids]
            if self.test_time_rl_mode:
                fields["temperature"] = self._temperatures(fields["group"])
        labels = completes
        if options.vote and options.clusters is not None:
            batch = episodes.validate_batch(_items("success", fields), EpisodeOptions())
            labels = cluster_batch(batch, options.clusters, options).is_majority.astype(float)
            fields["success"] = labels.tolist()
        batch = episodes.validate_batch(_items(kind, fields), options)
        for error in batch.reasons.values():
            if error is not None:  # the configuration, which no rollout is to blame for
                raise error
        rewards = episodes.compute_rewards(batch, options)
        result = episodes.aggregate(rewards, options)
        if uids is not None:
            self._note_signal(labels, result)
        return labels, rewards, result

    def _fields(self, data: Any, kind: str, options: EpisodeOptions) -> dict[str, list[Any]]:
        model = self.config.actor_rollout_ref.model
        steps = to_array(data.batch["finish_step"]).astype(float)
        columns = data.non_tensor_batch
        fields = {name: [*columns[name]] for name in ("path", "progress") if name in columns}
        if kind != "success" or options.filter.select == "efficient":
            limit = model.get("max_steps")
            of_all = [_MAX_STEPS if limit is None else limit] * len(steps)
            fields["max_steps"] = [*map(float, columns.get("max_steps", of_all))]
            self.over_limit += int((steps > fields["max_steps"]).sum())
        has_motion = kind == "objectives" and _MOTION & set(options.weights)
        if has_motion or options.clusters is not None:
            responses = to_array(data.batch["responses"])
            actions = normalized_actions(responses, int(model.action_token_len))
            taken = zip(actions, steps.astype(int).tolist(), strict=True)
            fields["actions"] = [each[:count] if count else None for each, count in taken]
        fields["steps"] = steps.tolist()
        fields["masked"] = (steps == 0).tolist()
        return fields

    def _temperatures(self, groups: Sequence[str]) -> list[float | None]:
        """Return the temperature of each rollout: the i-th of a prompt has the i-th temperature."""

        def spread(size: int) -> Iterator[float | None]:
            base, width = self.schedule.base, self.schedule.width
            return iter(episodes.spread_temperatures(size, base, width).tolist())

        sizes = Counter(groups).items()
        unused = {group: spread(size) if size > 1 else iter([None]) for group, size in sizes}
        return [next(unused[group]) for group in groups]

    def _note_signal(self, labels: Any, result: episodes.BatchResult) -> None:
        """Note the outcome of the valid rollouts of a batch, for the temperatures."""
        valid = result.batch.ok
        if not valid.any():
            return
        if self._target_success is not None:
            signal = float(labels[valid].mean()) - float(self._target_success)
        elif self._target_diversity is not None and result.clusters is not None:
            diversity = float(np.nanmean(result.clusters.diversity))
            signal = max(1 - diversity / float(self._target_diversity), -1.0)
        else:
            return
        self._signals.append((signal, int(valid.sum())))

    def _metrics(
        self, rewards: episodes.Rewards, result: episodes.BatchResult, keep: Any, is_right: Any
    ) -> dict[str, float]:
        """Return what is logged in addition to upstream's metrics; never NaN."""
        metrics: dict[str, float] = {}
        if self._kind != "success":
            metrics["reward/over_limit_total"] = self.over_limit
        metrics["reward/failed"] = float((~result.batch.ok).mean())
        metrics |= quartiles_of(result.scores[result.batch.ok].tolist())
        for each in episodes.by_temperature(rewards):
            figures = {"success": each.success_rate, "steps": each.steps}
            figures |= {"mean": each.reward_mean, "variance": each.reward_variance}
            prefix = f"reward/temperature_{each.temperature}"
            metrics |= {f"{prefix}/{name}": value for name, value in figures.items()}
        if result.clusters is not None and result.batch.ok.any():
            metrics["reward/clusters"] = float(result.clusters.counts.mean())
            metrics["reward/majority_ratio"] = float(np.nanmean(result.clusters.majority_ratio))
            metrics["reward/diversity"] = float(np.nanmean(result.clusters.diversity))
        if result.batch.has("group").any():  # in training
            metrics["reward/kept"] = float(keep.mean())
            if self._options.vote:
                metrics["reward/label_accuracy"] = float(is_right.mean())
        if self._target_success is not None or self._target_diversity is not None:
            metrics["reward/base_temperature"] = self.schedule.base
            metrics["reward/temperature_range"] = self.schedule.width
        return {name: value for name, value in metrics.items() if np.isfinite(value)}


def normalized_actions(responses: Any, width: int) -> Any:
    """Return the actions of OpenVLA's tokens, [B, ...], `width` each: [B, T, width] in [-1, 1]."""
    tokens = np.asarray(responses).reshape(len(responses), -1, width)
    bins = np.clip(_VOCABULARY - tokens - 1, 0, _BINS - 1)
    return (2 * bins + 1) / _BINS - 1


def keep_selected(data: Any, multiple_of: int = 1) -> Any:
    """Return the rows of a DataProto that `verify` has scored and keeps: those to train on.

    Call it before reference log-probabilities and advantages are computed, so that a rollout that
    is not kept does not count in its group.

    The trainer needs as many rows for each GPU. Other rows fill up to the next multiple: each is
    then alone in its group with a reward of 0, so its advantage is 0. If none is kept, all rows of
    the result are such rows.

    Args:
        multiple_of: The number of GPUs, or of rows per optimizer step.
    """
    import torch  # noqa: PLC0415 - the trainer's package

    keep = to_array(data.batch["keep"]).astype(bool)
    if keep.all():
        return data
    missing = -int(keep.sum()) % multiple_of if keep.any() else multiple_of
    rows = keep.copy()
    rows[np.flatnonzero(~keep)[:missing]] = True
    selected = data.slice(torch.as_tensor(rows))
    rewards, steps = selected.batch["episode_reward"], selected.batch["finish_step"]
    uids = np.array([*map(str, selected.non_tensor_batch["uid"])], dtype=object)
    for row in np.flatnonzero(~keep[rows]).tolist():
        rewards[row] = 0
        steps[row] = max(int(steps[row]), 1)  # else the trainer would divide its loss by 0
        uids[row] = f"{uids[row]}, not kept {row}"
    selected.non_tensor_batch["uid"] = uids
    return selected


def forward_test_time_rl(
    config: Any, meta_info: MutableMapping[str, Any], reward_fn: RobRewardManager | None = None
) -> None:
    """Copy the settings of test-time RL to `meta_info`, for the rollout, if it is enabled.

    Args:
        config: See `RobRewardManager`; the defaults are those of the original TTRL integration.
        reward_fn: Its adapted temperatures are used instead.
    """
    if config.get("test_time_rl", False):
        schedule = _schedule(config) if reward_fn is None else reward_fn.schedule
        temperatures = {"base_temperature": schedule.base, "temperature_range": schedule.width}
        meta_info.update(enable_test_time_rl=True, **temperatures)


def sample_temperatures(meta_info: MutableMapping[str, Any], batch_size: int) -> list[float] | None:
    """Return the temperature of each row, [batch_size]; None if test-time RL is disabled.

    Args:
        meta_info: As `forward_test_time_rl` filled it, with `n_samples`, 1 or more: how many
            adjacent rows a prompt has.

    Raises:
        ValueError: `batch_size` is not a multiple of `n_samples`.
    """
    n_samples = int(meta_info.get("n_samples", 1))
    if not meta_info.get("enable_test_time_rl") or n_samples < 2:
        return None
    if batch_size % n_samples:
        raise ValueError(f"{batch_size} rows are not a multiple of n_samples ({n_samples})")
    base, width = meta_info["base_temperature"], meta_info["temperature_range"]
    temperatures: list[float] = episodes.spread_temperatures(n_samples, base, width).tolist()
    return temperatures * (batch_size // n_samples)


def at_temperatures(logits: Any, temperatures: float | Sequence[float]) -> Any:
    """Return logits, [B, ...], each row divided by its temperature: above 0, [B] or one for all."""
    import torch  # noqa: PLC0415 - the trainer's package

    divisors = torch.as_tensor(temperatures, dtype=logits.dtype, device=logits.device)
    return logits / divisors.reshape((-1, *[1] * (logits.ndim - 1)))


def _schedule(config: Any) -> episodes.TemperatureSchedule:
    base, width = config.get("base_temperature", 0.6), config.get("temperature_range", 0.3)
    return episodes.TemperatureSchedule(float(base), float(width))


def _items(kind: str, fields: Mapping[str, Sequence[Any]]) -> list[EpisodeRequest]:
    """Return one episode per row of columns, whose lists may be arrays."""
    return [
        EpisodeRequest.model_construct(
            **{"uid": str(row), "kind": kind, **dict(zip(fields, values, strict=True))}
        )
        for row, values in enumerate(zip(*fields.values(), strict=True))
    ]
