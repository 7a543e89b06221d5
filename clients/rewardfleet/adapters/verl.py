"""verl: rewards of the code service as a `custom_reward_function`.

```yaml
custom_reward_function:   # newer versions: below `reward`
  path: pkg://rewardfleet.adapters.verl   # older versions: the path of this file
  name: compute_score     # or compute_score_async, for reward managers that await
  reward_kwargs: {url: "http://127.0.0.1:18081", timeout_s: 60}
```

verl may load this file by its path, as part of no package, so its imports are absolute.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rewardfleet.adapters._batch import request_fields
from rewardfleet.client import RewardFleet
from rewardfleet.event_loop_thread import EventLoopThread
from rewardfleet.service import OnFailure, RewardPolicy
from rewardfleet.wire.code import CodeScore
from rewardfleet.wire.errors import RewardFleetError

#: Reported with each score. verl collects the keys of the first sample, so all have the same.
_REPORTED_FIELDS = ("pass_rate", "critique_valid", "judgment_correct")
#: Arguments that verl passes to every such function, for judges that it runs itself.
_FROM_VERL = {"reward_router_address", "reward_model_tokenizer", "reward_model"}
#: verl makes one call per sample; concurrent calls are collected into batches.
_COALESCE_SECONDS = 0.005

#: The fleets of this process, by URL and options; they share connections.
_fleets: dict[tuple[Any, ...], RewardFleet] = {}
#: Where synchronous calls run.
_loop = EventLoopThread()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | Sequence[str],
    on_failure: OnFailure = "raise",
    **options: Any,
) -> dict[str, float]:
    """Score one program, or one critique by the program revised from it.

    Args:
        data_source: Ignored.
        solution_str: The response: a text with a program; or, if `extra_info` has `revision`, the
            critique from which that program was revised.
        ground_truth: The tests, or their JSON as text (a parquet file keeps text as it is, but
            changes nested columns).
        extra_info: `revision`, `critique`, `original_program`, `original_passed`, `mode` and
            `limits` are read where they are not None; see `CodeRequest`.
        url: The base URL of the code service, or the base URLs of its replicas.
        on_failure: As in `RewardFleet`. verl cannot represent a missing reward, and NaN spreads
            over its group; with a number, `failed` marks the samples that have it.
        options: Options of `RewardFleet`, e.g. `timeout_s`, `api_key`, `max_concurrency`.

    Returns:
        `score`; `failed`, 1.0 where `score` is `on_failure`, else 0.0; and `pass_rate`,
        `critique_valid` and `judgment_correct`, NaN where there is none.

    Raises:
        RewardFleetError: There is no score, and `on_failure` is "raise".
        TypeError: An option is unknown.
    """
    return _loop.run(
        compute_score_async(
            data_source,
            solution_str,
            ground_truth,
            extra_info,
            url=url,
            on_failure=on_failure,
            **options,
        )
    )


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
    """Score one program or critique: `compute_score` for reward managers that await.

    It has the arguments and the result of `compute_score`.

    Raises:
        RewardFleetError: There is no score, and `on_failure` is "raise".
        TypeError: An option is unknown.
    """
    fleet = _fleet(url, options)
    policy = RewardPolicy(
        on_failure,
        binary_reward=False,
        success_threshold=0.0,
        on_fallback=fleet.code.count_fallback,
    )
    try:
        score = await fleet.code.score(**_request(solution_str, ground_truth, extra_info or {}))
    except RewardFleetError as error:
        return _result(policy.failed(error))
    return _result(policy.reward(score), score)


def _fleet(url: str | Sequence[str], options: dict[str, Any]) -> RewardFleet:
    urls = url if isinstance(url, str) else tuple(url)
    given = {name: options[name] for name in options.keys() - _FROM_VERL}
    key = (urls, *sorted(given.items()))
    if key not in _fleets:  # setdefault is atomic, so all threads use the same fleet
        _fleets.setdefault(
            key, RewardFleet(code=urls, **{"coalesce_s": _COALESCE_SECONDS, **given})
        )
    return _fleets[key]


def _request(solution: str, tests: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    revision = extra.get("revision")
    if revision is None:
        return request_fields(solution, tests, extra)
    return request_fields(revision, tests, {**extra, "critique": solution})


def _result(reward: float, score: CodeScore | None = None) -> dict[str, float]:
    fields: dict[str, Any] = {}
    if score is not None:
        fields = {**score.model_dump(include=set(_REPORTED_FIELDS)), **score.components}
    reported = {name: fields.get(name) for name in _REPORTED_FIELDS}
    return {
        "score": reward,
        "failed": float(score is None or score.score is None),
        **{name: math.nan if value is None else float(value) for name, value in reported.items()},
    }
