"""A server on loopback that answers in SandboxFusion's shapes, and misbehaves in its ways.

It runs what it is sent as SandboxFusion does without isolation: as a process of this user, in a
folder of its own, of whose output it reads what its pipes hold. The tests' own programs only.
"""

import asyncio
import base64
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from rewardfleet_server.testing import serving

#: What SandboxFusion returns of 300 kB, by our own measurement.
CUT = 219_264


class FusionServer:
    """Attributes to be set by tests: how to misbehave, and how often."""

    def __init__(self) -> None:
        self.url = ""
        self.misbehave: Callable[[], Any] | None = None  #: gives a response, or raises, or hangs
        self.times = 10**9  #: how many requests are treated so
        self.keeps_files = True
        self.seen: list[dict[str, Any]] = []
        self.at_once = 0
        self.most_at_once = 0

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/run_code")
        async def run_code(request: Request) -> Response:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                return await self._answer(await request.json())
            finally:
                self.at_once -= 1

        return app

    async def _answer(self, asked: dict[str, Any]) -> Response:
        self.seen.append(asked)
        if self.misbehave is not None and self.times > 0:
            self.times -= 1
            answer = self.misbehave()
            return await answer if asyncio.iscoroutine(answer) else answer
        with tempfile.TemporaryDirectory() as folder:
            return JSONResponse(await self._run(asked, Path(folder)))

    async def _run(self, asked: dict[str, Any], folder: Path) -> dict[str, Any]:
        for name, content in asked["files"].items():
            (folder / name).write_bytes(base64.b64decode(content))
        (folder / "tmp.py").write_text(asked["code"])
        process = subprocess.Popen(
            [sys.executable, "tmp.py"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started = time.monotonic()
        given, seconds = (asked["stdin"] or "").encode(), asked["run_timeout"]
        try:
            out, err, is_late = await asyncio.to_thread(_communicate, process, given, seconds)
        finally:
            process.kill()  # a caller who has left ends it here
        result = {"status": "TimeLimitExceeded" if is_late else "Finished"}
        result["return_code"] = None if is_late else process.returncode
        result |= {
            "execution_time": time.monotonic() - started,
            "stdout": out[:CUT].decode(),
            "stderr": err[:CUT].decode(),
        }
        good = result["status"] == "Finished" and result["return_code"] == 0
        return {
            "status": "Success" if good else "Failed",
            "message": "",
            "compile_result": None,
            "run_result": result,
            "executor_pod_name": None,
            "files": self._fetched(asked["fetch_files"], folder) if self.keeps_files else {},
        }

    @staticmethod
    def _fetched(names: list[str], folder: Path) -> dict[str, str]:
        return {
            name: base64.b64encode((folder / name).read_bytes()).decode()
            for name in names
            if (folder / name).is_file()
        }


def _communicate(
    process: subprocess.Popen[bytes], given: bytes, seconds: float
) -> tuple[bytes, bytes, bool]:
    try:
        return *process.communicate(given, seconds), False
    except subprocess.TimeoutExpired:
        process.kill()
        return *process.communicate(), True


@contextmanager
def fusion_server() -> Iterator[FusionServer]:
    server = FusionServer()
    with serving(server.app()) as url:
        server.url = url
        yield server
