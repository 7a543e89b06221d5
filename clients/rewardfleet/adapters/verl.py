"""verl and what is built on it: rewards in the shapes that their trainers take."""

import logging
import random
from typing import Any

import numpy as np

from rewardfleet.episodes import by_length

log = logging.getLogger(__name__)

# Episodes: verl-agent's reward manager

#: Of the episodes that might be printed, so many are, to see more than the first of each batch.
_PRINTED_SHARE = 0.1


class EpisodeRewardManager:
    """Puts each episode's reward at the last valid token of its response (verl-agent).

    ```yaml
    reward_model:
      reward_manager: episode    # the default; see `reward_manager_of`
    ```

    Args:
        tokenizer: Asked to decode what is printed, special tokens kept; nothing else.
        num_examine: How many episodes of each data source are printed; a tenth of them, sampled.
        normalize_by_length: Divide each reward by the episode's length.
    """

    def __init__(self, tokenizer: Any, num_examine: int, normalize_by_length: bool = False) -> None:
        self.tokenizer = tokenizer
        self.num_examine = num_examine
        self.normalize_by_length = normalize_by_length

    def __call__(self, data: Any, return_dict: bool = False) -> Any:
        """Return the rewards of a `DataProto`: [B, T] float32 on the device of its responses.

        Of `data.batch`: `responses` [B, T], `prompts` [B, P], `attention_mask` [B, P + T]; of
        `data.non_tensor_batch`: `episode_rewards` [B], and `episode_lengths` [B] to normalise by.
        Where `data.batch` has `rm_scores`, these are returned as they are.

        A row without a valid response token has no place for a reward and stays all zeros; it is
        told in the log, and with `return_dict` by False in `reward_extra_info["reward_placed"]`.

        Raises:
            ValueError: A length to divide by is not above 0, or a reward is not finite.
        """
        if "rm_scores" in data.batch.keys():  # noqa: SIM118 - a TensorDict's `in` is another
            scores = data.batch["rm_scores"]
            return {"reward_tensor": scores} if return_dict else scores
        import torch  # noqa: PLC0415 - the trainer's; this package does without

        responses = data.batch["responses"]
        rewards = torch.zeros_like(responses, dtype=torch.float32)
        last = _last_valid(data)
        episode = self._episode_rewards(data)
        placed = np.flatnonzero(last >= 0)
        if len(placed) < len(last):
            missing = np.flatnonzero(last < 0).tolist()
            log.warning("no reward for rows %s: their responses have no valid token", missing)
        for row in placed.tolist():
            rewards[row, int(last[row])] = float(episode[row])
        if self.num_examine > 0:
            self._print_some(data, episode)
        if return_dict:
            told = {"reward_placed": (last >= 0).tolist()}
            return {"reward_tensor": rewards, "reward_extra_info": told}
        return rewards

    def _episode_rewards(self, data: Any) -> Any:
        fields = data.non_tensor_batch
        rewards = np.asarray(fields["episode_rewards"], float)
        if not np.isfinite(rewards).all():
            row = np.flatnonzero(~np.isfinite(rewards))[0]
            raise ValueError(f"episode_rewards: row {row} is {rewards[row]}")
        return (
            by_length(rewards, fields["episode_lengths"]) if self.normalize_by_length else rewards
        )

    def _print_some(self, data: Any, episode: Any) -> None:
        printed: dict[str, int] = {}
        fields, batch = data.non_tensor_batch, data.batch
        sources = fields.get("data_source", ["unknown"] * len(episode))
        width = batch["prompts"].shape[-1]
        for row, source in enumerate(sources):
            if printed.get(source, 0) >= self.num_examine or random.random() >= _PRINTED_SHARE:  # noqa: S311 - no secret
                continue
            printed[source] = printed.get(source, 0) + 1
            mask = batch["attention_mask"][row]
            texts = {
                "prompt": batch["prompts"][row][_tokens(mask[:width])],
                "response": batch["responses"][row][_tokens(mask[width:])],
            }
            for name, tokens in texts.items():
                text = self.tokenizer.decode(tokens, skip_special_tokens=False)
                print(f"[{source}][{name}]", text)
            print(f"[{source}][score]", float(episode[row]))


def reward_manager_of(config: Any) -> type[EpisodeRewardManager]:
    """Return the manager that `reward_model.reward_manager` names; `episode` is the default.

    Raises:
        NotImplementedError: It names another one, which is the trainer's own.
    """
    name = config.reward_model.get("reward_manager", "episode")
    if name != "episode":
        raise NotImplementedError(f"reward_manager {name!r}: this package has `episode`")
    return EpisodeRewardManager


def _last_valid(data: Any) -> Any:
    """[B], where each response's last valid token is; -1 where it has none."""
    width = data.batch["prompts"].shape[-1]
    mask = _array(data.batch["attention_mask"])[:, width:] > 0
    last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    return np.where(mask.any(axis=1), last, -1)


def _tokens(mask: Any) -> Any:
    return mask > 0


def _array(tensor: Any) -> Any:
    """A tensor of any device as an array; what is an array already stays one."""
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
