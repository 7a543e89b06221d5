"""A server on loopback with SandboxFusion's interface, which can be made to misbehave.

It runs programs as SandboxFusion does without isolation: as a process of this user, in a folder of
its own, with truncated output. Only for the programs in these tests.
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

#: Bytes that SandboxFusion returns of an output of 300 kB, as measured.
TRUNCATED_BYTES = 219_264


class FusionServer:
    def __init__(self) -> None:
        self.url = ""
        #: Returns a response, raises or hangs, instead of running the program.
        self.misbehave: Callable[[], Any] | None = None
        self.misbehave_times = 10**9  #: how many requests it handles
        self.returns_files = True
        self.requests: list[dict[str, Any]] = []  #: the bodies of all requests
        self.max_concurrent = 0  #: the largest number of requests at the same time
        self._concurrent = 0

    async def run_code(self, request: Request) -> Response:
        self._concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self._concurrent)
        try:
            return await self._respond(await request.json())
        finally:
            self._concurrent -= 1

    async def _respond(self, body: dict[str, Any]) -> Response:
        self.requests.append(body)
        if self.misbehave is not None and self.misbehave_times > 0:
            self.misbehave_times -= 1
            response = self.misbehave()
            return await response if asyncio.iscoroutine(response) else response
        with tempfile.TemporaryDirectory() as folder:
            return JSONResponse(await self._run(body, Path(folder)))

    async def _run(self, body: dict[str, Any], folder: Path) -> dict[str, Any]:
        for name, content in body["files"].items():
            (folder / name).write_bytes(base64.b64decode(content))
        (folder / "tmp.py").write_text(body["code"])
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen([sys.executable, "tmp.py"], cwd=folder, **pipes)
        started = time.monotonic()
        stdin, seconds = (body["stdin"] or "").encode(), body["run_timeout"]
        try:
            out, err, is_late = await asyncio.to_thread(_communicate, process, stdin, seconds)
        finally:
            process.kill()  # also if the caller has disconnected
        code = None if is_late else process.returncode
        names = body["fetch_files"] if self.returns_files else []
        files = {name: folder / name for name in names if (folder / name).is_file()}
        return {
            "status": "Success" if code == 0 else "Failed",
            "message": "",
            "compile_result": None,
            "run_result": {
                "status": "TimeLimitExceeded" if is_late else "Finished",
                "return_code": code,
                "execution_time": time.monotonic() - started,
                "stdout": out[:TRUNCATED_BYTES].decode(),
                "stderr": err[:TRUNCATED_BYTES].decode(),
            },
            "executor_pod_name": None,
            "files": {n: base64.b64encode(f.read_bytes()).decode() for n, f in files.items()},
        }


def _communicate(
    process: subprocess.Popen[bytes], stdin: bytes, seconds: float
) -> tuple[bytes, bytes, bool]:
    try:
        return *process.communicate(stdin, seconds), False
    except subprocess.TimeoutExpired:
        process.kill()
        return *process.communicate(), True


@contextmanager
def fusion_server() -> Iterator[FusionServer]:
    server, app = FusionServer(), FastAPI()
    app.post("/run_code")(server.run_code)
    with serving(app) as url:
        server.url = url
        yield server
