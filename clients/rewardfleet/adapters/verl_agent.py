"""verl-agent: its reward manager for episodes, and its filter of groups.

Run in vanzll/verl-agent at d0b9724 and langfengQ/AgentOCR at 25736f7, and read in langfengQ/DrMAS
at 19c632b.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from rewardfleet import episodes
from rewardfleet.arrays import to_array
from rewardfleet.episodes.batch import visual_score
from rewardfleet.wire.episode import FilterOptions, Normalization
from rewardfleet.wire.truth import given, plain

from ._rows import check_choice, quartiles_of

log = logging.getLogger(__name__)

#: The reward of an episode: its return; times a score of its video; or with rewards of its steps.
RewardForm = Literal["return", "visual", "hybrid"]

#: Normalizations to a mean of 0 in each group, in which a missing reward has no advantage.
_WITHIN_GROUP: dict[str, Callable[..., Any]] = {
    "group_mean": functools.partial(episodes.normalize, by_std=False),
    "group_std": functools.partial(episodes.normalize, by_std=True),
    "leave_one_out": episodes.leave_one_out,
}


class EpisodeRewardManager:
    """A reward manager that puts each episode's reward at the last valid token of its response.

    Args:
        tokenizer, num_examine: Accepted as upstream; nothing is printed.
        normalize_by_length: As `normalization_type="length"`.
        normalization_type: How episode rewards are normalized. Each episode counts once, however
            many rows it has; `running` is over all batches of this manager.

    Raises:
        ValueError: An argument is none of its values, or the two normalizations differ.
    """

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        normalize_by_length: bool = False,
        *,
        normalization_type: Normalization = "none",
        kind: RewardForm = "return",
    ) -> None:
        self.tokenizer, self.num_examine = tokenizer, num_examine
        check_choice("normalization_type", normalization_type, Normalization)
        check_choice("kind", kind, RewardForm)
        if normalize_by_length and normalization_type not in {"none", "length"}:
            raise ValueError(f"normalize_by_length: normalization_type is {normalization_type!r}")
        self.normalization_type = "length" if normalize_by_length else normalization_type
        self.kind = kind
        #: What a trainer logs of the last batch: `reward/failed`, and the quartiles of the others.
        self.metrics: dict[str, float] = {}
        self._running = episodes.RunningMeanStd()

    def __call__(self, data: Any, return_dict: bool = False) -> Any:
        """Return the rewards of a `DataProto`: [B, T] float32 on the device of its responses.

        It reads `responses` [B, T], `prompts` [B, P] and `attention_mask` [B, P + T] of
        `data.batch`; if that has `rm_scores`, these are returned unchanged. Of
        `data.non_tensor_batch` it reads, each [B]:

        - `episode_rewards`; NaN is a missing reward. Normalized within its group, it does not count
          there, and becomes 0: no advantage;
        - to normalize, `episode_lengths`, or `uid` (of the group) and `traj_uid` (of the episode);
        - for `visual`, `visual_success`: a number in [0, 1], or a response of the video service;
        - for `hybrid`, `step_rewards` and `step_token_ends`: lists of rewards, and of the tokens of
          the response at which they are placed. Without these lists, each row is one step, as in
          verl-agent, and its reward in `rewards` is placed at its last valid token.

        With `return_dict`, `reward_extra_info` has, for each row, `reward_valid`, and
        `reward_placed`: a row without a valid response token has no position, and stays all zeros.

        Raises:
            ValueError: A length to divide by is not above 0; a reward is not finite, or missing
                without normalization within groups; or the tokens of steps are invalid.
        """
        if "rm_scores" in data.batch.keys():  # noqa: SIM118 - TensorDict has another `in`
            scores = data.batch["rm_scores"]
            return {"reward_tensor": scores} if return_dict else scores
        import torch  # noqa: PLC0415 - the trainer's package

        rewards = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        last = _last_valid(data)
        episode_rewards, valid = self._episode_rewards(data, last)
        if (last < 0).any():
            missing = np.flatnonzero(last < 0).tolist()
            log.warning("no reward for rows %s: their responses have no valid token", missing)
        for row in np.flatnonzero(last >= 0).tolist():
            rewards[row, int(last[row])] = float(episode_rewards[row])
            if self.kind == "hybrid" and valid[row]:
                for token, reward in _step_rewards(data.non_tensor_batch, row, int(last[row])):
                    rewards[row, token] += reward
        extra = {"reward_placed": (last >= 0).tolist(), "reward_valid": valid.tolist()}
        return {"reward_tensor": rewards, "reward_extra_info": extra} if return_dict else rewards

    def _episode_rewards(self, data: Any, last: Any) -> tuple[Any, Any]:
        """Return the normalized rewards, [B], and which of them are valid, [B]."""
        fields = data.non_tensor_batch
        rewards = np.asarray(fields["episode_rewards"], float)
        if rewards.shape != last.shape:
            raise ValueError(f"episode_rewards: {rewards.shape}, for {last.shape} responses")
        if self.kind == "visual":
            items = (SimpleNamespace(visual_success=each) for each in fields["visual_success"])
            scores = np.array([visual_score(each) for each in items], float)
            products = episodes.visual(rewards, np.nan_to_num(scores))
            rewards = np.where(np.isnan(scores), np.nan, products)  # without a score, no reward
        valid = ~np.isnan(rewards)
        refused = np.isinf(rewards) | ~(valid | (self.normalization_type in _WITHIN_GROUP))
        if refused.any():
            row = int(refused.argmax())
            raise ValueError(
                f"episode_rewards: row {row} is {rewards[row]}; drop it with filter_group_data, or "
                f"set normalization_type to {', '.join(_WITHIN_GROUP)}"
            )
        if not valid.all():
            counts = (~valid).sum(), len(valid)
            log.warning("%d of %d rows have no reward, and no advantage", *counts)
        quartiles = quartiles_of(rewards[valid].tolist())
        self.metrics = {"reward/failed": float((~valid).mean()), **quartiles}
        return self._normalized(rewards, fields, last), valid

    def _normalized(self, rewards: Any, fields: Any, last: Any) -> Any:
        if self.normalization_type == "none":
            return rewards
        if self.normalization_type == "length":
            lengths = np.asarray(fields["episode_lengths"], float)
            # The length of a row that gets no reward is not used.
            return episodes.by_length(rewards, np.where(last >= 0, lengths, 1))
        names = np.asarray(fields.get("traj_uid", np.arange(len(rewards))), str)
        _, first, episode = np.unique(names, return_index=True, return_inverse=True)
        values = rewards[first]
        if self.normalization_type == "running":
            self._running = self._running.updated(values)
            return self._running.normalize(rewards)
        groups = [str(uid) for uid in np.asarray(fields["uid"])[first]]
        grouping, _ = episodes.Grouping.by_name(groups)
        advantages = _WITHIN_GROUP[self.normalization_type](values, grouping)
        return np.nan_to_num(advantages)[episode]


def reward_manager_of(config: Any) -> Callable[..., EpisodeRewardManager]:
    """Return the reward manager that `config.reward_model.reward_manager` (episode) names.

    Its `normalization_type` (none) and `kind` (return) are in `config.reward_model` as well.

    Raises:
        NotImplementedError: It names another reward manager, which the trainer has itself.
    """
    name = config.reward_model.get("reward_manager", "episode")
    if name != "episode":
        raise NotImplementedError(f"reward_manager {name!r}: this package has `episode`")
    settings: Any = given(plain(config.reward_model), ("normalization_type", "kind"))
    return functools.partial(EpisodeRewardManager, **settings)


def filter_group_data(  # noqa: PLR0917 - the trainer's signature
    batch_list: Sequence[Any],
    episode_rewards: Any,
    episode_lengths: Any,
    success: dict[str, Any],
    traj_uid: Any,
    tool_callings: Any,
    config: Any,
    last_try: bool = False,
) -> tuple[list[Any], Any, Any, dict[str, Any], Any, Any]:
    """Drop groups whose episodes all have the same reward: DAPO's dynamic sampling.

    It replaces verl-agent's function of this name, with these differences:

    - Rewards are equal up to `config.algorithm.filter_groups.tolerance` (0.001): with a term for
      efficiency in the reward, no two successes are exactly equal.
    - An episode with the reward NaN, a missing one, is dropped and does not count in its group; nor
      is a group left with one episode. That holds for the last try as well.
    - Groups are those with the same `uid`, in any order.

    Args:
        batch_list: [N], the steps of each episode; each step has the `uid` of its group.
        episode_rewards, episode_lengths, traj_uid, tool_callings: [N].
        success: By name, [N]. Rates per task, which have another length, are kept on the last try
            only, as upstream does.
        last_try: Keep groups with equal rewards: there is no further round of sampling.

    Returns:
        The first six arguments, with the episodes that are kept.
    """
    rewards = np.asarray(episode_rewards, float)
    grouping, _ = episodes.Grouping.by_name([str(steps[0]["uid"]) for steps in batch_list])
    scored = grouping.where(~np.isnan(rewards))
    dropped = (scored.sizes == 1) & (grouping.sizes > 1)
    if not last_try:
        tolerance = config.algorithm.filter_groups.get("tolerance", FilterOptions().tolerance)
        dropped |= episodes.all_equal(rewards, grouping, tolerance)
    keep = np.flatnonzero(scored.broadcast(dropped.astype(float)) == 0)
    kept = {name: each[keep] for name, each in success.items() if len(each) == len(rewards)}
    rates = {name: each for name, each in success.items() if last_try and name not in kept}
    steps = [batch_list[index] for index in keep.tolist()]
    columns = (episode_rewards, episode_lengths, traj_uid, tool_callings)
    returns, lengths, names, calls = (each[keep] for each in columns)
    return steps, returns, lengths, kept | rates, names, calls


def _step_rewards(fields: Any, row: int, last: int) -> list[tuple[int, float]]:
    """Return the tokens and rewards of the steps of a row."""
    if "step_rewards" not in fields:
        return [(last, float(np.asarray(fields["rewards"][row], float)))]
    rewards = np.atleast_1d(np.asarray(fields["step_rewards"][row], float))
    ends = fields["step_token_ends"][row] if "step_token_ends" in fields else last
    tokens = np.atleast_1d(np.asarray(ends, int))
    if len(tokens) != len(rewards) or (tokens < 0).any() or (tokens > last).any():
        raise ValueError(
            f"step_token_ends: row {row} has {len(rewards)} steps, at the tokens "
            f"{tokens.tolist()}; one per step, in [0, {last}]"
        )
    return list(zip(tokens.tolist(), rewards.tolist(), strict=True))


def _last_valid(data: Any) -> Any:
    """Return the position of each response's last valid token, [B]; -1 where there is none."""
    width = data.batch["prompts"].shape[-1]
    mask = to_array(data.batch["attention_mask"])[:, width:] > 0
    if not mask.shape[1]:
        return np.full(len(mask), -1)
    last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    return np.where(mask.any(axis=1), last, -1)
