"""CTRL: a critique's reward is the pass rate of the program revised from it.

`CritiqueReward` has the methods that CTRL's trainer calls on its `reward_fn`, and
`RewardModelForCritic` also the arguments of CTRL's own class. Run in HKUNLP/critic-rl at 13dc710.
"""

import asyncio
import re
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rewardfleet.arrays import to_array
from rewardfleet.bulk import rows as tables
from rewardfleet.client import RewardFleet
from rewardfleet.rows import SampleRow
from rewardfleet.wire.policy_text import text_of
from rewardfleet.wire.truth import given

from ._rows import RowReward, check_choice, metrics_of, module_of_trainer

_FORMAT = re.compile(r"<format>(.*)</format>", re.DOTALL)

#: Which critiques have a verdict, and which block of a revision is the program: as the code service
#: decides, or as CTRL does; see docs/trainers/ctrl.md.
Rules = Literal["service", "original"]
#: One of these texts is in a critique that CTRL rewards.
_VERDICTS = ("Overall judgment: Correct", "Overall judgment: Incorrect")

#: The values of `prompter_type`, which are also the names of the datasets of the tests.
_DATASETS = ("code_contests", "mbppplus", "livecodebench")
#: The columns that the code service reads in such rows; others may be large.
_TEST_COLUMNS = ("selected_uts", "all_uts", "test", "labels", "content", "time_limit")


class RevisionQuery(NamedTuple):
    """A problem, and the program that is criticized."""

    problem: str
    code: str
    prompter_type: str | None = None  #: which of CTRL's prompts the problem has; None: none of them


class CritiqueReward:
    """The `reward_fn` of CTRL's trainer: a critique's reward is the pass rate of its revision.

    Args:
        fleet: A fleet with a code service; its `max_concurrency`, `timeout_s` and `on_failure`
            apply.
        rows: Each has `id`, `problem`, `solution` (the program that is criticized) and `tests`
            (a mapping, or JSON as text: see `code_fields`). It may have `mode`, `limits`,
            `original_program` and `original_passed`; see `CodeRequest`. A row with a
            `prompter_type` is one of CTRL, and gets CTRL's prompt.
        tokenizer: The tokenizer of the policy, which decodes critiques.
        num_examine: How many critiques of each batch are printed.
        rules: How verdicts and programs are found: `service`, or `original` as in CTRL.

    Raises:
        ValueError: Two rows have the same id, or there are no such rules.
    """

    def __init__(
        self,
        fleet: RewardFleet,
        rows: Iterable[SampleRow],
        tokenizer: Any,
        *,
        num_examine: int = 0,
        rules: Rules = "service",
    ) -> None:
        check_choice("rules", rules, Rules)
        self._scorer = RowReward("code", fleet)
        self._rules, self._tokenizer, self._num_examine = rules, tokenizer, num_examine
        #: What a trainer logs of the last batch: `reward/failed`, `reward/p50`, …
        self.metrics: dict[str, float] = {}
        self._rows: dict[str, SampleRow] = {}
        for row in rows:
            if self._rows.setdefault(str(row["id"]), row) is not row:
                raise ValueError(f"rows: two have the id {row['id']!r}")

    def parse_response(self, data: Any) -> tuple[list[str], list[str], list[int]]:
        """Return the problem ids, critiques and lengths of a batch; each [B].

        A length is the number of tokens up to the last valid one, 0 for an empty response.

        Args:
            data: A `DataProto` with `responses` [B, T], `attention_mask` [B, P + T], 0 for padding,
                and `problem_id` [B]. Arrays or tensors.
        """
        ids = [str(problem_id) for problem_id in data.non_tensor_batch["problem_id"]]
        responses = to_array(data.batch["responses"])
        mask = to_array(data.batch["attention_mask"])
        valid = [np.flatnonzero(row) for row in mask[:, mask.shape[1] - responses.shape[1] :]]
        critiques = [
            self._tokenizer.decode(tokens[at].tolist(), skip_special_tokens=True)
            for tokens, at in zip(responses, valid, strict=True)
        ]
        for critique in critiques[: self._num_examine]:
            print(critique)
        return ids, critiques, [int(at[-1]) + 1 if len(at) else 0 for at in valid]

    def parse_query(self, ids: Sequence[str]) -> tuple[list[RevisionQuery], list[SampleRow]]:
        """Return the queries and the rows of problems; each [B].

        Raises:
            KeyError: There is no such row.
        """
        rows = [self._rows[str(problem_id)] for problem_id in ids]
        queries = [
            RevisionQuery(row["problem"], row["solution"], row.get("prompter_type")) for row in rows
        ]
        return queries, rows

    def build_revision_messages(self, query: RevisionQuery, critique: str) -> list[dict[str, str]]:
        """Return the chat that asks for a revision: of a row of CTRL, by CTRL's own prompts.

        Raises:
            ImportError: The row is one of CTRL, and CTRL cannot be imported.
        """
        if query.prompter_type is None:
            return build_revision_messages(query.problem, query.code, critique)
        instead = "run this in CTRL, or use rewardfleet.adapters.ctrl.build_revision_messages"
        prompts = module_of_trainer("ctrl.gen.prompt", instead)
        prompter = prompts.get_prompter(query.prompter_type)
        block = first_block(query.code)
        return [
            {"role": "user", "content": prompter.get_gen_prompt(query.problem)},
            {"role": "assistant", "content": f"```python\n{block}\n```" if block else query.code},
            {"role": "user", "content": prompter.get_revised_prompt_mt(critique)},
        ]

    def get_reward_all(
        self, critiques: Sequence[str], revisions: Sequence[str], samples: Sequence[SampleRow]
    ) -> Coroutine[Any, Any, list[float]]:
        """Start running the revisions; return a coroutine of their rewards, in the same order.

        The work starts with the call, in its own thread, and not with the `await`: CTRL's trainer
        creates a task, computes log-probabilities, and only then runs its event loop.

        Args:
            critiques, revisions: [B]; a revision has a program.
            samples: [B], the rows of `parse_query`.

        Raises:
            ValueError: The lists differ in length.
            RewardFleetError: From the `await`, if the fleet's `on_failure` is "raise": the first
                failure. Otherwise `on_failure` replaces a missing reward, with a warning in the
                log.
        """
        rows = [*zip(critiques, revisions, samples, strict=True)]
        rewards = self._scorer.loop.start(self._rewards(rows))

        async def wait() -> list[float]:
            return await asyncio.wrap_future(rewards)

        return wait()

    async def _rewards(self, rows: Sequence[tuple[Any, Any, SampleRow]]) -> list[float]:
        samples = [self._sample(*each) for each in rows]
        scores = await self._scorer.scores([text for text, _ in samples], [r for _, r in samples])
        self.metrics = metrics_of(scores)
        return [self._scorer.client.policy.reward(score) for score in scores]

    def _sample(self, critique: Any, revision: Any, row: SampleRow) -> tuple[Any, SampleRow]:
        """Return what is scored, and the fields of the request."""
        if text_of(critique) is None or text_of(revision) is None:
            return None, row
        if self._rules == "service":
            return revision, {**row, "critique": critique}
        if not any(verdict in critique for verdict in _VERDICTS):
            return "", {**row, "critique": ""}  # nothing is run
        block = first_block(revision) if "```" in revision else revision.strip()
        return f"```python\n{block}\n```", row


class RewardModelForCritic(CritiqueReward):
    """`CritiqueReward` with the arguments of CTRL's class of this name.

    Args:
        file: The training file, or several; see `read_rows`.
        run_all_cases: The reward is the pass rate. If False, it is 1 or 0: all tests, or not. As in
            CTRL, it is 1 or 0 in any case where the tests are one program: those of LiveCodeBench,
            and those of MBPP+ that are a text.

    Raises:
        ValueError: A row is none of CTRL's, or two have the same id.
    """

    def __init__(
        self,
        file: str | Path | Iterable[str | Path],
        tokenizer: Any,
        num_examine: int = 0,
        run_all_cases: bool = True,
        *,
        fleet: RewardFleet,
        rules: Rules = "service",
    ) -> None:
        mode = "pass_rate" if run_all_cases else "all_pass"
        modes = {True: "all_pass", False: mode}
        rows = ({**row, "mode": modes[_is_one_program(row)]} for row in read_rows(file))
        super().__init__(fleet, rows, tokenizer, num_examine=num_examine, rules=rules)


def _is_one_program(row: SampleRow) -> bool:
    """Return whether CTRL runs the tests of a row as one program."""
    tests = row["tests"]
    if not isinstance(tests, Mapping) or tests.get("kind") != "dataset":
        return False
    is_text = isinstance(tests["row"].get("selected_uts"), str)
    return tests["dataset"] == "livecodebench" or (tests["dataset"] == "mbppplus" and is_text)


def build_revision_messages(problem: str, code: str, critique: str) -> list[dict[str, str]]:
    """Return the chat that asks for a revision.

    Every chat template accepts its turns (user, assistant, user, and no system prompt):
    `tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)`.

    Args:
        code: The answer: a program, plain or in a fenced block of a text.
        critique: The critique of the answer. Text before a </think> is left out; if there is a
            <format>…</format>, only its content is used.
    """
    answer = code if "```" in code else f"```python\n{code.strip()}\n```"
    visible = critique.rpartition("</think>")[2]
    formatted = _FORMAT.search(visible)
    review = (formatted[1] if formatted else visible).strip()
    task = f"A review of your program:\n\n{review}\n\nWrite the program again, with this in mind."
    form = "Give all of it in one block fenced by ```."
    return [
        {"role": "user", "content": f"{problem.strip()}\n\nSolve this in Python. {form}"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": f"{task} {form}"},
    ]


def first_block(text: str) -> str:
    """Return the program in the first fenced block of a text, as CTRL finds it, or ""."""
    rest = text.partition("```")[2]
    if rest[:6].lower() == "python":  # no other language is left out
        rest = rest[6:]
    block, end, _ = rest.lstrip().partition("```")
    return block.rstrip() if end else block.removesuffix("\n")


def read_rows(files: str | Path | Iterable[str | Path]) -> list[SampleRow]:
    """Read training files of CTRL, as rows for `CritiqueReward`.

    CTRL's `cleanup_rl.py` writes a row per program: `id`, `problem`, `solution`, `prompter_type`,
    and the tests in `selected_uts`, which become the `tests` of the row. Rows with a column `tests`
    keep it.

    Args:
        files: One or more, `.parquet` (needs pyarrow), `.jsonl` or another table of
            `rewardfleet score`.

    Raises:
        ValueError: A row has neither `tests` nor a `prompter_type` of CTRL, a column is missing, or
            a row cannot be read.
    """
    paths = [files] if isinstance(files, str | Path) else list(files)
    rows = (each for path in paths for each in tables.read_rows(Path(path)))
    return [_row(each.fields, each.place) for each in rows]


def _row(record: Mapping[str, Any], place: str) -> dict[str, Any]:
    row = given(record)
    for name in ("id", "problem", "solution"):
        if name not in row:
            raise ValueError(f"{place}: `{name}` is missing")
    if "tests" in row:
        return row
    kind, known = row.get("prompter_type"), ", ".join(_DATASETS)
    if kind not in _DATASETS:
        raise ValueError(f"{place}: has no `tests`, and prompter_type is {kind!r}, not {known}")
    columns = given(row, _TEST_COLUMNS)
    if kind == "livecodebench":  # whose tests CTRL moves to `selected_uts` when it writes the file
        columns.setdefault("test", columns.pop("selected_uts", None))
    return {**row, "tests": {"kind": "dataset", "dataset": kind, "row": columns}}
