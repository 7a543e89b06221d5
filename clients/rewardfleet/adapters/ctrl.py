"""For CTRL (critics trained by what their critiques do to programs; HKUNLP/critic-rl).

One step of the trainer:

    the policy writes critiques     `parse_response`: token ids to problem ids, critiques, lengths
    the problems                    `parse_query`: problem ids to queries, samples
    a prompt for each revision      `build_revision_messages`, then the tokenizer's chat template
    the proxy writes revisions      as `REVISION_SAMPLING` says
    the revisions are run           `get_reward_all`, while the trainer computes log-probabilities
    rewards a token                 `place_rewards`: [B] to [B, T]

`CritiqueReward` has the methods that CTRL's trainer calls on its `reward_fn`.
"""

import asyncio
import json
import re
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from rewardfleet.client import RewardFleet

#: A row of the trainer's data: see `CritiqueReward`.
Row = Mapping[str, Any]
Message = dict[str, str]

_FORMAT = re.compile(r"<format>(.*)</format>", re.DOTALL)
#: What a row may say of its request, beside the tests.
_OPTIONS = ("critique", "original_program", "original_passed", "mode", "limits")


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Turn token ids into text."""
        ...


class Batch(Protocol):
    """verl's DataProto, or what looks like one. Arrays may be numpy's, or torch's on any device.

    Attributes:
        batch: `responses` [B, T], integers; `attention_mask` [B, P + T], 0 where there is padding.
        non_tensor_batch: `problem_id` [B].
    """

    @property
    def batch(self) -> Any: ...

    @property
    def non_tensor_batch(self) -> Any: ...


class Query(NamedTuple):
    """What was asked, and the answer that is criticised."""

    problem: str
    code: str


@dataclass(frozen=True)
class RevisionSampling:
    """How revisions are generated: the trainer's to use.

    Attributes:
        do_sample: False is greedy, so that a critique's reward does not hang on luck.
        temperature: The same, for engines that know no `do_sample`.
        max_tokens: Of one revision; more than a critique's, as a whole program must fit.
        proxy_model_path: The model that revises. None: the reference policy.
    """

    do_sample: bool = False
    temperature: float = 0.0
    max_tokens: int = 1024
    proxy_model_path: str | None = None


REVISION_SAMPLING = RevisionSampling()


class CritiqueReward:
    """The `reward_fn` of CTRL's trainer: critiques are worth what the revised programs pass.

    Args:
        fleet: With a code service. Its `max_concurrency`, `timeout_s` and `on_failure` hold.
        rows: Each has `id`, `problem`, `solution` (the program that is criticised) and `tests`
            (the request's, or their JSON as text, which is what parquet leaves as it is). It may
            have `mode`, `limits`, `original` and `original_passed`; see `CodeRequest`.
        tokenizer: The policy's.

    Raises:
        ValueError: Two rows have the same id.
    """

    def __init__(self, fleet: RewardFleet, rows: Iterable[Row], tokenizer: Decoder) -> None:
        self._fleet = fleet
        self._tokenizer = tokenizer
        self._rows: dict[str, Row] = {}
        for row in rows:
            if self._rows.setdefault(str(row["id"]), row) is not row:
                raise ValueError(f"rows: two have the id {row['id']!r}")

    def parse_response(self, data: Batch) -> tuple[list[str], list[str], list[int]]:
        """Return the problem ids, critiques and lengths of a batch; each [B].

        A length counts tokens up to the last valid one; it is 0 for an empty response.
        """
        ids = [str(problem_id) for problem_id in data.non_tensor_batch["problem_id"]]
        responses = data.batch["responses"]
        mask = data.batch["attention_mask"]
        critiques, lengths = [], []
        for tokens, valid in zip(
            responses.tolist(), mask[:, mask.shape[1] - responses.shape[1] :].tolist(), strict=True
        ):
            places = [place for place, is_valid in enumerate(valid) if is_valid]
            text = self._tokenizer.decode(
                [tokens[place] for place in places], skip_special_tokens=True
            )
            critiques.append(text)
            lengths.append(places[-1] + 1 if places else 0)
        return ids, critiques, lengths

    def parse_query(self, ids: Sequence[str]) -> tuple[list[Query], list[Row]]:
        """Return what was asked and answered, and the rows, of problems; each [B].

        Raises:
            KeyError: There is no such row.
        """
        rows = [self._rows[str(problem_id)] for problem_id in ids]
        return [Query(row["problem"], row["solution"]) for row in rows], rows

    def build_revision_messages(self, query: Query, critique: str) -> list[Message]:
        """See the function of this name."""
        return build_revision_messages(*query, critique)

    def get_reward_all(
        self, critiques: Sequence[str], revisions: Sequence[str], samples: Sequence[Row]
    ) -> Coroutine[Any, Any, list[float]]:
        """Have the revisions run; return what awaits their rewards, in the same order.

        The work begins with the call, on a thread of its own, not with the `await`. CTRL's
        trainer makes a task, computes log-probabilities, and only then runs its event loop; a
        task that waits for that loop does not overlap with anything.

        Raises:
            ValueError: The lists differ in length.
            RewardFleetError: From the `await`, where the fleet's `on_failure` is "raise": the
                first failure; what is left is cancelled. A reward that there is none of is
                otherwise the number that the fleet was given, with a warning in the log.
        """
        rows = list(zip(critiques, revisions, samples, strict=True))
        with_own_loop = ThreadPoolExecutor(1, thread_name_prefix="rewardfleet")
        rewards = with_own_loop.submit(asyncio.run, self._rewards(rows))
        with_own_loop.shutdown(wait=False)
        return _result(rewards)

    async def _rewards(self, rows: list[tuple[str, str, Row]]) -> list[float]:
        async with self._fleet:
            tasks = [asyncio.create_task(self._reward(*row)) for row in rows]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

    async def _reward(self, critique: str, revision: str, sample: Row) -> float:
        request = request_fields(revision, sample.get("tests"), {**sample, "critique": critique})
        return await self._fleet.code.reward(**request)


def build_revision_messages(problem: str, code: str, critique: str) -> list[Message]:
    """Return the chat that asks for a revision.

    Turns of user, assistant and user, and no system's, are what every chat template takes:
    `tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)`.

    Args:
        problem: As it was asked.
        code: The answer: a program, or a text with one in a fence.
        critique: Of the answer. Where it holds <format>…</format>, only what is in it; what comes
            before a </think> is not shown.
    """
    answer = code if "```" in code else f"```python\n{code.strip()}\n```"
    aloud = critique.rpartition("</think>")[2]
    within = _FORMAT.search(aloud)
    said = (within[1] if within else aloud).strip()
    ask = f"A review of your program:\n\n{said}\n\nWrite the program again, with this in mind."
    form = "Give all of it in one block fenced by ```."
    return [
        {"role": "user", "content": f"{problem.strip()}\n\nSolve this in Python. {form}"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": f"{ask} {form}"},
    ]


def place_rewards(
    rewards: Sequence[float], lengths: Sequence[int], like: Any
) -> tuple[Any, list[int]]:
    """Put each response's reward at its last valid token, and 0 elsewhere.

    Args:
        rewards: [B]. NaN is placed as it is: mask such rows before a group's mean is taken.
        lengths: [B], in [0, T]; of 0 for an empty response, which has no place for a reward.
        like: [B, T] array of numpy or tensor of torch, `responses` say.

    Returns:
        Token rewards [B, T], of the kind and on the device of `like`, and of its dtype where that
        is a floating one, else float32; and the rows of empty responses.

    Raises:
        ValueError: The sizes do not go together.
    """
    rows, width = like.shape
    values = np.zeros((rows, width))
    empty = []
    for row, reward, length in zip(range(rows), rewards, lengths, strict=True):
        if not 0 <= length <= width:
            raise ValueError(f"lengths: {length} of row {row} is not in [0, {width}]")
        if length:
            values[row, length - 1] = reward
        else:
            empty.append(row)
    if isinstance(like, np.ndarray):
        kept = like.dtype if np.issubdtype(like.dtype, np.floating) else np.float32
        return values.astype(kept), empty
    floating = like[:0] if like.is_floating_point() else like[:0].float()
    return floating.new_tensor(values), empty


def request_fields(revision: str, tests: Any, options: Row) -> dict[str, Any]:
    """Return the fields of a request, as `rewardfleet.code_request` takes them.

    Args:
        revision: The program, or a text with one in a fence.
        tests: The request's, or their JSON as text.
        options: Of these, those that a request has are taken where they are not None.
    """
    named = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    return {"revision": revision, "tests": _from_text(tests), **named}


def _from_text(tests: Any) -> Any:
    try:
        return json.loads(tests) if isinstance(tests, str) else tests
    except ValueError:
        return tests  # which is refused where the request is made, as one sample's failure


async def _result(rewards: Future[list[float]]) -> list[float]:
    return await asyncio.wrap_future(rewards)
