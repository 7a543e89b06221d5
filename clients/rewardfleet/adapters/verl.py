"""verl: rewards of the code service, or of another one, as a `custom_reward_function`.

verl may load this file by its path, as part of no package, so its imports are absolute.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rewardfleet.adapters._rows import (
    COALESCE_SECONDS,
    MissingReward,
    cause_marks,
    is_before,
    marks_of,
)
from rewardfleet.adapters.settings import attempt
from rewardfleet.client import RewardFleet
from rewardfleet.event_loop_thread import EventLoopThread
from rewardfleet.rows import SampleRow, fields_of, requests_of, sampled, scores_of
from rewardfleet.service import BatchClient, OnFailure
from rewardfleet.services import SERVICES
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError
from rewardfleet.wire.policy_text import text_of
from rewardfleet.wire.score import Score

#: What is reported where there is no value: verl's validation leaves out None since version 0.9.
_NO_VALUE = math.nan if is_before("verl", 0, 9) else None
#: Arguments that verl passes to every such function, for judges that it runs itself.
_FROM_VERL = {"reward_router_address", "reward_model_tokenizer", "reward_model"}

#: The fleets of this process, by service, URL and options; they share connections.
_fleets: dict[tuple[Any, ...], RewardFleet] = {}
_loop = EventLoopThread()


async def compute_score_async(
    data_source: str,  # noqa: ARG001 - verl's signature
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | Sequence[str],
    service: str = "code",
    on_failure: OnFailure = "raise",
    **options: Any,
) -> dict[str, Any]:
    """Score one sample: a program, a critique, an answer that calls tools, or a clip.

    Args:
        data_source: Ignored.
        solution_str: The response: a text with a program; or, if `extra_info` has `revision`, the
            critique from which that program was revised. The video service ignores it.
        ground_truth: For code, the tests, or their JSON as text (a parquet file keeps text as it
            is, but changes nested columns); for tools, the ground truth; for video, the task.
        extra_info: Further fields of the request, read where they are not None. For code
            `revision`, `critique`, `original_program`, `original_passed`, `mode` and `limits`; for
            video `clip` (see `rewardfleet.video_request`), `fps`, `nframes`, `backend`, ….
        url, service, options: See `rewardfleet.adapters`.
        on_failure: As in `RewardFleet`. The trainer of `trainer.use_v1=true` (verl 0.9) leaves out
            a sample for which an error is raised; others end the run. In verl's own estimators NaN
            spreads over its group; with those of `rewardfleet.adapters.verl_advantages` it does not
            count. With a number, `reward/failed` or `reward/abstained` marks the samples that have
            it.

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
        TypeError: An option is unknown.
    """
    client = _client(service, url, on_failure, options)
    try:
        text, truth, row = _sample(service, solution_str, ground_truth, extra_info or {})
        fields = {"step": _step_of(row), **fields_of(sampled(service), text, truth, row)}
        score = await client.score(**fields)
    except RewardFleetError as error:
        return _result(client, service, error)
    return _result(client, service, score)


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
    on_failure: OnFailure = "raise",
    **options: Any,
) -> list[dict[str, Any]]:
    """Score a batch in one request, for the reward manager `batch`.

    The arguments are lists of those of `compute_score_async`, and so is the result.
    """
    client = _client(service, url, on_failure, options)
    infos = extra_infos if extra_infos is not None else [None] * len(solution_strs)
    samples = [
        _sample(service, *each[:2], each[2] or {})
        for each in zip(solution_strs, ground_truths, infos, strict=True)
    ]
    scores = _loop.run(scores_of(client, requests_of(service, samples)))
    return [_result(client, service, score) for score in scores]


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


def _client(
    service: str, url: str | Sequence[str], on_failure: OnFailure, options: dict[str, Any]
) -> Any:
    urls: Any = {service: url if isinstance(url, str) else tuple(url)}
    given = {name: options[name] for name in options.keys() - _FROM_VERL}
    key = (service, urls[service], repr(on_failure), *sorted(given.items()))
    if key not in _fleets:  # setdefault is atomic, so all threads use the same fleet
        own = {"attempt": attempt(), "coalesce_s": COALESCE_SECONDS, "on_failure": on_failure}
        given = {**own, **given}
        _fleets.setdefault(key, RewardFleet(**urls, **given))
    return getattr(_fleets[key], service)


def _sample(
    service: str, solution: str, truth: Any, extra: SampleRow
) -> tuple[str | None, Any, SampleRow]:
    """Return the arguments of `Service.fields` for a sample of verl."""
    if SERVICES[service].scores == "clip":
        if extra.get("clip") is None:
            raise InvalidRequest("extra_info has no 'clip': a path, bytes, frames or images")
        return solution, extra["clip"], {"task": truth, **extra}
    takes_critiques = "critique" in SERVICES[service].client.request_type.model_fields
    if takes_critiques and extra.get("revision") is not None:
        # What was revised from no critique is no answer of the policy.
        revision = None if text_of(solution) is None else extra["revision"]
        return revision, truth, {**extra, "critique": solution}
    return solution, truth, extra


def _step_of(extra: SampleRow) -> int | None:
    """Return the first step that can train on a sample; None if verl does not say it.

    Its agent loop adds the version of the weights that wrote the sample: how many steps there were.
    """
    version = extra.get("max_global_steps")
    return version + 1 if isinstance(version, int) else None


class _SampleResult(dict[str, Any]):
    """What verl gets for a sample: `score`, and values to log."""

    def __missing__(self, key: object) -> float:
        """Refuse to be read as a list, as the reward manager `prime` does.

        Raises:
            MissingReward: It would have turned a `KeyError` into scores of 0 for the whole batch.
            KeyError: Another key is missing.
        """
        if key == 0:
            raise MissingReward("the reward manager `prime` needs `name: compute_score_prime`")
        raise KeyError(key)


def _result(
    client: BatchClient[Any, Any], service: str, score: Score | RewardFleetError
) -> dict[str, Any]:
    names = SERVICES[service].reported  # the same for all samples: verl reads those of the first
    if isinstance(score, RewardFleetError):
        reward, fields, found = client.policy.failed(score), {}, None
    else:
        reward, found = client.policy.reward(score), score
        fields = {**score.model_dump(include=set(names)), **score.numbers}
    values = {f"reward/{name}": fields.get(name) for name in names}
    reported = {name: _NO_VALUE if each is None else float(each) for name, each in values.items()}
    marks = {**marks_of(found), **cause_marks(service, found)}
    return _SampleResult({"score": reward, **marks, **reported})
