"""For verl: rewards of the code service as a `custom_reward_function`.

```yaml
custom_reward_function:   # newer versions: below `reward`
  path: pkg://rewardfleet.adapters.verl   # older versions: the path of this file
  name: compute_score     # or compute_score_async, for managers that await
  reward_kwargs: {url: "http://127.0.0.1:18081", timeout_s: 60}
```

By its path it is loaded as a part of no package, so its imports are absolute.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rewardfleet import blocking
from rewardfleet.adapters.ctrl import request_fields
from rewardfleet.client import RewardFleet
from rewardfleet.service import OnFailure, RewardRule
from rewardfleet.wire.code import CodeScore
from rewardfleet.wire.errors import RewardFleetError

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
    rule = RewardRule(on_failure, binary_reward=False, success_threshold=0.0)
    fleet = _fleet(blocking.RewardFleet, url, options)
    try:
        score = fleet.code.score(**_request(solution_str, ground_truth, extra_info or {}))
    except RewardFleetError as error:
        return _told(rule.failed(error))
    return _told(rule.reward(score), score)


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
    rule = RewardRule(on_failure, binary_reward=False, success_threshold=0.0)
    fleet = _fleet(RewardFleet, url, options)
    try:
        score = await fleet.code.score(**_request(solution_str, ground_truth, extra_info or {}))
    except RewardFleetError as error:
        return _told(rule.failed(error))
    return _told(rule.reward(score), score)


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
