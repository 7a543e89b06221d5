"""The `reward_func` for OpenRLHF, called as the single-turn executor of OpenRLHF 0.11.2 does."""

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rewardfleet import InvalidRequest
from rewardfleet.wire.causes import CodeCause

from ..programs import RIGHT as SUM
from .conftest import ECHO, TESTS, UNREACHABLE, requests_to

torch = pytest.importorskip("torch")

LABEL = json.dumps(TESTS)
PROMPT = "<|im_start|>user\nAdd numbers, as in\n```python\nprint(1 + 2)\n```\n<|im_end|>\n"

FILE = """
from rewardfleet.adapters.openrlhf import reward_function

reward_func = reward_function("code", {url!r}, **{options!r})
"""


@pytest.fixture
def load(tmp_path: Path):
    """Load a user's file as the executor does."""

    def load(url: str, **options: object):
        path = tmp_path / "reward.py"
        path.write_text(FILE.format(url=url, options=options))
        spec = importlib.util.spec_from_file_location("reward_func", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.reward_func

    return load


def rewards(function, *responses: str, label: object = LABEL, end: str = "<|im_end|>"):
    """Make one call per sample, in threads; return the rewards as OpenRLHF reads them."""

    def score(response: str) -> float:
        info = function([f"{PROMPT}{response}{end}"], [PROMPT], [label])
        assert torch.equal(info["rewards"], info["scores"])
        return info["rewards"].item()

    with ThreadPoolExecutor(40) as threads:
        return [*threads.map(score, responses)]


def test_what_follows_the_prompt_is_the_program(load, code_url: str):
    function = load(code_url)
    assert rewards(function, SUM, ECHO, "", "Hm.", "\0") == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert rewards(function, SUM, end="<eos><pad><pad>") == [1.0]
    assert rewards(function, SUM, label={"inputs": ["1 2\n"], "outputs": ["3\n"]}) == [1.0]


def test_concurrent_calls_share_requests(load, code_url: str):
    before = requests_to(code_url)
    function = load(code_url, coalesce_s=0.2)  # a busy machine does not call within the default
    assert rewards(function, *[SUM, ECHO] * 20) == [1.0, 0.5] * 20
    assert 0 < requests_to(code_url) - before < 20


def test_it_reports_to_the_log_of_the_trainer(load, code_url: str, lost_url: str):
    """OpenRLHF logs the first element of each tensor in `extra_logs`."""
    sample = ([f"{PROMPT}{ECHO}"], [PROMPT], [LABEL])
    logs = load(code_url)(*sample)["extra_logs"]
    causes = {f"reward/cause/{each}" for each in CodeCause}
    assert set(logs) == {"reward/failed", "reward/abstained", "reward/cached"} | causes
    assert [logs[name].tolist() for name in causes].count([1.0]) == 1
    assert logs["reward/cause/wrong_answer"].tolist() == [1.0]
    assert logs["reward/failed"].tolist() == logs["reward/abstained"].tolist() == [0.0]
    dead = load(lost_url, timeout_s=0.3, on_failure=-1.0)
    logs = dead(*sample)["extra_logs"]
    assert logs["reward/failed"].tolist() == [1.0]
    assert not any(logs[name].item() for name in causes)


def test_a_failure_is_raised_and_shown_because_openrlhf_hides_it(
    load, code_url: str, lost_url: str, caplog
):
    with pytest.raises(UNREACHABLE):
        rewards(load(lost_url, timeout_s=0.3), SUM)
    assert "no reward: " in caplog.messages[-1]
    assert rewards(load(lost_url, timeout_s=0.3, on_failure=-1.0), SUM) == [-1.0]
    with pytest.raises(InvalidRequest, match="does not begin with its prompt"):
        load(code_url)(["something else"], [PROMPT], [LABEL])
