"""`make bench-sample-tables`: the CPU time that tables of samples add to a training step.

A step has 64 samples: programs, or clips of 16 frames. Measured are the thread that trains, and the
one that makes and logs the tables, with each tracker in turn. Exits with 1 if one of these needs
more than 1% of a step of one second.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import av
import numpy as np

from rewardfleet import CodeScore, SampleTables, VideoScore, code_request, video_request
from rewardfleet.score_log.of_client import ClientLog
from rewardfleet_server.testing import wait_until

STEPS, SAMPLES = 12, 64
LIMIT_MS = 10.0
VIDEOS = Path(__file__).parent.parent / "data" / "libero" / "videos"
TRACKERS = ("none", "wandb", "mlflow")
TESTS = {"kind": "stdio", "cases": [{"stdin": str(n), "stdout": str(n)} for n in range(20)]}
PROGRAM = "def f(x):\n" + "".join(f"    x = x + {n}\n" for n in range(60)) + "print(f(1))\n"


def scored(service: str) -> tuple[list[Any], list[Any]]:
    values = np.random.default_rng(0).random(SAMPLES).tolist()
    if service == "code":
        requests = [code_request(f"{PROGRAM}#{n}", TESTS) for n in range(SAMPLES)]
        return requests, [CodeScore(score=each, status="ok", code=PROGRAM) for each in values]
    with av.open(str(min(VIDEOS.glob("*success*.mp4")))) as video:
        frames = np.stack([each.to_ndarray(format="rgb24") for each in video.decode(video=0)][:16])
    clips = [video_request("put it away", frames) for _ in range(SAMPLES)]
    return clips, [VideoScore(score=each, status="ok", model_output="done") for each in values]


def begin(tracker: str, folder: str) -> SampleTables:
    os.environ |= {"WANDB_DATA_DIR": folder}
    os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    if tracker == "wandb":
        import wandb

        wandb.init(mode="offline", dir=folder, settings={"console": "off", "silent": True})
    elif tracker == "mlflow":
        import mlflow

        mlflow.set_tracking_uri(Path(folder, "runs").as_uri())
        mlflow.start_run()
    return SampleTables()


def measure(tracker: str, service: str) -> int:
    """Print the milliseconds of each thread per step, as medians after the first steps."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # in use until the end
        tables = begin(tracker, folder)
        log = ClientLog([tables], service, None)
        requests, answers = scored(service)
        trains, logs = [], []
        for _ in range(STEPS):
            started = time.thread_time()
            log.add(requests, answers)
            trains.append(1e3 * (time.thread_time() - started))
            assert tables._thread and tables._thread.ident
            clock = time.pthread_getcpuclockid(tables._thread.ident)
            wait_until(lambda: not tables._items)
            logs.append(1e3 * time.clock_gettime(clock))
            if run := getattr(sys.modules.get("wandb"), "run", None):
                run.log({"loss": 0.0})  # as trainers do at the end of a step
        assert not any(tables.dropped.values()), tables.dropped
        train = statistics.median(trains[2:])
        thread = statistics.median(np.diff(logs)[1:])
        print(f"{tracker:12} {service:6} {train:10.2f} ms {thread:10.1f} ms", file=sys.stderr)
    os._exit(int(max(train, thread) > LIMIT_MS))  # without what trackers do at the end


def main() -> int:
    print("tracker      scores   that trains   that logs", flush=True)
    done = [
        subprocess.run(
            [sys.executable, __file__, tracker, service], check=False, stdout=subprocess.DEVNULL
        )
        for service in ("code", "video")
        for tracker in TRACKERS
    ]
    return int(any(each.returncode for each in done))


if __name__ == "__main__":
    sys.exit(measure(*sys.argv[1:]) if sys.argv[1:] else main())
