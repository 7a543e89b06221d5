"""The functions of others that check answers, run beside ours by `make bench-answers`.

    python tests/bench/answers_peers.py NAME RESULTS

Writes a JSON list into RESULTS: whether NAME finds each labeled pair right. A function that raises,
or returns no verdict, does not. Its package must be in this interpreter's environment.
"""

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from answers_pairs import Pair, pairs

#: Whether a response is right by a reference.
Verify = Callable[[str, str], Any]


def math_verify() -> Verify:
    """As the page of the library has it: LaTeX stands between dollar signs."""
    from math_verify import parse, verify

    return lambda response, reference: verify(parse(in_dollars(reference)), parse(response))


def verl_math_verify() -> Verify:
    from verl.utils.reward_score.math_verify import compute_score

    return lambda response, reference: compute_score(response, final(reference))


def verl_math_dapo() -> Verify:
    """Its strict mode reads boxes; the other one, what follows `Answer:`."""
    from verl.utils.reward_score.math_dapo import compute_score

    def verify(response: str, reference: str) -> Any:
        is_boxed = "\\boxed" in response
        return compute_score(response, final(reference), strict_box_verify=is_boxed)["acc"]

    return verify


def verl_math() -> Verify:
    from verl.utils.reward_score.math_reward import compute_score

    return lambda response, reference: compute_score(response, final(reference))


def verl_prime_math() -> Verify:
    from verl.utils.reward_score.prime_math import compute_score

    return lambda response, reference: compute_score(response, final(reference))[0]


def verl_gsm8k() -> Verify:
    from verl.utils.reward_score.gsm8k import compute_score

    return lambda response, reference: compute_score(response, final(reference), method="flexible")


def trl() -> Verify:
    from trl.rewards import accuracy_reward

    return lambda response, reference: accuracy_reward(
        [[{"role": "assistant", "content": response}]], [in_dollars(reference)]
    )[0]


def nemo_gym() -> Verify:
    """Without the judge, and without a process for each answer."""
    from math_verify.metric import math_metric
    from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig
    from resources_servers.math_with_judge import app

    latex = (LatexExtractionConfig(),)
    metric = math_metric(latex, (ExprExtractionConfig(), LatexExtractionConfig()))
    return lambda response, reference: app._run_math_verify(metric, final(reference), response)[0]


PEERS = {
    "math-verify": math_verify,
    "verl math_verify": verl_math_verify,
    "verl math_dapo": verl_math_dapo,
    "verl math_reward": verl_math,
    "verl prime_math": verl_prime_math,
    "verl gsm8k, flexible": verl_gsm8k,
    "TRL accuracy_reward": trl,
    "NeMo Gym math_with_judge": nemo_gym,
}


def references(pair: Pair) -> list[str]:
    """Return the equally right references of a pair, as texts."""
    given = pair.get("reference", [])
    each = given if isinstance(given, list) else [given]
    return [json.dumps(one) if isinstance(one, dict) else str(one) for one in each]


def final(reference: str) -> str:
    """Return what the trainers' preparation of data leaves of a solution."""
    if "####" in reference:
        return reference.rpartition("####")[2].strip().replace(",", "")
    box = re.search(r".*\\boxed\s*\{(.*)\}", reference, re.DOTALL)
    return box[1] if box else reference


def in_dollars(reference: str) -> str:
    is_marked = "$" in reference or re.search(r"\\boxed|\\\(|\\\[", reference)
    return reference if is_marked else f"${reference}$"


def is_right(verify: Verify, pair: Pair) -> bool:
    for reference in references(pair):
        try:
            if float(verify(pair["response"], reference) or 0) > 0.5:
                return True
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
    return False


if __name__ == "__main__":
    logging.disable()
    check = PEERS[sys.argv[1]]()
    Path(sys.argv[2]).write_text(json.dumps([is_right(check, each) for each in pairs()]))
