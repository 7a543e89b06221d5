"""SimpleVLA-RL: its reward manager, with test-time RL, and a temperature for each sample.

```python
from rewardfleet.adapters.simplevla import RobRewardManager, forward_test_time_rl
forward_test_time_rl(config, gen_batch.meta_info)              # in the trainer
reward_fn = RobRewardManager(num_examine=0, config=config)     # in main_ppo.py
logits = at_temperatures(logits, sample_temperatures(meta_info, len(logits)))  # in a rollout's step
```
"""

from collections.abc import MutableMapping, Sequence
from typing import Any

import numpy as np

from rewardfleet.episodes import efficiency, spread, success


class RobRewardManager:
    """A reward for each rollout at its last action token: 0/1, or efficiency with `test_time_rl`.

    Args:
        num_examine: As upstream; nothing is printed.
        config: `actor_rollout_ref.model.action_token_len` and `verifier.reward_coef` as upstream;
            `test_time_rl` (False: plain 0/1), and `actor_rollout_ref.model.max_steps`, which
            `non_tensor_batch["max_steps"]` overrides row by row, as tasks' limits differ.
    """

    def __init__(self, num_examine: int, config: Any) -> None:
        self.num_examine = num_examine
        self.config = config
        self.test_time_rl_mode = bool(config.get("test_time_rl", False))

    def verify(self, data: Any) -> tuple[list[float], dict[str, float], dict[str, float],
                                         dict[str, float]]:  # fmt: skip
        """Return scores, and the metrics of reward, format and both, as upstream.

        `batch["acc"]` is success, 0 or 1, in either mode: the accuracy that is filtered on.

        Raises:
            ValueError: A rollout took more steps than its task allows, or `max_steps` is missing.
        """
        import torch  # noqa: PLC0415 - the trainer's; this package does without

        completes = success(_array(data.batch["complete"]))
        device = data.batch["responses"].device
        data.batch["acc"] = torch.as_tensor(completes, dtype=torch.float32, device=device)
        ones = np.ones_like(completes)
        data.batch["format_correctness"] = torch.as_tensor(ones, dtype=torch.float32, device=device)
        scores = completes
        if self.test_time_rl_mode:
            steps = _array(data.batch["finish_step"])
            scores = efficiency(completes, steps, self._max_steps(data))
        accuracy = {"all": float(completes.mean())}
        return scores.tolist(), accuracy, {"all": 1.0}, dict(accuracy)

    def __call__(self, data: Any) -> tuple[dict[str, Any], dict[str, float]]:
        """Return `{"gt_scores", "all"}`, each [B, T] float32, and metrics, as upstream.

        The reward is at token `finish_step x action_token_len - 1` of the flattened responses.
        A rollout that took no step has no such token: upstream writes at -1, here its row is 0.

        Raises:
            ValueError: As `verify`, or the batch has `rm_scores`, as upstream.
        """
        import torch  # noqa: PLC0415 - the trainer's; this package does without

        if "rm_scores" in data.batch.keys():  # noqa: SIM118 - a TensorDict's `in` is another
            raise ValueError(
                "rm_scores: this manager verifies rollouts and takes no model's scores"
            )
        scores, accuracy, _, _ = self.verify(data)
        responses = data.batch["responses"]
        flat = responses.reshape((responses.shape[0], -1))
        rewards = torch.zeros_like(flat, dtype=torch.float32)
        action_tokens = self.config.actor_rollout_ref.model.action_token_len
        ends = _array(data.batch["finish_step"]) * action_tokens - 1
        for row, (end, score) in enumerate(zip(ends.tolist(), scores, strict=True)):
            if end >= flat.shape[1]:
                raise ValueError(f"row {row}: token {end} is beyond its {flat.shape[1]}")
            if end >= 0:
                rewards[row, int(end)] = score
        coefficient = self.config.verifier.reward_coef
        both = {"gt_scores": rewards, "all": coefficient * rewards}
        metrics = dict(accuracy)
        if coefficient != 0:
            metrics["verifier"] = float(_array(rewards).sum(axis=1).mean())
        metrics["reward_all"] = float(_array(both["all"]).sum(axis=1).mean())
        return both, metrics

    def _max_steps(self, data: Any) -> Any:
        own = getattr(data, "non_tensor_batch", {}).get("max_steps")
        if own is not None:
            return np.asarray(own, float)
        limit = self.config.actor_rollout_ref.model.get("max_steps")
        if limit is None:
            raise ValueError("max_steps: give it in the config's model, or for each rollout")
        return float(limit)


def forward_test_time_rl(config: Any, meta_info: MutableMapping[str, Any]) -> None:
    """Hand the settings of test-time RL to the rollout, through `meta_info`; none where it is off.

    Defaults are the seed's: `base_temperature` 0.6, `temperature_range` 0.3.
    """
    if config.get("test_time_rl", False):
        meta_info["enable_test_time_rl"] = True
        meta_info["base_temperature"] = config.get("base_temperature", 0.6)
        meta_info["temperature_range"] = config.get("temperature_range", 0.3)


def sample_temperatures(meta_info: MutableMapping[str, Any], batch_size: int) -> list[float] | None:
    """Return each row's own temperature, [batch_size]; None where test-time RL is off.

    Rows are n_samples of one prompt after another, as SimpleVLA-RL repeats them. (The seed's step
    takes `temperatures[0]` for all rows, so that every sample is taken at the base.)

    Raises:
        ValueError: The batch is no whole number of prompts.
    """
    n_samples = int(meta_info.get("n_samples", 1))
    if not meta_info.get("enable_test_time_rl", False) or n_samples < 2:
        return None
    if batch_size % n_samples:
        raise ValueError(f"{batch_size} rows are no whole number of prompts of {n_samples}")
    one = spread(n_samples, meta_info["base_temperature"], meta_info["temperature_range"])
    return [float(each) for each in one] * (batch_size // n_samples)


def at_temperatures(logits: Any, temperatures: Sequence[float]) -> Any:
    """Divide each row's logits, [B, ...], by the row's own temperature, [B], all above 0."""
    import torch  # noqa: PLC0415 - the trainer's; this package does without

    own = torch.as_tensor(temperatures, dtype=logits.dtype, device=logits.device)
    return logits / own.reshape((-1, *[1] * (logits.ndim - 1)))


def _array(tensor: Any) -> Any:
    """A tensor of any device as an array; what is an array already stays one."""
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
