"""Let Harbor verify a task on this machine: harbor_verifier.py TASK ROOT, with Python 3.12.

The folder ROOT is the root of the task's environment. The output is Harbor's result as JSON, or
the name of its error.
"""

import asyncio
import json
import re
import shutil
import sys
from pathlib import Path

from harbor.environments.base import ExecResult
from harbor.models.task.config import TaskOS
from harbor.models.task.task import Task
from harbor.models.trial.paths import TrialPaths
from harbor.verifier.verifier import Verifier


class Environment:
    """What the verifier needs of an environment; paths in commands are those below the root."""

    os = TaskOS.LINUX

    def __init__(self, root: Path) -> None:
        self._root = root

    def _below_root(self, text: str) -> str:
        return re.sub(r"(?<![\w/])/(?=(app|logs|tests)/)", f"{self._root}/", text)

    async def exec(self, command: str, **_: object) -> ExecResult:
        process = await asyncio.create_subprocess_shell(self._below_root(command))
        return ExecResult(return_code=await process.wait())

    async def upload_dir(self, source_dir: Path, target_dir: str) -> None:
        target = self._root / target_dir.strip("/")
        shutil.copytree(source_dir, target)
        script = target / "test.sh"
        script.write_text(self._below_root(script.read_text()))

    def is_path_mounted(self, *_: object) -> bool:
        return True  # the folder of the reward is that of the trial


async def main(task: Path, root: Path) -> dict[str, object]:
    environment = Environment(root)
    verifier = Verifier(Task(task), TrialPaths(root / "logs"), environment)
    try:
        return (await verifier.verify()).model_dump()
    except Exception as error:
        return {"error": type(error).__name__}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*map(Path, sys.argv[1:])))))
