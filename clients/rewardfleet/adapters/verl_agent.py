"""verl-agent: its reward manager for episodes.

```yaml
reward_model:
  reward_manager: episode    # the default; see `reward_manager_of`
```
"""

import logging
import random
from typing import Any

import numpy as np

from rewardfleet.adapters._batch import to_array
from rewardfleet.episodes import by_length

log = logging.getLogger(__name__)

#: The fraction of episodes that are printed, so that not only the first of each batch are seen.
_PRINT_FRACTION = 0.1


class EpisodeRewardManager:
    """A reward manager that puts each episode's reward at the last valid token of its response.

    Args:
        tokenizer: Decodes the episodes that are printed, with their special tokens.
        num_examine: The most episodes printed per data source and batch; a tenth is sampled.
        normalize_by_length: Divide each reward by the episode's length.
    """

    def __init__(self, tokenizer: Any, num_examine: int, normalize_by_length: bool = False) -> None:
        self.tokenizer = tokenizer
        self.num_examine = num_examine
        self.normalize_by_length = normalize_by_length

    def __call__(self, data: Any, return_dict: bool = False) -> Any:
        """Return the rewards of a `DataProto`: [B, T] float32 on the device of its responses.

        It reads `responses` [B, T], `prompts` [B, P] and `attention_mask` [B, P + T] of
        `data.batch`, and `episode_rewards` [B] of `data.non_tensor_batch`; to normalize, also
        `episode_lengths` [B]. If `data.batch` has `rm_scores`, these are returned unchanged.

        A row without a valid response token has no position for a reward and stays all zeros. The
        log reports it; with `return_dict`, `reward_extra_info["reward_placed"]` is False for it.

        Raises:
            ValueError: A length to divide by is not above 0, or a reward is not finite.
        """
        if "rm_scores" in data.batch.keys():  # noqa: SIM118 - TensorDict has another `in`
            scores = data.batch["rm_scores"]
            return {"reward_tensor": scores} if return_dict else scores
        import torch  # noqa: PLC0415 - the trainer's package

        responses = data.batch["responses"]
        rewards = torch.zeros_like(responses, dtype=torch.float32)
        last = _last_valid(data)
        episode_rewards = self._episode_rewards(data, last)
        if (last < 0).any():
            missing = np.flatnonzero(last < 0).tolist()
            log.warning("no reward for rows %s: their responses have no valid token", missing)
        for row in np.flatnonzero(last >= 0).tolist():
            rewards[row, int(last[row])] = float(episode_rewards[row])
        if self.num_examine > 0:
            self._print_some(data, episode_rewards)
        if return_dict:
            extra = {"reward_placed": (last >= 0).tolist()}
            return {"reward_tensor": rewards, "reward_extra_info": extra}
        return rewards

    def _episode_rewards(self, data: Any, last: Any) -> Any:
        fields = data.non_tensor_batch
        rewards = np.asarray(fields["episode_rewards"], float)
        if rewards.shape != last.shape:
            raise ValueError(f"episode_rewards: {rewards.shape}, for {last.shape} responses")
        if not np.isfinite(rewards).all():
            row = np.flatnonzero(~np.isfinite(rewards))[0]
            raise ValueError(f"episode_rewards: row {row} is {rewards[row]}")
        if not self.normalize_by_length:
            return rewards
        lengths = np.asarray(fields["episode_lengths"], float)
        # The length of a row that gets no reward is not used.
        return by_length(rewards, np.where(last >= 0, lengths, 1))

    def _print_some(self, data: Any, episode_rewards: Any) -> None:
        printed: dict[str, int] = {}
        fields, batch = data.non_tensor_batch, data.batch
        sources = fields.get("data_source", ["unknown"] * len(episode_rewards))
        width = batch["prompts"].shape[-1]
        for row, source in enumerate(sources):
            is_sampled = random.random() < _PRINT_FRACTION  # noqa: S311 - not security-relevant
            if printed.get(source, 0) >= self.num_examine or not is_sampled:
                continue
            printed[source] = printed.get(source, 0) + 1
            mask = batch["attention_mask"][row] > 0
            texts = {
                "prompt": batch["prompts"][row][mask[:width]],
                "response": batch["responses"][row][mask[width:]],
            }
            for name, tokens in texts.items():
                text = self.tokenizer.decode(tokens, skip_special_tokens=False)
                print(f"[{source}][{name}]", text)
            print(f"[{source}][score]", float(episode_rewards[row]))


def reward_manager_of(config: Any) -> type[EpisodeRewardManager]:
    """Return the class that `reward_model.reward_manager` names; `episode` is the default.

    Raises:
        NotImplementedError: It names another reward manager, which the trainer has itself.
    """
    name = config.reward_model.get("reward_manager", "episode")
    if name != "episode":
        raise NotImplementedError(f"reward_manager {name!r}: this package has `episode`")
    return EpisodeRewardManager


def _last_valid(data: Any) -> Any:
    """Return the position of each response's last valid token, [B]; -1 where there is none."""
    width = data.batch["prompts"].shape[-1]
    mask = to_array(data.batch["attention_mask"])[:, width:] > 0
    if not mask.shape[1]:
        return np.full(len(mask), -1)
    last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    return np.where(mask.any(axis=1), last, -1)
