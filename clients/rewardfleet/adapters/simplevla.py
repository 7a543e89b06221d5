"""SimpleVLA-RL: its reward manager, with test-time RL, and a temperature per sample.

```python
from rewardfleet.adapters import simplevla
simplevla.forward_test_time_rl(config, gen_batch.meta_info)              # in the trainer
reward_fn = simplevla.RobRewardManager(num_examine=0, config=config)     # in main_ppo.py
temperatures = simplevla.sample_temperatures(meta_info, len(logits))     # in the rollout
if temperatures is not None:
    logits = simplevla.at_temperatures(logits, temperatures)
```
"""

from collections.abc import MutableMapping, Sequence
from typing import Any

import numpy as np

from rewardfleet.adapters._batch import to_array
from rewardfleet.episodes import efficiency, spread_temperatures, success


class RobRewardManager:
    """A reward manager that puts each rollout's reward at its last action token.

    The reward is success, 0 or 1; with test-time RL it is the efficiency.

    Args:
        num_examine: Accepted as upstream; nothing is printed.
        config: `actor_rollout_ref.model.action_token_len` and `verifier.reward_coef` as upstream;
            `test_time_rl` (False: rewards are 0 or 1), and `actor_rollout_ref.model.max_steps`,
            which `non_tensor_batch["max_steps"]` overrides per row, as the tasks' limits differ.
    """

    def __init__(self, num_examine: int, config: Any) -> None:
        self.num_examine = num_examine
        self.config = config
        self.test_time_rl_mode = bool(config.get("test_time_rl", False))

    def verify(self, data: Any) -> tuple[list[float], dict[str, float], dict[str, float],
                                         dict[str, float]]:  # fmt: skip
        """Return scores, and the metrics of reward, format and both, as upstream.

        `batch["acc"]` is success, 0 or 1, in both modes: upstream filters on this accuracy.

        Raises:
            ValueError: A rollout took more steps than its task allows, or `max_steps` is missing.
        """
        import torch  # noqa: PLC0415 - the trainer's package

        completes = success(to_array(data.batch["complete"]))
        device = data.batch["responses"].device
        data.batch["acc"] = torch.as_tensor(completes, dtype=torch.float32, device=device)
        ones = np.ones_like(completes)
        data.batch["format_correctness"] = torch.as_tensor(ones, dtype=torch.float32, device=device)
        scores = completes
        if self.test_time_rl_mode:
            steps = to_array(data.batch["finish_step"])
            scores = efficiency(completes, steps, self._max_steps(data))
        accuracy = {"all": float(completes.mean())}
        return scores.tolist(), accuracy, {"all": 1.0}, dict(accuracy)

    def __call__(self, data: Any) -> tuple[dict[str, Any], dict[str, float]]:
        """Return `{"gt_scores", "all"}`, each [B, T] float32, and metrics, as upstream.

        The reward is at token `finish_step x action_token_len - 1` of the flattened responses.
        A rollout without steps has no such token: upstream writes at -1, here its row is 0.

        Raises:
            ValueError: A rollout took more steps than allowed, `max_steps` is missing, or, as
                upstream, the batch has `rm_scores`.
        """
        import torch  # noqa: PLC0415 - the trainer's package

        if "rm_scores" in data.batch.keys():  # noqa: SIM118 - TensorDict has another `in`
            raise ValueError("rm_scores: this manager computes the rewards itself")
        scores, accuracy, _, _ = self.verify(data)
        responses = data.batch["responses"]
        flat = responses.reshape((responses.shape[0], -1))
        rewards = torch.zeros_like(flat, dtype=torch.float32)
        action_tokens = self.config.actor_rollout_ref.model.action_token_len
        ends = to_array(data.batch["finish_step"]) * action_tokens - 1
        for row, (end, score) in enumerate(zip(ends.tolist(), scores, strict=True)):
            if end >= flat.shape[1]:
                raise ValueError(f"row {row}: token {end} is beyond its {flat.shape[1]} tokens")
            if end >= 0:
                rewards[row, int(end)] = score
        coefficient = self.config.verifier.reward_coef
        tensors = {"gt_scores": rewards, "all": coefficient * rewards}
        metrics = dict(accuracy)
        if coefficient != 0:
            metrics["verifier"] = float(to_array(rewards).sum(axis=1).mean())
        metrics["reward_all"] = float(to_array(tensors["all"]).sum(axis=1).mean())
        return tensors, metrics

    def _max_steps(self, data: Any) -> Any:
        per_row = getattr(data, "non_tensor_batch", {}).get("max_steps")
        if per_row is not None:
            return np.asarray(per_row, float)
        limit = self.config.actor_rollout_ref.model.get("max_steps")
        if limit is None:
            raise ValueError("max_steps: give it in the config's model, or per rollout")
        return float(limit)


def forward_test_time_rl(config: Any, meta_info: MutableMapping[str, Any]) -> None:
    """Copy the settings of test-time RL to `meta_info`, for the rollout, if it is enabled.

    The defaults are those of the original TTRL integration: `base_temperature` 0.6,
    `temperature_range` 0.3.

    Args:
        config: Has `test_time_rl` (False), and the two above.
        meta_info: Gets `enable_test_time_rl`, `base_temperature` and `temperature_range`.
    """
    if config.get("test_time_rl", False):
        meta_info["enable_test_time_rl"] = True
        meta_info["base_temperature"] = config.get("base_temperature", 0.6)
        meta_info["temperature_range"] = config.get("temperature_range", 0.3)


def sample_temperatures(meta_info: MutableMapping[str, Any], batch_size: int) -> list[float] | None:
    """Return the temperature of each row, [batch_size]; None if test-time RL is disabled.

    The n_samples rows of a prompt are adjacent, as SimpleVLA-RL repeats them. (The original TTRL
    integration uses `temperatures[0]` for all rows, so that no sample's temperature differs.)

    Args:
        meta_info: As `forward_test_time_rl` filled it, with `n_samples`, 1 or more.
        batch_size: Number of rows.

    Raises:
        ValueError: `batch_size` is not a multiple of `n_samples`.
        KeyError: `forward_test_time_rl` was not called with this `meta_info`.
    """
    n_samples = int(meta_info.get("n_samples", 1))
    if not meta_info.get("enable_test_time_rl", False) or n_samples < 2:
        return None
    if batch_size % n_samples:
        raise ValueError(f"{batch_size} rows are not a multiple of n_samples ({n_samples})")
    base, width = meta_info["base_temperature"], meta_info["temperature_range"]
    temperatures = spread_temperatures(n_samples, base, width)
    return [float(temperature) for temperature in temperatures] * (batch_size // n_samples)


def at_temperatures(logits: Any, temperatures: Sequence[float]) -> Any:
    """Return the logits, [B, ...], of each row divided by its temperature, [B], above 0."""
    import torch  # noqa: PLC0415 - the trainer's package

    divisors = torch.as_tensor(temperatures, dtype=logits.dtype, device=logits.device)
    return logits / divisors.reshape((-1, *[1] * (logits.ndim - 1)))
