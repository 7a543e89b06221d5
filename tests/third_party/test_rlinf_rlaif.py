"""RLinf-RLAIF's own environments, client and server, at the commit in sources.toml.

What is replaced: the simulator and its subprocesses, the writer of mp4 files if imageio is not
installed, and the model behind the server. The folder is that of the variable RLINF_RLAIF, or the
one of `make install-peers`. `make record-peers` writes what the original answers, which
tests/server/video/test_rlinf.py compares with where it is missing.
"""

import hashlib
import importlib.util
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from fastapi import FastAPI, Request

from rewardfleet.adapters.libero import LiberoRewards
from rewardfleet_server.testing import serving
from rewardfleet_server.up.settings import free_port

from ..running import running
from .peers import SOURCES
from .trainers import HERE, PEERS, ROOT, absent, bare, in_process

SOURCE = Path(os.environ.get("RLINF_RLAIF", PEERS / "rlinf_rlaif"))
SERVER = "vlm_reward/libero_reward_server.py"
COMMAND = (sys.executable, "-m", "rewardfleet_server")
RECORDED = HERE / "recorded" / "rlinf_rlaif.json"
PAGE = ROOT / "docs/trainers/rlinf.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SOURCE / SERVER).exists() or importlib.util.find_spec("torch") is None,
        reason="needs PyTorch, and RLINF_RLAIF or `make install-peers`",
    ),
]

#: What the model answers to task i; the simulator's success is that of `SUCCESSES`.
ANSWERS = ["85", "20", "100", "0", "I cannot tell.", "50", "49%", "no idea"]
SUCCESSES = [False, True, True, False, True, True, False, False]
STEPS = 20  #: of an episode

#: Answers that the prompts ask for, and others.
PARSED = [
    *map(str, range(2, 101)),
    *("0", "85%", "<think>40% then more</think><answer>85</answer>", "<answer> 7 </answer>"),
    *("I cannot tell.", "", "no idea", "<think>all of it</think><answer>none</answer>"),
]
LENGTHS, COUNTS = range(1, 513), (8, 16, 32)


def task(index: int) -> str:
    return f"put bowl {index:02} on the plate"


def in_peer(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function of JSON values in a process with the original's source."""
    return in_process(function, SOURCE)


@in_peer
def rollouts(edits: dict[str, Any], count: int, number: int = 1) -> Any:
    """Return the returns of a number of rollouts of `LiberoEnv`s, or why the run ended.

    Edits are of `reward_model` in examples/embodiment/config/env/libero_10.yaml.
    """
    libero_env = _libero_env()
    from omegaconf import OmegaConf

    OmegaConf.clear_resolvers()
    config = OmegaConf.load(SOURCE / "examples/embodiment/config/env/libero_10.yaml")
    config.merge_with({"reward_model": edits, "max_episode_steps": STEPS})
    config.video_cfg = {"save_video": False}
    env = libero_env.LiberoEnv(config, count, 0, 1)
    found = []
    for _ in range(number):
        env.is_start = True
        env.reset()
        env.task_descriptions = [task(index) for index in range(count)]  # it draws them
        returns = np.zeros(count)
        for _ in range(STEPS):
            try:
                _, rewards, *_ = env.step(np.zeros((count, 7)), auto_reset=False)
            except RuntimeError as error:
                return re.sub(r"body=.*", "…", str(error))
            except Exception as error:
                return type(error).__name__
            returns += rewards.numpy()
        found += returns.tolist()
    return found


def _libero_env() -> Any:
    """Import the original's environment, with a simulator of gray frames."""
    import cv2
    import gymnasium

    sys.modules["gym"] = gymnasium
    if importlib.util.find_spec("imageio") is None:

        @contextmanager
        def get_writer(path: str, fps: int) -> Iterator[Any]:
            frames: list[np.ndarray] = []
            yield SimpleNamespace(append_data=frames.append)
            size = frames[0].shape[1::-1]
            writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"mp4v"), fps, size)
            for frame in frames:
                writer.write(frame[..., ::-1])
            writer.release()

        bare("imageio.v2", get_writer=get_writer)
        bare("imageio", v2=sys.modules["imageio.v2"])
    absent("libero")
    bare("rlinf")
    sys.modules["rlinf.envs.libero.venv"] = SimpleNamespace(ReconfigureSubprocEnv=Simulator)
    from rlinf.envs.libero import libero_env

    libero_env.get_libero_path = lambda _: ""
    libero_env.get_benchmark_overridden = lambda _: lambda: SUITE
    return libero_env


#: A benchmark of one trial per task.
SUITE = SimpleNamespace(
    get_num_tasks=lambda: 64,
    get_task_init_states=lambda _: [0],
    get_task=lambda n: SimpleNamespace(problem_folder="", bddl_file="", language=task(n)),
)


class Simulator:
    """In place of the subprocesses with LIBERO's simulator."""

    def __init__(self, makers: list[Any]) -> None:
        self._count = len(makers)
        self._step = 0

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None

    def reset(self, **_: object) -> None:
        self._step = -15  # steps in which objects settle

    def step(self, actions: Any, _: Any = None) -> Any:
        self._step += 1
        image = np.full((64, 64, 3), 100 + self._step, np.uint8)
        seen = dict.fromkeys(("agentview_image", "robot0_eye_in_hand_image"), image)
        seen |= dict.fromkeys(("robot0_eef_pos", "robot0_gripper_qpos"), np.zeros(3))
        seen["robot0_eef_quat"] = np.array([0, 0, 0, 1.0])
        ended = np.full(len(actions), self._step == STEPS)
        done = ended & np.resize(SUCCESSES, len(actions))
        return [seen] * len(actions), np.zeros(len(actions)), done, [{}] * len(actions)


@in_peer
def selections() -> list[list[int]]:
    """Return the indices that the original client selects."""
    bare("rlinf")
    bare("rlinf.envs")
    bare("rlinf.envs.libero")
    from rlinf.envs.libero.vlm_reward_client import LiberoVLMRewardClient

    sample = LiberoVLMRewardClient._sample_frames
    return [sample(list(range(length)), count) for count in COUNTS for length in LENGTHS]


@contextmanager
def model(on_request: Callable[[int], None] = lambda _: None) -> Iterator[str]:
    """Serve a model that answers by the task in the prompt; yield its URL."""
    app, calls = FastAPI(), []
    app.get("/v1/models")(lambda: {"data": []})

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> dict[str, object]:
        text = json.dumps(await request.json())
        calls.append(text)
        on_request(len(calls))
        index = int(re.search(r"put bowl (\d\d)", text)[1])
        found = re.search(r"answer (\d+)", text)
        answer = PARSED[int(found[1])] if found else ANSWERS[index % 8]
        message = {"role": "assistant", "content": answer}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    with serving(app) as url:
        yield f"{url}/v1"


@contextmanager
def started(page: str, log: Path, *command: object) -> Iterator[tuple[Any, str]]:
    """Start a program at a free port; yield its process and its URL."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    with running([*command, "--port", port], f"{url}{page}", log=log) as process:
        yield process, url


def original(model_url: str, log: Path) -> Any:
    """Start the original server, with its own flags."""
    script = (sys.executable, HERE / "rlinf_rlaif_server.py", SOURCE / SERVER, model_url)
    return started("/health", log, *script, "--host", "127.0.0.1")


def ours(log: Path, *flags: str) -> Any:
    """Start the video service."""
    return started("/readyz", log, *COMMAND, "serve", "video", *flags)


@contextmanager
def two_replicas(kill: Callable[[int], None], folder: Path) -> Iterator[Any]:
    """Start two replicas; yield the process of the first, and their URLs."""
    with (
        model(kill) as model_url,
        ours(folder / "first", *judged_by(model_url)) as (process, first),
        ours(folder / "second", *judged_by(model_url)) as (_, second),
    ):
        yield process, first, second


def gateway_of(log: Path, *urls: str) -> Any:
    """Start the gateway of replicas of the video service."""
    replicas = [word for each in urls for word in ("--service", f"video={each}")]
    return started("/readyz", log, *COMMAND, "gateway", *replicas)


def edits(url: str, **others: object) -> dict[str, Any]:
    """Return the lines of the page that change the configuration."""
    (block,) = re.findall(r"```yaml\nreward_model:\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = yaml.safe_load(block)
    assert lines["endpoint"].startswith("http://127.0.0.1:18080/")
    endpoint = lines["endpoint"].replace("http://127.0.0.1:18080", url)
    return {**lines, "endpoint": endpoint, "temp_video_dir": tempfile.gettempdir(), **others}


def record(name: str, found: Any) -> Any:
    """Compare what the original answers with the recording, or write it; and return it."""
    recording = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if os.environ.get("RECORD"):
        recording |= {"commit": SOURCES["rlinf_rlaif"]["commit"], name: found}
        lines = [f"{json.dumps(key)}: {json.dumps(each)}" for key, each in recording.items()]
        RECORDED.write_text("{" + ",\n".join(lines) + "}\n")
    assert recording["commit"] == SOURCES["rlinf_rlaif"]["commit"], "run make record-peers"
    assert json.loads(json.dumps(found)) == recording[name]
    return found


def judged_by(model_url: str) -> list[str]:
    """Return the flags of the page, with a model behind an endpoint in place of vLLM."""
    judge = ("--backend", "openai", "--openai-url", model_url, "--openai-model", "any")
    place = ("--profile", "rlinf-rlaif", "--abstention", "0", "--video-root", tempfile.gettempdir())
    return [*place, *judge]


def test_with_the_edits_of_the_page_episodes_get_the_rewards_of_the_original(tmp_path: Path):
    with model() as model_url, original(model_url, tmp_path / "log") as (_, url):
        theirs = rollouts({"enable": True, "endpoint": f"{url}/score"}, 8)
    record("returns", theirs)
    assert theirs == [5.0, 0.0, 5.0, 0.0, 0.0, 5.0, 0.0, 0.0]
    with model() as model_url, ours(tmp_path / "log", *judged_by(model_url)) as (_, url):
        assert rollouts(edits(url, backend=None), 8) == theirs
        assert 'replaced_abstentions_total{backend="openai"} 2.0' in metrics(url)
        endpoint = f"{url}/rlinf"  # without /score
        assert rollouts(edits(url, backend=None, endpoint=endpoint), 8) == theirs


def metrics(url: str) -> str:
    return httpx.get(f"{url}/metrics", trust_env=False).text


def test_an_abstention_and_a_failure_without_the_switch_are_the_simulators_success(tmp_path: Path):
    simulators = [5.0 * each for each in SUCCESSES]
    flags = "--video-root", tempfile.gettempdir()
    by_default = {"enable": True}
    with ours(tmp_path / "a") as (_, url):  # the judge qwen2_5_vl_vllm is not loaded
        assert rollouts({**by_default, "endpoint": f"{url}/score"}, 8) == simulators
        named = rollouts({**by_default, "endpoint": f"{url}/score", "backend": None}, 8)
        assert named == simulators  # paths are refused
        found = rollouts(edits(url, backend=None), 8)
        assert found.startswith("Reward request failed with status_code=404")
    loud = [line for line in (tmp_path / "a").read_text().splitlines() if "ARE REFUSED" in line]
    named = [re.search("--[a-z-]+", line)[0] for line in loud]
    assert named == ["--backend", "--video-root", "--abstention"]
    with ours(tmp_path / "b", *flags) as (_, url):  # the judge knows no such task
        unknown = {**by_default, "endpoint": f"{url}/score", "backend": None}
        assert rollouts(unknown, 8) == simulators
        assert "cast failed" in rollouts({**unknown, "fail_on_request_error": True}, 8)


def test_the_figures_of_the_original(tmp_path: Path):
    # The file is not read, as the libraries of the model would do that.
    body = {"video_path": str(tmp_path / "log"), "nframes": 16, "max_pixels": 200704}
    texts = [f"{task(0)}; answer {index}" for index in range(len(PARSED))]
    bad = [{"video_path": "/no such file"}, {"backend": "none"}, {"task_text": ""}]
    bad = [{**body, "task_text": "a", **each} for each in bad]
    with (
        model() as model_url,
        original(model_url, tmp_path / "log") as (_, url),
        httpx.Client(base_url=url, trust_env=False, timeout=60) as client,
    ):
        answers = [client.post("/score", json={**body, "task_text": each}) for each in texts]
        record("refused", [client.post("/score", json=each).status_code for each in bad])
        record("health", client.get("/health").json())
    scores = [each.json()["score"] for each in answers]
    record("scores", [[*each] for each in zip(PARSED, scores, strict=True)])
    record("answer", answers[0].json())
    found = selections()
    digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()
    record("selections", {"sha256": digest, "131 of 16": found[COUNTS.index(16) * 512 + 130]})


def test_rewards_when_the_service_is_killed_in_a_rollout(tmp_path: Path):
    """Two rollouts of 16 environments; the server, or one of two, is killed in the first one."""
    right = [5.0 * (ANSWERS[index % 8] in {"85", "100", "50"}) for index in range(16)] * 2
    simulators = [5.0 * SUCCESSES[index % 8] for index in range(16)] * 2
    victims: list[Callable[[], None]] = []

    def kill(calls: int) -> None:
        if calls == 8:
            victims[0]()

    for raises in (False, True):
        with model(kill) as model_url, original(model_url, tmp_path / "log") as (process, url):
            victims[:] = [process.kill]
            given = {"enable": True, "endpoint": f"{url}/score", "fail_on_request_error": raises}
            found = rollouts(given, 16, 2)
        if raises:
            assert found == "ConnectionError"
            continue
        assert found[:7] == right[:7] and found[7:] == simulators[7:]
        assert sum(map(float.__ne__, found, right)) == 9  # of the 25 that the simulator replaces
    with two_replicas(kill, tmp_path) as (process, *urls):
        victims[0] = process.kill
        with gateway_of(tmp_path / "gateway", *urls) as (_, gateway):
            found = rollouts(edits(f"{gateway}/video", backend=None), 16, 2)
    assert found == right
    with two_replicas(kill, tmp_path) as (process, *urls):
        victims[0] = process.kill
        config = {"enable": True, "reward_coef": 5.0, "endpoint": urls}
        tasks = [task(index) for index in range(16)]
        scored = []
        with LiberoRewards(config, tasks, orientation="upright") as rewards:
            for first in (0, 16):
                for _ in range(STEPS):
                    rewards.record([np.full((64, 64, 3), first + n, np.uint8) for n in range(16)])
                rewards.finish()
                scored += sorted(rewards.collect(timeout=None), key=lambda each: each.environment)
                rewards.reset()
    assert [each.status for each in scored if each.status != "ok"] == ["abstained"] * 8
    assert all(each.reward == right[i] for i, each in enumerate(scored) if each.status == "ok")
