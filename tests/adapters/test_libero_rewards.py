"""Episodes of several environments, scored by a real service while the environments go on."""

import math
import time
import weakref

import numpy as np
import pytest

from rewardfleet import Abstained, BackendFailed, DeadlineExceeded, InvalidRequest, Unavailable
from rewardfleet.adapters.libero import (
    EpisodeReward,
    LiberoRewards,
    MissingRewardError,
    episode_metrics,
)
from rewardfleet.adapters.libero import rewards as rewards_module
from rewardfleet.http import transport
from rewardfleet.wire.score import Status
from rewardfleet.wire.video import VideoScore
from rewardfleet_server.testing import wait_until

from ..conftest import table
from ..measure import Stopwatch
from ..tensors import Tensor
from .libero_envs import GatedJudge, SeeingJudge, gray, judged_by

TASKS = ["open the drawer", "turn on the stove", "put the bowl on the plate"]
NOWHERE = {"enable": True, "endpoint": "http://127.0.0.1:9"}


@pytest.fixture(autouse=True)
def _long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """`collect` must not end before the scores arrive if this process is paused."""
    monkeypatch.setattr(rewards_module, "_GRACE_SECONDS", 30.0)


@pytest.fixture
def service():
    judge = SeeingJudge()
    with judged_by(judge) as config:
        yield judge, config


def record(rewards: LiberoRewards, *levels: int, environments=None) -> None:
    rewards.record([*map(gray, levels)], environments or range(len(levels)))


def scored(rewards: LiberoRewards, *levels: int) -> list[EpisodeReward]:
    """Record a last frame in each environment, and wait for the scores."""
    record(rewards, *levels)
    rewards.finish()
    return rewards.collect(timeout=None)


def keys(arrived: list[EpisodeReward]) -> list[tuple[int, int, str]]:
    return sorted((each.environment, each.episode, each.status) for each in arrived)


def test_finished_environments_are_scored_and_others_go_on(service):
    judge, config = service
    config |= {"reward_coef": 5.0, "success_threshold": 0.9}
    with LiberoRewards(config, TASKS) as rewards:
        for level in (10, 20, 30):
            record(rewards, level, level + 1, level + 60)
        rewards.finish([0, 2])
        assert rewards.recording.tolist() == [False, True, False]
        arrived = sorted(rewards.collect(timeout=None), key=lambda each: each.environment)
        assert rewards.pending == 0 and rewards.collect() == []
        record(rewards, 99, environments=[1])
    found = [(each.environment, each.reward, each.score) for each in arrived]
    assert found == [(0, 0.0, 0.3), (2, 5.0, 0.9)]
    assert all(each.valid and each.status == "ok" and each.detail == "" for each in arrived)
    assert [each.task for each in arrived] == [TASKS[0], TASKS[2]]
    assert judge.clips == {TASKS[0]: [[10, 20, 30]], TASKS[2]: [[70, 80, 90]]}


def test_the_true_rate_of_the_frames_is_sent(service):
    judge, config = service
    with LiberoRewards({**config, "nframes": 4}, TASKS[:1], frame_rate=20) as rewards:
        for level in range(1, 62):
            record(rewards, level)
        rewards.finish()
        rewards.collect(timeout=None)
    assert judge.clips[TASKS[0]] == [[1, 21, 41, 61]], "a second apart"
    assert judge.rates[TASKS[0]] == [1.0]


def test_rewards_arrive_in_any_order_by_environment_and_episode_and_nothing_waits_for_them():
    judge = GatedJudge()
    with judged_by(judge) as config, LiberoRewards(config, TASKS) as rewards:
        record(rewards, 90, 90, 90)
        watch = Stopwatch()
        rewards.finish()
        assert rewards.collect() == []
        assert rewards.pending == 3
        assert rewards.collect(timeout=0.05) == []
        assert watch.seconds < 8, "no answer is released yet"
        rewards.reset([0], tasks=["close the drawer"])
        record(rewards, 40, environments=[0])
        rewards.finish([0])
        released = [TASKS[2], "close the drawer", TASKS[0], TASKS[1]]
        arrived = []
        for task in released:
            judge.released.add(task)
            count = len(arrived)
            while len(arrived) == count:
                arrived += rewards.collect(timeout=0.01)
        found = [(each.environment, each.episode, each.task) for each in arrived]
        assert found == [*zip([2, 0, 0, 1], [0, 1, 0, 0], released, strict=True)]
        assert [each.reward for each in arrived] == [1, 0, 1, 1]


@pytest.mark.slow
def test_finish_waits_while_too_many_are_pending_and_a_silent_service_times_out():
    """Every episode ends within the timeout, and `collect` does not hang."""
    judge = GatedJudge()
    with (
        judged_by(judge) as config,
        LiberoRewards({**config, "timeout": 0.2}, TASKS, max_pending=2) as rewards,
    ):
        record(rewards, 1, 2, 3)
        rewards._scorer.client._transport._worked.add("x")  # else it may blame the address
        watch, started = Stopwatch(), time.monotonic()
        rewards.finish()
        assert time.monotonic() - started > 0.15, "until the first ones timed out"
        assert rewards.pending <= 2
        arrived = rewards.collect(timeout=None)
        assert watch.seconds < 15
    assert keys(arrived) == [(index, 0, "error") for index in range(3)]
    assert all(isinstance(each.error, DeadlineExceeded) for each in arrived)


@pytest.mark.parametrize("abstention", ["null", "error"])
def test_an_abstention_is_counted_separately_and_has_the_fallback(abstention: str):
    """Also if the service answers it with an error."""
    with (
        judged_by(SeeingJudge(score=None), abstention=abstention) as config,
        LiberoRewards(config, TASKS[:1]) as rewards,
    ):
        (each,) = scored(rewards, 90)
    assert math.isnan(each.reward) and not each.valid and each.score is None
    assert each.status == "abstained"
    assert each.detail.startswith("environment 0, episode 0: judge fake abstained")
    assert each.answer.model_output if abstention == "null" else isinstance(each.error, Abstained)
    shares = {"reward/failed": 0.0, "reward/abstained": 1.0, "reward/cached": 0.0}
    assert episode_metrics([each]) == shares


def test_metrics_of_what_arrived_are_finite():
    answer = VideoScore(score=0.5, status=Status.OK, cached=True)
    arrived = [EpisodeReward(0, 0, "", 1.0, "ok", score=0.5, answer=answer)]
    statuses = ("error", "abstained", "discarded")
    arrived += [EpisodeReward(n, 0, "", math.nan, each) for n, each in enumerate(statuses, 1)]
    shares = dict.fromkeys(("reward/failed", "reward/abstained", "reward/cached"), 1 / 3)
    quartiles = {f"reward/p{at}": 0.5 for at in (0, 25, 50, 75, 100)}
    assert episode_metrics(arrived) == shares | quartiles
    assert episode_metrics(arrived[1:2]) == dict.fromkeys(shares, 0.0) | {"reward/failed": 1.0}
    assert episode_metrics(arrived[3:]) == {}


@pytest.mark.slow
def test_failures_have_the_fallback_and_one_warning(caplog, monkeypatch):
    monkeypatch.setattr(transport, "_RETRIES", 0)
    error = BackendFailed("out of memory")
    options = {"fallback_score": 0.2, "reward_coef": 5.0}
    with (
        judged_by(SeeingJudge(error=error)) as config,
        LiberoRewards({**config, **options}, TASKS) as rewards,
    ):
        arrived = scored(rewards, 90, 90, 90)
    assert keys(arrived) == [(index, 0, "error") for index in range(3)]
    assert [(each.reward, each.valid) for each in arrived] == [(1.0, False)] * 3
    assert all("out of memory" in each.detail for each in arrived)
    (warning,) = [each for each in caplog.records if each.name.startswith("rewardfleet.adapters")]
    assert "no reward for 3 of 3 episodes (3 error)" in warning.message
    assert "out of memory" in warning.message


def test_fail_on_request_error_raises_and_names_the_episode():
    with (
        judged_by(SeeingJudge(score=None)) as config,
        LiberoRewards({**config, "fail_on_request_error": True}, TASKS[:2]) as rewards,
    ):
        record(rewards, 90, 90)
        rewards.finish()
        raised = set()
        for _ in TASKS[:2]:
            with pytest.raises(MissingRewardError, match=r"environment \d, episode 0: ") as failure:
                rewards.collect(timeout=None)
            assert isinstance(failure.value.__cause__, Abstained)
            raised.add(failure.value.reward.environment)
        assert raised == {0, 1} and rewards.collect(timeout=None) == [], "each once"


def test_a_request_that_the_caller_must_correct_is_an_error_in_the_log(service, caplog):
    """It does not end the rollout either."""
    _, config = service
    config = {**config, "backend": "typo"}
    with LiberoRewards(config, TASKS[:1]) as rewards:
        (missing,) = scored(rewards, 90)
    assert math.isnan(missing.reward) and isinstance(missing.error, InvalidRequest)
    (line,) = [line for line in caplog.records if "no reward" in line.message]
    assert line.levelname == "ERROR" and "typo" in line.message


def test_a_reset_before_the_end_discards_the_frames_and_is_reported(service):
    judge, config = service
    with LiberoRewards(config, TASKS) as rewards:
        rewards.record([gray(11), gray(12), None])  # the last one is no image
        rewards.reset([1, 2])
        arrived = scored(rewards, 21, 22, 23)
    expected = [(0, 0, "ok"), (1, 0, "discarded"), (1, 1, "ok"), (2, 0, "discarded"), (2, 1, "ok")]
    assert keys(arrived) == expected
    details = [each.detail for each in arrived if each.status == "discarded"]
    assert details[0] == "environment 1, episode 0: reset after 1 frames, not finished"
    assert "environment 2, episode 0: frame 0: give an image" in details[1]
    assert judge.clips[TASKS[1]] == [[22]], "nothing of the discarded episode"


def test_a_reset_after_the_end_discards_nothing_and_frames_before_it_are_ignored(service):
    """Loops that step in chunks go on after an episode has ended."""
    judge, config = service
    with LiberoRewards(config, TASKS) as rewards:
        rewards.reset()
        rewards.reset()
        record(rewards, 1, 2, 3)
        rewards.finish()
        record(rewards, 99, 99, 99)
        rewards.reset()
        assert rewards.episode.tolist() == [1, 1, 1]
        arrived = [*rewards.collect(timeout=None), *scored(rewards, 11, 12, 13)]
        rewards.finish([0])  # without a reset: an error of the next episode
        (ended,) = rewards.collect(timeout=None)
    assert keys(arrived) == [(index, at, "ok") for index in range(3) for at in (0, 1)]
    assert sorted(judge.clips[TASKS[0]]) == [[1], [11]]
    assert keys([ended]) == [(0, 2, "error")]
    assert ended.detail.startswith("environment 0, episode 2: finished, but not reset")


def test_a_frame_that_cannot_be_used_fails_its_episode_only(service):
    _, config = service
    with LiberoRewards(config, TASKS) as rewards:
        record(rewards, 1, 2, 3)
        rewards.record([gray(1, size=40), None, gray(6)])
        arrived = scored(rewards, 7, 8, 9)
        assert keys(arrived) == [(0, 0, "error"), (1, 0, "error"), (2, 0, "ok")]
        details = [each.detail for each in arrived if not each.valid]
        size = "frame 1: the frame is 40x40, after frames of 32x32 in the same episode"
        assert details[0] == f"environment 0, episode 0: {size}"
        assert details[1].startswith("environment 1, episode 0: frame 1: give an image")
        rewards.reset()
        record(rewards, 1, 2, 3)
        rewards.finish([1])
        assert keys(rewards.collect(timeout=None)) == [(1, 1, "ok")], "the next one is scored"


def test_an_episode_without_frames_or_without_a_task_is_an_error(service):
    _, config = service
    with LiberoRewards(config, ["", None, TASKS[2]]) as rewards:
        record(rewards, 1, 2)
        rewards.finish()
        details = {each.environment: each.detail for each in rewards.collect(timeout=None)}
    assert all("task_text: " in details[index] for index in (0, 1))
    assert "no frames were recorded" in details[2]


def test_wrong_arguments_are_named():
    for arguments, message in table("libero_arguments"):
        with pytest.raises(ValueError, match=message):
            LiberoRewards(**{"config": NOWHERE, "tasks": TASKS, **arguments})
    indices = "environments: give different indices from 0 to 2, or a mask"
    with LiberoRewards(NOWHERE, TASKS) as rewards:
        for environments in ([3], [-1], [0, 0], [0.5], [True, False], [[0]], "0"):
            with pytest.raises(ValueError, match=indices):
                rewards.finish(environments)
        with pytest.raises(ValueError, match="frames: give 3, one per environment; not 2"):
            rewards.record([gray(1), gray(2)])
        for tasks in (TASKS, "open the drawer"):
            with pytest.raises(ValueError, match="tasks: give 1, one per environment"):
                rewards.reset([0], tasks=tasks)


def test_batches_and_tensors_of_images(service):
    """RLinf has tensors [N, H, W, 3], rotated by 180 degrees."""
    judge, config = service
    images = [gray(level) for level in (31, 32, 33)]
    for image in images:
        image[0, :16] = 0  # the level is at the right
    batch = np.stack([image[::-1, ::-1] for image in images])
    with LiberoRewards(config, TASKS, orientation="rotated") as rewards:
        rewards.record(Tensor(batch))
        rewards.finish(np.array([True, True, True]))
        rewards.collect(timeout=None)
    assert judge.clips == {task: [[31 + index]] for index, task in enumerate(TASKS)}


def test_close_ends_what_is_pending():
    judge = GatedJudge()
    with judged_by(judge) as config:
        rewards = LiberoRewards(config, TASKS)
        record(rewards, 1, 2, 3)
        rewards.finish()
        wait_until(lambda: rewards.pending == 3)
        rewards.close()
        arrived = rewards.collect(timeout=None)
        assert keys(arrived) == [(index, 0, "error") for index in range(3)]
        assert all(isinstance(each.error, Unavailable) for each in arrived)
        assert "closed before the score arrived" in arrived[0].detail
        rewards.reset()
        record(rewards, 1, 2, 3)
        with pytest.raises(RuntimeError, match="closed"):
            rewards.finish()
        rewards.close()


def test_replicas_share_the_work_and_a_dead_one_costs_no_reward():
    judges = [SeeingJudge(), SeeingJudge()]
    with judged_by(judges[0]) as first, judged_by(judges[1]) as second:
        urls = [first["endpoint"], second["endpoint"], "http://127.0.0.1:9"]
        config = {**first, "endpoint": urls}
        with LiberoRewards(config, [f"task {n}" for n in range(12)]) as rewards:
            arrived = scored(rewards, *[90] * 12)
    assert keys(arrived) == [(index, 0, "ok") for index in range(12)]
    assert all(judge.clips for judge in judges)


def test_frames_that_are_not_sent_are_not_in_memory_while_a_score_is_pending(monkeypatch):
    images = []

    def upright_image(*arguments):
        image = original(*arguments)
        images.append(weakref.ref(image))
        return image

    original = rewards_module.upright_image
    monkeypatch.setattr(rewards_module, "upright_image", upright_image)
    judge = GatedJudge()
    with judged_by(judge) as config, LiberoRewards({**config, "nframes": 1}, TASKS) as rewards:
        record(rewards, 1, 2, 3)
        record(rewards, 4, 5, 6)
        assert len(images) == 6 and all(image() is not None for image in images)
        rewards.finish()
        wait_until(lambda: sum(image() is not None for image in images) == 3)
        assert rewards.pending == 3
        judge.released.update(TASKS)
        assert len(rewards.collect(timeout=math.inf)) == 3
