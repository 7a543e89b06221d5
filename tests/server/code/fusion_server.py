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
    """The server.

    Attributes:
        url: Its base URL.
        misbehave: Returns a response, raises or hangs, instead of running the program.
        misbehave_times: How many requests `misbehave` handles.
        returns_files: Whether requested files are returned.
        requests: The bodies of all requests.
        max_concurrent: The largest number of requests at the same time.
    """

    def __init__(self) -> None:
        self.url = ""
        self.misbehave: Callable[[], Any] | None = None
        self.misbehave_times = 10**9
        self.returns_files = True
        self.requests: list[dict[str, Any]] = []
        self.max_concurrent = 0
        self._concurrent = 0

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/run_code")
        async def run_code(request: Request) -> Response:
            self._concurrent += 1
            self.max_concurrent = max(self.max_concurrent, self._concurrent)
            try:
                return await self._respond(await request.json())
            finally:
                self._concurrent -= 1

        return app

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
        process = subprocess.Popen(
            [sys.executable, "tmp.py"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started = time.monotonic()
        stdin, seconds = (body["stdin"] or "").encode(), body["run_timeout"]
        try:
            out, err, is_late = await asyncio.to_thread(_communicate, process, stdin, seconds)
        finally:
            process.kill()  # also if the caller has disconnected
        result = {"status": "TimeLimitExceeded" if is_late else "Finished"}
        result["return_code"] = None if is_late else process.returncode
        result |= {
            "execution_time": time.monotonic() - started,
            "stdout": out[:TRUNCATED_BYTES].decode(),
            "stderr": err[:TRUNCATED_BYTES].decode(),
        }
        is_success = result["status"] == "Finished" and result["return_code"] == 0
        return {
            "status": "Success" if is_success else "Failed",
            "message": "",
            "compile_result": None,
            "run_result": result,
            "executor_pod_name": None,
            "files": self._fetched(body["fetch_files"], folder) if self.returns_files else {},
        }

    @staticmethod
    def _fetched(names: list[str], folder: Path) -> dict[str, str]:
        return {
            name: base64.b64encode((folder / name).read_bytes()).decode()
            for name in names
            if (folder / name).is_file()
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
    server = FusionServer()
    with serving(server.app()) as url:
        server.url = url
        yield server
