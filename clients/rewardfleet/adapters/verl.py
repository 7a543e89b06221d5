"""verl: rewards of the code service, or of another one, as a `custom_reward_function`.

verl may load this file by its path, as part of no package, so its imports are absolute.
"""

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rewardfleet.adapters._rows import MissingReward, RowReward, is_before, marks_of
from rewardfleet.event_loop_thread import EventLoopThread
from rewardfleet.rows import SampleRow
from rewardfleet.services import SERVICES
from rewardfleet.wire.policy_text import text_of
from rewardfleet.wire.score import Score

#: What is reported where there is no value: verl's validation leaves out None since version 0.9.
_NO_VALUE = math.nan if is_before("verl", 0, 9) else None
#: Arguments that verl passes to every such function, for judges that it runs itself.
_FROM_VERL = {"reward_router_address", "reward_model_tokenizer", "reward_model"}

#: What scores in this process, by service, URL and options; calls share its connections.
_scorers: dict[str, RowReward] = {}
_loop = EventLoopThread()


async def compute_score_async(
    data_source: str,  # noqa: ARG001 - verl's signature
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | Sequence[str],
    service: str = "code",
    **options: Any,
) -> dict[str, Any]:
    """Score one sample: a program, a critique, an answer, or a clip.

    Args:
        data_source: Ignored.
        solution_str: The response: a text with a program; or, if `extra_info` has `revision`, the
            critique from which that program was revised. The video service ignores it.
        ground_truth: For code, the tests, or their JSON as text (a parquet file keeps text as it
            is, but changes nested columns); for tools, the ground truth; for answers, the
            reference; for video, the task.
        extra_info: Further fields of the request, read where they are not None. For code
            `revision`, `critique`, `original_program`, `original_passed`, `mode` and `limits`; for
            video `clip` (see `rewardfleet.video_request`), `fps`, `nframes`, `backend`, ….
        url, service, options: See `rewardfleet.adapters`. The trainer of `trainer.use_v1=true`
            (verl 0.9) leaves out a sample for which an error is raised; others end the run. NaN as
            `on_failure` spreads over its group in verl's own estimators; with those of
            `rewardfleet.adapters.verl_advantages` it does not count. With a number,
            `reward/failed` or `reward/abstained` marks the samples that have it.

    Returns:
        `score`; `reward/failed`, 1.0 where the service failed, else 0.0; `reward/abstained`, 1.0
        where the judge answered without a verdict; `reward/cached`, 1.0 for a score from the cache;
        `reward/cause/NAME` for each cause of the service, 1.0 for that of the sample; and for code
        `reward/pass_rate`, `reward/critique_valid` and `reward/details/judgment_correct`, for tools
        the addends `reward/format`, `reward/correctness`, `reward/length` and `reward/tool_cost`,
        and `reward/details/cost`, which is not multiplied by lambda. These are None where there is
        none, which verl's validation leaves out; NaN before verl 0.9.

    Raises:
        RewardFleetError: There is no score, and `on_failure` is "raise".
        MissingReward: The same, for `rate_limited`, which makes 0 of each `Exception`.
        TypeError: An option is unknown.
    """
    try:
        scorer = _scorer(service, url, options)
        text, row = _sample(scorer, solution_str, ground_truth, extra_info)
        # verl's agent loop adds the version of the weights that wrote the sample: how many steps
        # there were before the first one that can train on it.
        version = row.get("max_global_steps")
        step = version + 1 if isinstance(version, int) else None
        return _result(service, *await scorer.score(text, row, step))
    except Exception as error:
        limited = sys.modules.get("verl.experimental.reward_loop.reward_manager.limited")
        if limited and limited.RateLimitedRewardManager._class_initialized:  # noqa: SLF001
            raise MissingReward(f"{type(error).__name__}: {error}") from error
        raise


@functools.wraps(compute_score_async, assigned=())  # the signature
def compute_score(*sample: Any, **given: Any) -> dict[str, Any]:
    """Score one sample: `compute_score_async` for reward managers that do not await."""
    return _loop.run(compute_score_async(*sample, **given))


def compute_scores(
    data_sources: Sequence[str],  # noqa: ARG001 - verl's signature
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any] | None] | None = None,
    *,
    url: str | Sequence[str],
    service: str = "code",
    **options: Any,
) -> list[dict[str, Any]]:
    """Score a batch in one request, for the reward manager `batch`.

    The arguments are lists of those of `compute_score_async`, and so is the result.
    """
    scorer = _scorer(service, url, options)
    infos = extra_infos if extra_infos is not None else [None] * len(solution_strs)
    columns = zip(solution_strs, ground_truths, infos, strict=True)
    samples = [_sample(scorer, *each) for each in columns]
    scores = _loop.run(scorer.scores([text for text, _ in samples], [row for _, row in samples]))
    return [_result(service, scorer.client.policy.reward(score), score) for score in scores]


@functools.wraps(compute_score_async, assigned=())
def compute_score_prime(*sample: Any, **given: Any) -> float:
    """Return the score alone of `compute_score`, for the reward manager `prime`.

    Raises:
        MissingReward: There is no score. `prime` turns any `Exception` into a score of 0, so this
            is a `BaseException`.
    """
    try:
        score = compute_score(*sample, **given)
    except Exception as error:
        raise MissingReward(f"{type(error).__name__}: {error}") from error
    return float(score["score"])


def _scorer(service: str, url: str | Sequence[str], options: dict[str, Any]) -> RowReward:
    urls = [url] if isinstance(url, str) else [*url]
    given = {name: options[name] for name in sorted(options.keys() - _FROM_VERL)}
    key = repr((service, urls, given))  # by its name, NaN equals itself
    if key not in _scorers:  # setdefault is atomic, so all threads use the same one
        _scorers.setdefault(key, RowReward(service, urls, **given))
    return _scorers[key]


def _sample(
    scorer: RowReward, solution: str, truth: Any, extra: SampleRow | None
) -> tuple[str | None, SampleRow]:
    declared = SERVICES[scorer.service]
    row = extra or {}
    if declared.scores == "clip":
        return solution, {"task": truth, **row}
    row = {**row, scorer.truth: truth}
    if "critique" in declared.client.request_type.model_fields and row.get("revision") is not None:
        # What was revised from no critique is no answer of the policy.
        revision = None if text_of(solution) is None else row["revision"]
        return revision, {**row, "critique": solution}
    return solution, row


class _SampleResult(dict[str, Any]):
    """What verl gets for a sample: `score`, and values to log."""

    def __missing__(self, key: object) -> float:
        if key == 0:  # with a `KeyError`, `prime` would give 0 to the whole batch
            raise MissingReward("the reward manager `prime` needs `name: compute_score_prime`")
        raise KeyError(key)


def _result(service: str, reward: float, score: Score) -> dict[str, Any]:
    names = SERVICES[service].reported  # the same for all samples: verl reads those of the first
    fields = {**score.model_dump(include=set(names)), **score.numbers}
    values = {f"reward/{name}": fields.get(name) for name in names}
    reported = {name: _NO_VALUE if each is None else float(each) for name, each in values.items()}
    return _SampleResult({"score": reward, **marks_of(score, service), **reported})
