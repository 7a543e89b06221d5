"""A rank of TRL's trainer with a budget; one is killed once, in its second step.

torchrun --nproc-per-node 4 tests/training/rank.py URL FOLDER
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

RUN, STEPS = "trl", 4
TRUTH = '<think>a</think>\n<tool_call>\n{"name": "f", "parameters": {}}\n</tool_call>'


def main(url: str, folder: Path) -> None:
    """Train, and report costs in each step."""
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint

    from rewardfleet import blocking
    from rewardfleet.adapters.trl import reward_function

    # A wheel of the environment has a package `tests`.
    sys.path.insert(0, str(Path(__file__).parent.parent / "third_party"))
    from trainers import random_trainer

    score = reward_function("tools", url, columns=["run"], on_failure="raise")
    fleet = blocking.RewardFleet(tools=url, attempt=os.environ["REWARDFLEET_ATTEMPT"])

    class Costs(TrainerCallback):
        def on_step_end(self, _arguments: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.global_step == 2 and os.environ["RANK"] == "1" and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if state.is_world_process_zero:
                # Another content in each attempt, as of answers that were sampled again.
                costs = [2.0 if died.exists() else 1.0]
                fleet.tools.update_budget(RUN, state.global_step - 1, costs, part="all")

    died = folder / "died"
    (folder / "run").mkdir(exist_ok=True)
    rows = [{"prompt": f"call {n}", "ground_truth": TRUTH, "run": RUN} for n in range(8)] * STEPS
    options = {"max_steps": STEPS, "per_device_train_batch_size": 2, "num_generations": 8}
    options |= {"save_strategy": "steps", "save_steps": 1, "report_to": []}
    # transformers 5 cannot load the state of an optimizer in several ranks on CPUs.
    options |= {"save_only_model": True}
    trainer = random_trainer(folder / "run", score, rows, **options)
    trainer.add_callback(Costs())
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder / "run"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
