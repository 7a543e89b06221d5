"""The published client of SandboxFusion, 0.3.7: rewards of `/run_code` and `/submit`."""

import pytest
from sandbox_fusion import RunCodeRequest, SubmitRequest, run_code, submit, submit_safe

from ..programs import CASES, RIGHT, TEXTS


def submission(completion: str) -> SubmitRequest:
    config = {"dataset_type": "CommonOJDataset", "language": "python"}
    provided = {"provided_data": {"test": CASES}}
    return SubmitRequest(dataset="any", id=1, completion=completion, config=config | provided)


@pytest.mark.slow
def test_programs_run_and_submissions_are_accepted_if_they_are_right(code_url: str):
    answer = run_code(RunCodeRequest(code="print(input())", stdin="1", language="python"), code_url)
    assert (answer.status, answer.run_result.stdout) == ("Success", "1\n")
    # Like SandboxFusion, this route leaves special tokens where they are.
    rewards = {text: reward for text, reward in TEXTS.items() if "<|im_end|>" not in text}
    accepted = [submit(submission(text), code_url).accepted for text in rewards]
    assert accepted == [reward == 1.0 for reward in rewards.values()]


def test_without_a_service_only_submit_safe_takes_a_right_program_for_a_wrong_one(dead_url: str):
    request = RunCodeRequest(code="print(1)", language="python")
    with pytest.raises(OSError, match="refused"):
        run_code(request, dead_url, max_attempts=1)
    with pytest.raises(OSError, match="refused"):
        submit(submission(RIGHT), dead_url, max_attempts=1)
    assert submit_safe(submission(RIGHT), dead_url, max_attempts=1).accepted is False
