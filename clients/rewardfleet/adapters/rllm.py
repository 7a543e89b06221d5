"""rLLM: an evaluator of episodes, which is also the reward function of a workflow."""

from collections.abc import Sequence
from typing import Any

from rewardfleet.rows import SampleRow
from rewardfleet.wire.policy_text import text_of

from ._rows import RowReward, marks_of, module_of_trainer

_INSTALL = "pip install 'rllm @ git+https://github.com/rllm-org/rllm'"


class RewardFleetEvaluator:
    """An `Evaluator` for `AgentTrainer` and `rllm eval`, and a workflow's `RewardFunction`.

    Args:
        service, url, options: See `rewardfleet.adapters`; a row is the task's metadata. NaN as
            `on_failure` is refused: it would spread over the group. With an error, rLLM repeats the
            rollout; then it ends the run, or leaves the rollout out of its group if
            `rllm.workflow.raise_on_error` is false.
        correct_from: The least reward of an answer that counts as correct.
    """

    def __init__(
        self, service: str, url: str | Sequence[str], *, correct_from: float = 1.0, **options: Any
    ) -> None:
        self._scorer = RowReward(service, url, trainer="rLLM", **options)
        self._correct_from = correct_from

    def evaluate(self, task: Any, episode: Any) -> Any:
        """Return rLLM's `EvalOutput` of an episode, with its signals, e.g. `reward/pass_rate`.

        The answer is `episode.artifacts["answer"]`, else the output of the last trajectory, or the
        last response of the model in it.

        Raises:
            ImportError: rLLM is not installed.
            RewardFleetError: There is no reward, and `on_failure` is "raise".
        """
        types = module_of_trainer("rllm.eval.types", _INSTALL)
        # A task, or only its metadata.
        reward, signals = self._score(_answer(episode), getattr(task, "metadata", task))
        return types.EvalOutput(
            reward=reward,
            is_correct=reward >= self._correct_from,
            signals=[types.Signal(name=name, value=value) for name, value in signals.items()],
        )

    def __call__(self, task_info: SampleRow, action: Any) -> Any:
        """Return rLLM's `RewardOutput` of an answer, or of rLLM's `Action` with one.

        It raises what `evaluate` raises.
        """
        types = module_of_trainer("rllm.rewards.reward_types", _INSTALL)
        reward, signals = self._score(getattr(action, "action", action), task_info)
        return types.RewardOutput(
            reward=reward, metadata=signals, is_correct=reward >= self._correct_from
        )

    def _score(self, answer: Any, row: SampleRow) -> tuple[float, dict[str, float]]:
        """Return the reward of an answer and what rLLM logs, with the numbers of the score."""
        reward, score = self._scorer.loop.run(self._scorer.score(answer, row))
        named = {f"reward/{name}": float(each) for name, each in score.numbers.items()}
        return reward, marks_of(score) | named


evaluator = RewardFleetEvaluator


def _answer(episode: Any) -> Any:
    if "answer" in episode.artifacts:
        return episode.artifacts["answer"]
    if not episode.trajectories:
        return None
    trajectory = episode.trajectories[-1]
    if trajectory.output:
        return trajectory.output
    # A turn that only calls a tool has no text of its own.
    steps = reversed(trajectory.steps)
    texts = [text_of(step.output or step.model_response) for step in steps]
    return next(filter(None, texts), "" if "" in texts else None)
