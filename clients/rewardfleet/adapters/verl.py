"""For verl and what is built on it.

Rewards of the code service, as a `custom_reward_function`:

```yaml
custom_reward_function:   # newer versions: below `reward`
  path: pkg://rewardfleet.adapters.verl   # older versions: the path of this file
  name: compute_score     # or compute_score_async, for managers that await
  reward_kwargs: {url: "http://127.0.0.1:18081", timeout_s: 60}
```

By its path it is loaded as a part of no package, so its imports are absolute.
"""

import logging
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from rewardfleet import blocking
from rewardfleet.adapters.ctrl import request_fields
from rewardfleet.client import RewardFleet
from rewardfleet.episodes import by_length
from rewardfleet.service import OnFailure, RewardPolicy
from rewardfleet.wire.code import CodeScore
from rewardfleet.wire.errors import RewardFleetError

log = logging.getLogger(__name__)

FleetT = TypeVar("FleetT", RewardFleet, blocking.RewardFleet)

#: verl gathers what is told beside a score by the first sample's keys, so all have the same.
_TOLD = ("pass_rate", "critique_valid", "judgment_correct")
#: What verl gives to every such function, for judges that it runs itself.
_FROM_VERL = ("reward_router_address", "reward_model_tokenizer", "reward_model")
#: verl calls once a sample: calls at the same time travel together.
_COALESCE_SECONDS = 0.005

#: Those of this process, which share connections; setdefault is atomic, so threads agree on one.
_fleets: dict[tuple[Any, ...], Any] = {}


def compute_score(
    data_source: str,  # noqa: ARG001 - verl's signature
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | Sequence[str],
    on_failure: OnFailure = "raise",
    **options: Any,
) -> dict[str, float]:
    """Have one program, or what a critique made of one, judged by its tests.

    Args:
        data_source: Not read.
        solution_str: The response: a text with a program; or, where `extra_info` has `revision`,
            the critique that led to that one.
        ground_truth: The tests, or their JSON as text, which is what parquet leaves as it is.
        extra_info: Of it, `revision`, `critique`, `original`, `original_passed`, `mode` and
            `limits` are taken where they are not None; see `CodeRequest`.
        url: Of the code service, or those of its replicas.
        on_failure: As `RewardFleet`'s. verl has no word for a missing reward, and NaN spreads over
            its group; with a number, `failed` says where it stands.
        options: Of `RewardFleet`, e.g. `timeout_s`, `api_key`, `max_concurrency`.

    Returns:
        `score`; `failed`, 1.0 where `score` is `on_failure`; and, NaN where there is none,
        `pass_rate`, `critique_valid` and `judgment_correct`.

    Raises:
        RewardFleetError: Only where `on_failure` is "raise".
        TypeError: An option is unknown.
    """
    policy = RewardPolicy(on_failure, binary_reward=False, success_threshold=0.0)
    fleet = _fleet(blocking.RewardFleet, url, options)
    try:
        score = fleet.code.score(**_request(solution_str, ground_truth, extra_info or {}))
    except RewardFleetError as error:
        return _told(policy.failed(error))
    return _told(policy.reward(score), score)


async def compute_score_async(
    data_source: str,  # noqa: ARG001 - verl's signature
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | Sequence[str],
    on_failure: OnFailure = "raise",
    **options: Any,
) -> dict[str, float]:
    """See `compute_score`."""
    policy = RewardPolicy(on_failure, binary_reward=False, success_threshold=0.0)
    fleet = _fleet(RewardFleet, url, options)
    try:
        score = await fleet.code.score(**_request(solution_str, ground_truth, extra_info or {}))
    except RewardFleetError as error:
        return _told(policy.failed(error))
    return _told(policy.reward(score), score)


def _fleet(kind: type[FleetT], url: str | Sequence[str], options: dict[str, Any]) -> FleetT:
    urls = url if isinstance(url, str) else tuple(url)
    ours: dict[str, Any] = {name: options[name] for name in options.keys() - set(_FROM_VERL)}
    key = (kind, urls, *sorted(ours.items()))
    if key not in _fleets:
        _fleets.setdefault(key, kind(code=urls, **{"coalesce_s": _COALESCE_SECONDS, **ours}))
    fleet: FleetT = _fleets[key]
    return fleet


def _request(solution: str, tests: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    revision = extra.get("revision")
    if revision is None:
        return request_fields(solution, tests, extra)
    return request_fields(revision, tests, {**extra, "critique": solution})


def _told(reward: float, score: CodeScore | None = None) -> dict[str, float]:
    fields = {} if score is None else {**score.model_dump(include=set(_TOLD)), **score.components}
    told = {name: fields.get(name) for name in _TOLD}
    return {
        "score": reward,
        "failed": float(score is None or score.score is None),
        **{name: math.nan if value is None else float(value) for name, value in told.items()},
    }


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
        episode = self._episode_rewards(data, last)
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
        # A row that gets no reward needs no length.
        return by_length(rewards, np.where(last >= 0, lengths, 1))

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
    if not mask.shape[1]:
        return np.full(len(mask), -1)
    last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    return np.where(mask.any(axis=1), last, -1)


def _tokens(mask: Any) -> Any:
    return mask > 0


def _array(tensor: Any) -> Any:
    """A tensor of any device as an array; what is an array already stays one."""
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
