"""Why a score is low, or missing: one closed list of causes per service.

The names are stable: programs may branch on them. The cause of an error is its `ErrorKind`.
docs/reference/causes.md is generated from these lists.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

#: A video's score below it means that the judge finds that the task was not done.
SUCCESS_THRESHOLD = 0.5


def success_threshold(provenance: Mapping[str, Any] | None) -> float:
    """Return the least score of a success: that of the judge's calibration, if it has one."""
    calibration = (provenance or {}).get("calibration") or {}
    return float(calibration.get("threshold", SUCCESS_THRESHOLD))


class Cause(StrEnum):
    """The base of the lists. Of several causes, the first in its list that applies is reported."""

    meaning: str  #: why the score is what it is: a sentence
    remedy: str  #: what would have to change for another score: a sentence

    def __new__(cls, name: str, meaning: str, remedy: str) -> Self:
        """Make a member, which is a string: its name."""
        member = str.__new__(cls, name)
        member._value_, member.meaning, member.remedy = name, meaning, remedy
        return member


def cause_field() -> Any:
    """Return the field of a score with its cause, which newer services may have more of."""
    from pydantic import Field  # noqa: PLC0415 - what only reads the names starts faster without it

    why = "Why the score is low, or missing; see docs/reference/causes.md."
    description = f"{why} Of an error, its kind. Newer services may have further ones."
    return Field(None, union_mode="left_to_right", description=description)


#: The cause of what is null, in the lists of the services that score what a policy wrote.
_NO_ANSWER = (
    "no_answer",
    "What the policy wrote is null, as of a rollout that was aborted. An empty text is an answer.",
    "A rollout that ends with an answer.",
)


class CodeCause(Cause):
    """Causes of the code service.

    If tests were run, it is the cause of the first one that failed.
    """

    NO_ANSWER = _NO_ANSWER
    NO_JUDGMENT = (
        "no_judgment",
        "The critique does not have exactly one overall judgment, so nothing was run.",
        "The critique must state `Overall judgment: Correct` or `Incorrect`, once.",
    )
    NO_CODE_BLOCK = (
        "no_code_block",
        "The text has no program: no code block, and is not Python as a whole; or no statement.",
        (
            "The policy must write its program in a code block. Look at the end of the text: a "
            "text that is cut off needs a larger token limit."
        ),
    )
    UNUSABLE_TEXT = (
        "unusable_text",
        "The program has a NUL, a lone surrogate, or more than 1,000,000 characters.",
        "The program must be text of at most that length.",
    )
    COMPILE_ERROR = (
        "compile_error",
        "The program is not valid Python.",
        "The program must compile; `stderr` of the test has the line.",
    )
    MISSING_MODULE = (
        "missing_module",
        "The program imports a module that is not installed in the sandbox.",
        "Install the module for the sandbox, or tell the policy which modules there are.",
    )
    REFUSED_BY_JAIL = (
        "refused_by_jail",
        "The jail refused what the program, a package or the test needs; `stderr` ends with it.",
        "Write nothing outside of /tmp, start no processes, and open no connections.",
    )
    SANDBOX_DIED = (
        "sandbox_died",
        "The sandbox died while the program ran; programs that attack it do that.",
        (
            "Read the program and `suspicions`. If harmless programs end so, the machine lacks "
            "memory or processes."
        ),
    )
    DECIDED_BY_PROGRAM = (
        "decided_by_program",
        "All tests passed, or the first one that failed did, but the program could decide that.",
        (
            "Write the test so that it compares plain values. With `strict`, such a pass is a "
            "wrong answer; without it, it counts."
        ),
    )
    ALIKE_OUTPUTS = (
        "alike_outputs",
        "All tests passed, but a constant does: all expected outputs are empty, or the same.",
        "Add tests with other expected outputs, or leave the row out.",
    )
    WRONG_ANSWER = (
        "wrong_answer",
        "The program ended well, with another output or value than expected.",
        "The program must give what the test expects, as `checker` or `tolerance` compare it.",
    )
    RUNTIME_ERROR = (
        "runtime_error",
        "The program raised an exception, or a signal ended it.",
        "The program must not fail; `stderr` of the test has the exception.",
    )
    TIME_LIMIT = (
        "time_limit",
        (
            "A run took more than `limits.cpu_s` or `limits.wall_s`, or all runs together took too "
            "long."
        ),
        "A faster program; or a larger `limits.cpu_s`, `limits.wall_s` or `max_submission_s`.",
    )
    MEMORY_LIMIT = (
        "memory_limit",
        "The program needed more than `limits.memory_mb`.",
        "A program that needs less memory, or a larger `limits.memory_mb`.",
    )
    OUTPUT_LIMIT = (
        "output_limit",
        "The program wrote more than `limits.output_kb`, or too many files.",
        "A program that writes less, or a larger `limits.output_kb`.",
    )
    ANSWER_TOO_LARGE = (
        "answer_too_large",
        "The value that the program returned is too large to be compared.",
        "The program must return a smaller value.",
    )
    EXITED_EARLY = (
        "exited_early",
        "The program ended before it had answered the test, e.g. by `sys.exit`.",
        "The program must not exit while it is imported or called.",
    )


class VideoCause(Cause):
    """Causes of the video service.

    A score has one if it is below the threshold of a success.
    """

    RECORDING_FAULT = (
        "recording_fault",
        "The recording has frames that no policy makes, so it was not judged; see `suspicions`.",
        "A recorder that ends with the episode; or `--recording-faults`, which may trim or judge.",
    )
    JUDGE_SAYS_NO = (
        "judge_says_no",
        (
            f"The judge gives less than {SUCCESS_THRESHOLD}, or than the threshold of its "
            "calibration: it finds that the task was not done."
        ),
        (
            "A rollout that does the task. If this one did, look at the frames: the camera, "
            "`task_text`, `start_s` and `end_s`; or use another judge."
        ),
    )
    ANSWER_CUT = (
        "answer_cut",
        "The judge's answer reached its token limit before it stated a score.",
        "A larger `max_tokens` of the judge.",
    )
    REFUSED = (
        "refused",
        "The model, or a filter in front of it, refused to judge the clip.",
        "Read `model_output`; another prompt, or an endpoint without the filter.",
    )
    NO_REFERENCE = (
        "no_reference",
        "The judge `reference` has no labeled rollout of this task.",
        "Add one to its library, spell `task_text` as in the library, or use another judge.",
    )
    UNKNOWN_SCENE = (
        "unknown_scene",
        (
            "The first frame of the clip is unlike those of the judge's labeled rollouts: another "
            "camera, scene or light."
        ),
        (
            "Add labeled rollouts of this camera to its library, send the clip as that camera "
            "shows it (upright, not mirrored, not cropped), or use another judge."
        ),
    )
    TOO_FEW_FRAMES = (
        "too_few_frames",
        "The clip has fewer frames than the judge needs.",
        "A longer clip, or a larger `nframes`.",
    )
    NO_VERDICT = (
        "no_verdict",
        "The judge answered, and its answer has no score that can be read.",
        (
            "Read `model_output`, whose last line says what was not understood; change the prompt, "
            "`score_mode` or the judge."
        ),
    )


class ToolsCause(Cause):
    """Causes of the tools service."""

    NO_ANSWER = _NO_ANSWER
    MALFORMED_CALL = (
        "malformed_call",
        "A tool call is not one of its dialect, e.g. no JSON object with a name, or is not closed.",
        "The policy must write its calls as JSON objects in `<tool_call>`, or in another dialect.",
    )
    OTHER_DIALECT = (
        "other_dialect",
        "A tool call is in another dialect than `dialect` demands, or than the other calls.",
        "The policy must write its calls as its chat template does; or `dialect: auto`.",
    )
    SEVERAL_CALLS = (
        "several_calls",
        "With `as_executed`: a `<tool_call>` has several calls, which vLLM does not run.",
        "The policy must write each call in a `<tool_call>` of its own.",
    )
    NO_ARGUMENTS = (
        "no_arguments",
        "With `as_executed`: a call has no key `arguments`, so vLLM does not run it.",
        "The policy must write `arguments`, not `parameters`.",
    )
    CALL_IN_THOUGHT = (
        "call_in_thought",
        "With `as_executed`: a call is missing, and there is one in a thought, which is not run.",
        "The policy must end its thought before it calls.",
    )
    FORMAT = (
        "format",
        "The answer does not have the tags of the correct one, in order, with nothing around them.",
        (
            "The policy must write `<think>`, also if the correct answer has none, and "
            "`<tool_call>` and `<response>` as the correct answer does."
        ),
    )
    MISSING_CALL = (
        "missing_call",
        "The correct answer has further tool calls.",
        "The policy must make all calls of the correct answer.",
    )
    EXTRA_CALL = (
        "extra_call",
        "The answer has further tool calls than the correct one.",
        "The policy must make no other calls.",
    )
    WRONG_TOOL = (
        "wrong_tool",
        "The answer calls other tools than the correct one.",
        "The policy must call the tools of the correct answer.",
    )
    WRONG_ARGUMENTS = (
        "wrong_arguments",
        "The answer calls the right tools with other parameters.",
        "The policy must give the names and values of the correct answer's parameters.",
    )
    CALL_FORM = (
        "call_form",
        "The calls are right, in a form or order that `variant: toolrl` does not count.",
        "One JSON object per line, in the order of the correct answer; or `variant: strict`.",
    )
    SHORT_THINKING = (
        "short_thinking",
        "`<think>` is shorter than what `with_length` rewards in full.",
        "A longer `<think>`, or no `with_length`.",
    )
    TOOL_COST = (
        "tool_cost",
        "The answer is right; the price of the tools that it used is subtracted.",
        "Fewer or cheaper tools, or a larger budget of the run.",
    )


class AnswersCause(Cause):
    """Causes of the answers service."""

    NO_ANSWER = _NO_ANSWER
    NO_FINAL_ANSWER = (
        "no_final_answer",
        "The text has no answer that the rule `extract` finds, e.g. as it ends within a thought.",
        (
            "The policy must state its answer as the rule says. Look at the end of the text: a "
            "text that is cut off needs a larger token limit."
        ),
    )
    SEVERAL_ANSWERS = (
        "several_answers",
        "The text has several final answers that differ, so none of them counts.",
        "The policy must commit to one answer.",
    )
    UNREADABLE = (
        "unreadable",
        "The answer cannot be read in the form of the reference.",
        "The policy must write an answer of that form; or another `form`.",
    )
    TOO_COMPLEX = (
        "too_complex",
        (
            "The answer is longer than 10,000 characters, or to compare it takes too much time or "
            "memory."
        ),
        "The policy must simplify its answer.",
    )
    WRONG_UNIT = (
        "wrong_unit",
        "The unit of the answer is unknown, or is of another kind than that of the reference.",
        "The policy must give the unit of the reference, or one that it can be converted from.",
    )
    CHECKERS_DISAGREE = (
        "checkers_disagree",
        "One checker finds the answer right, and the other one wrong.",
        "Read `details`. If the answer is right, `--set accept=any` pays it.",
    )
    WRONG_ANSWER = ("wrong_answer", "The answer differs from the reference.", "The right answer.")


class EpisodeCause(Cause):
    """Causes of the episode service.

    A score has a cause if its reward, which is that before normalization, is below 1; and if the
    score is 0 as the rewards of its group are all equal.
    """

    NO_VARIANCE = (
        "no_variance",
        "All rewards of its group are equal, so a score that compares within the group is 0.",
        (
            "Prompts of which the policy solves some and not all, more samples per group, or a "
            "higher temperature."
        ),
    )
    TRUNCATED = (
        "truncated",
        "The episode did not succeed within `max_steps`.",
        "A policy that needs fewer steps, or a larger step limit.",
    )
    FAILED = ("failed", "The episode did not succeed.", "An episode with `success: true`.")
    JUDGE_SAYS_NO = (
        "judge_says_no",
        (
            f"`visual_success` is below {SUCCESS_THRESHOLD}: the judge of the video finds that the "
            "task was not done."
        ),
        "As for the video service's `judge_says_no`.",
    )
    LOW_REWARD = (
        "low_reward",
        (
            "The reward that the request brings (`episode_reward`, `step_rewards`, "
            "`reward_model_score`) is below 1."
        ),
        "A higher reward of the environment, the reward model, or another scale of it.",
    )
    NOT_FINISHED = (
        "not_finished",
        f"`visual_success` is at least {SUCCESS_THRESHOLD} and below 1.",
        "A rollout that shows the finished task until its end; many judges never give 1.",
    )
    STEPS_TAKEN = (
        "steps_taken",
        (
            "The episode succeeded; the steps that it took lower its efficiency or its discounted "
            "reward."
        ),
        "Fewer steps, or another kind of reward.",
    )
    LOW_OBJECTIVES = (
        "low_objectives",
        "The weighted sum of the objectives is below 1; `components` has each of them.",
        "Better objectives, or other `weights`.",
    )
    MASKED = (
        "masked",
        "The request says that the rollout has no valid outcome.",
        "A rollout without `masked`.",
    )
    VIDEO_ABSTAINED = (
        "video_abstained",
        "The judge of its video abstained.",
        "As for the causes of abstentions of the video service.",
    )
    ALONE = (
        "alone",
        "No other member of its group has a score to compare it with.",
        "Further members of the group with a score.",
    )
