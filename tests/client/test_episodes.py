"""The arithmetic of episodes: formulas, ranges, and what holds whatever the numbers."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rewardfleet import EpisodeOptions, EpisodeRequest
from rewardfleet.episodes import (
    Grouping,
    Running,
    Schedule,
    Trajectories,
    all_equal,
    by_length,
    clusters,
    commanded_path,
    discounted,
    dtw_distances,
    efficiency,
    energy,
    hybrid,
    majority,
    measure,
    most_diverse,
    normalise,
    path_length,
    resampled,
    resampled_distances,
    settle,
    shaping,
    signal_of_diversity,
    signal_of_success,
    smoothness,
    spread,
    success,
    visual,
)
from rewardfleet.episodes.rewards import EFFICIENCY
from rewardfleet.wire.errors import InvalidRequest

SHARES = arrays(float, st.integers(1, 20), elements=st.floats(0, 1))
NUMBERS = st.floats(-1e3, 1e3)
FORMS = sorted(EFFICIENCY)


def test_efficiency_is_the_seeds():
    assert efficiency([1, 1, 0], [100, 500, 10], 500) == pytest.approx([0.8333, 0.5, 0], abs=1e-4)
    assert efficiency([1, 1], [75, 800], [75, 800]).tolist() == [0.5, 0.5], "each its own limit"
    assert efficiency([1], [0], [500]).tolist() == [1.0]
    assert efficiency([1, 1], [100, 200], 500, "group_best", best=0.2).tolist() == [1.0, 0.5]


@given(SHARES, st.sampled_from(FORMS))
def test_efficiency_falls_with_steps_and_success_is_worth_more_than_failure(
    shares: np.ndarray, form: str
):
    shares = np.sort(shares)
    worth = efficiency(np.ones_like(shares), shares, 1.0, form, best=shares.min())
    assert ((worth > 0) & (worth <= 1)).all() or form == "group_best"
    assert (np.diff(worth) <= 1e-12).all()
    assert (efficiency(np.zeros_like(shares), shares, 1.0, form, best=0.0) == 0).all()


def test_other_forms_spread_wider_than_the_seeds():
    spans = {form: np.ptp(efficiency([1, 1], [1, 500], 500, form, best=1 / 500)) for form in FORMS}
    assert all(spans[form] > 0.85 for form in set(FORMS) - {"reciprocal"})
    assert spans["reciprocal"] < 0.5


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: efficiency([1], [-1], [5]), "steps"),
        (lambda: efficiency([1], [6], [5]), "steps"),
        (lambda: efficiency([1], [0], [0]), "max_steps"),
        (lambda: success([0.5]), "0 or 1"),
        (lambda: by_length([1.0, 2.0], [3, 0]), r"entry 1"),
        (lambda: visual([1], [1.5]), "visual_success"),
        (lambda: hybrid([], 1.0), "step"),
        (lambda: discounted([1], [-1], 0.9), "steps"),
        (lambda: spread(0), "n:"),
        (lambda: normalise([1.0], Grouping([0], 1), by_deviation=True), "two members"),
    ],
)
def test_what_is_impossible_is_an_error(call, said: str):
    with pytest.raises(ValueError, match=said):
        call()


@given(arrays(float, st.integers(1, 20), elements=NUMBERS), st.floats(0, 1))
def test_shaping_leaves_the_best_policy_the_best(progress: np.ndarray, gamma: float):
    """Discounted, it adds up to minus the first potential, whatever comes between."""
    added = shaping(progress, gamma)
    discounts = gamma ** np.arange(len(progress))
    assert (discounts * added).sum() == pytest.approx(-progress[0], abs=1e-6)


def test_steps_and_terminal():
    assert hybrid([1, 2, 3], 10).tolist() == [1, 2, 13]
    assert discounted([8.0, 8.0, 8.0], [0, 1, 4], 0.5).tolist() == [8, 8, 1]
    assert by_length([6.0], [3]).tolist() == [2]


@given(st.lists(arrays(float, st.integers(0, 9), elements=NUMBERS), min_size=1, max_size=5))
def test_a_running_mean_is_that_of_all_at_once(batches: list[np.ndarray]):
    running = Running()
    for rewards in batches:
        running = running.with_batch(rewards)
    together = np.concatenate(batches)
    assert running.count == len(together)
    if len(together):
        assert running.mean == pytest.approx(together.mean(), abs=1e-6)
        assert running.variance == pytest.approx(together.var(), rel=1e-6, abs=1e-6)


GROUPS = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=25)


@given(GROUPS, st.randoms())
def test_groups_are_reckoned_as_one_by_one(names: list[str | None], random):
    values = np.array([random.uniform(-5, 5) for _ in names])
    grouping, known = Grouping.by_name(names)
    assert known == list(dict.fromkeys(name for name in names if name is not None))
    for number, name in enumerate(known):
        own = values[[each == name for each in names]]
        assert grouping.mean(values)[number] == pytest.approx(own.mean())
        assert grouping.lowest(values)[number] == own.min()
        if len(own) > 1:
            assert grouping.deviation(values)[number] == pytest.approx(own.std(ddof=1))
        assert all_equal(values, grouping, 1.0)[number] == (np.ptp(own) <= 1.0)
    seen = [members for alike in grouping.alike() for group in alike for members in group]
    assert sorted(seen) == [i for i, name in enumerate(names) if name is not None]


@given(arrays(float, (4, 3), elements=NUMBERS))
def test_normalised_groups_have_mean_zero(rewards: np.ndarray):
    grouping = Grouping(np.repeat(np.arange(4), 3), 4)
    for by_deviation in (False, True):
        scaled = normalise(rewards.ravel(), grouping, by_deviation=by_deviation)
        assert scaled.reshape(4, 3).sum(axis=1) == pytest.approx(np.zeros(4), abs=1e-5)


@given(st.integers(1, 6), st.randoms())
def test_motion_of_many_is_that_of_each(count: int, random):
    rng = np.random.default_rng(random.randrange(1000))
    moved = [rng.normal(size=(rng.integers(1, 9), 3)) for _ in range(count)]
    together = Trajectories(moved)
    for index, each in enumerate(moved):
        jerk = np.diff(each, 2, axis=0)
        mean = (jerk**2).sum() / max(len(jerk), 1)
        assert smoothness(together)[index] == pytest.approx(1 / (1 + mean))
        assert energy(together)[index] == pytest.approx(1 / (1 + (each**2).sum() / len(each)))
        length = np.linalg.norm(np.diff(each, axis=0), axis=1).sum()
        assert path_length(together)[index] == pytest.approx(1 / (1 + length))


def test_motion_that_is_even_is_smooth():
    even, jerky = np.linspace([0, 0], [1, 1], 20), np.tile([[1.0, 1], [-1, -1]], (10, 1))
    assert smoothness(Trajectories([even, jerky])) == pytest.approx([1, 1 / 33])
    assert commanded_path(np.array([[1.0, 0, 0, 9], [0, 1, 0, 9]])).tolist() == [
        [0, 0, 0],
        [1, 0, 0],
        [1, 1, 0],
    ]


def test_resampling_keeps_ends_and_lines():
    line = np.linspace([0.0, 5.0], [1.0, 9.0], 7)
    brought = resampled([line, line[:1], line[::3]], 5)
    assert brought.shape == (3, 5, 2)
    assert brought[0] == pytest.approx(np.linspace([0.0, 5.0], [1.0, 9.0], 5))
    assert brought[1] == pytest.approx(np.tile(line[:1], (5, 1)))
    assert brought[2] == pytest.approx(brought[0])


@given(st.integers(1, 3), st.integers(1, 5), st.randoms())
def test_distances_are_those_of_each_pair(groups: int, size: int, random):
    brought = np.random.default_rng(random.randrange(1000)).normal(size=(groups, size, 4, 2))
    distances = resampled_distances(brought)
    assert distances.shape == (groups, size, size)
    for i in range(size):
        for j in range(size):
            mean = ((brought[:, i] - brought[:, j]) ** 2).mean(axis=(1, 2))
            assert distances[:, i, j] == pytest.approx(np.sqrt(mean), abs=1e-6)


def test_time_warping_forgives_a_pause_where_points_in_order_do_not():
    time = np.linspace(0, 6, 60)[:, None]
    one = np.sin(time + np.arange(3))
    paused = np.concatenate([one[:30], np.tile(one[29:30], (5, 1)), one[30:]])
    warped = dtw_distances([one, paused])[0, 1]
    straight = resampled_distances(resampled([one, paused])[None])[0, 0, 1]
    assert warped < straight / 3
    assert dtw_distances([one]).tolist() == [[0.0]]


@given(st.integers(1, 8), st.floats(0, 2), st.randoms())
def test_clusters_are_chains_of_neighbours(size: int, threshold: float, random):
    points = np.random.default_rng(random.randrange(1000)).uniform(0, 5, size)
    distances = np.abs(points[:, None] - points)[None]
    numbers = clusters(distances, threshold)[0]
    order = np.argsort(points)
    for one, other in pairwise(order):
        close = points[other] - points[one] <= threshold
        assert (numbers[one] == numbers[other]) == close
    assert sorted(set(numbers)) == list(range(numbers.max() + 1))
    voted, ratio = majority(numbers[None])
    assert ratio[0] == max(np.bincount(numbers)) / size == voted.mean()


def test_the_most_diverse_lie_far_apart():
    points = np.array([0.0, 0.1, 0.2, 5.0, 10.0])
    chosen = most_diverse(np.abs(points[:, None] - points)[None], 3)
    assert set(points[chosen[0]]) >= {5.0, 10.0} and chosen.sum() == 3
    assert most_diverse(np.zeros((2, 4, 4)), 2).sum(axis=1).tolist() == [2, 2]


@given(st.integers(1, 16), st.floats(0.1, 1), st.floats(0, 1))
def test_temperatures_rise_from_base_to_base_and_range(n: int, base: float, width: float):
    found = spread(n, base, width)
    assert len(found) == n and found[0] == pytest.approx(base)
    assert n == 1 or found[-1] == pytest.approx(base + width)


@given(st.floats(-1, 1), st.floats(0.1, 1.5), st.floats(0.05, 1))
def test_a_schedule_stays_within_its_bounds(signal: float, base: float, width: float):
    moved = Schedule(base, width).after(signal)
    assert 0.1 <= moved.base <= 1.5 and 0.05 <= moved.width <= 1
    assert (moved.base - base) * signal >= -1e-12
    assert Schedule(base, 0).after(signal).width == 0


# Whole batches


def episodes(**fields: object) -> list[EpisodeRequest]:
    return [
        EpisodeRequest.model_validate(
            {"uid": str(n), "group": "g", "success": n != 2, "steps": 10 * n + 10, "max_steps": 100,
             "kind": "objectives", "actions": np.full((3, 2), n).tolist(), **fields}
        )
        for n in range(3)
    ]  # fmt: skip


def test_objectives_are_summed_gated_or_normalised_and_returned_apart():
    weights = {"success": 1.0, "efficiency": 2.0, "energy": 0.5}
    energies = 1 / (1 + np.array([0, 2, 8]))
    gained, efficient = np.array([1, 1, 0]), np.array([1 / 1.1, 1 / 1.2, 0])
    total = gained + 2 * efficient + 0.5 * energies
    expected = {"sum": total, "gated": total * gained}
    for combine, scores in expected.items():
        options = EpisodeOptions(weights=weights, combine=combine)
        settled = settle(measure(episodes(), options), options)
        assert settled.scores == pytest.approx(scores)
        assert set(settled.measured.components) == set(weights)
        assert settled.measured.components["energy"] == pytest.approx(energies)
    options = EpisodeOptions(weights=weights, combine="normalised")
    scaled = settle(measure(episodes(), options), options).scores
    by_hand = sum(
        weight * (values - values.mean()) / values.std(ddof=1)
        for weight, values in ((1, gained), (2, efficient), (0.5, energies))
    )
    assert scaled == pytest.approx(by_hand, abs=1e-4)


def test_against_the_groups_best():
    options = EpisodeOptions(efficiency="group_best")
    settled = settle(measure(episodes(kind="efficiency"), options), options)
    assert settled.scores == pytest.approx([1, 0.5, 0])


def test_a_precomputed_score_passes_untouched():
    items = episodes(kind="rm", rm_score=0.3, steps=None, max_steps=None)
    items += [EpisodeRequest(uid=f"{n} too", group="g", success=True, steps=9) for n in range(2)]
    for normalise_by in ("length", "group_mean", "group_deviation"):
        options = EpisodeOptions(normalise=normalise_by)
        settled = settle(measure(items, options), options)
        assert settled.scores[:3].tolist() == [0.3] * 3
        assert not settled.reasons and (settled.scores[3:] != 1).all()


def test_the_groups_best_is_of_those_who_tell_their_steps():
    options = EpisodeOptions(efficiency="group_best")
    items = [*episodes(kind="efficiency"), EpisodeRequest(uid="x", group="g", success=True)]
    assert settle(measure(items, options), options).scores == pytest.approx([1, 0.5, 0, 1])


def test_no_success_is_worth_nothing_beside_one_of_no_steps():
    options = EpisodeOptions(efficiency="group_best")
    items = [*episodes(kind="efficiency")[:1], *episodes(kind="efficiency", uid="x", steps=0)[:1]]
    assert settle(measure(items, options), options).scores == pytest.approx([0.1, 1])


def test_shaping_is_added_to_the_steps_own_rewards():
    options = EpisodeOptions(gamma=0.5)
    items = episodes(kind="shaped", progress=[0, 1, 2], step_rewards=[1, 2, 3], episode_reward=9)
    measured = measure(items[:1], options)
    assert measured.step_rewards[0].tolist() == [1.5, 2, 4]  # what is beyond the steps comes last
    assert measured.components["episode"].tolist() == [9]
    assert measured.components["shaping"].tolist() == [-1.5]


def scores_of(items: list[EpisodeRequest], options: EpisodeOptions) -> list[float]:
    return settle(measure(items, options), options).scores.tolist()


def item(uid: str, kind: str, **fields: object) -> EpisodeRequest:
    return EpisodeRequest.model_validate({"uid": uid, "group": "g", "kind": kind, **fields})


def test_a_score_from_elsewhere_is_no_part_of_the_others_baseline():
    options = EpisodeOptions(normalise="group_mean")
    items = [item("a", "return", episode_reward=1), item("b", "return", episode_reward=0)]
    items.append(item("c", "rm", rm_score=100))
    assert scores_of(items, options) == [0.5, -0.5, 100]
    assert measure(items, options).good.tolist() == [1, 0]


def test_one_alone_of_its_kind_is_refused_alone():
    options = EpisodeOptions(normalise="group_mean", combine="normalised")
    returns = [item(uid, "return", episode_reward=1) for uid in "ab"]
    measured = measure([*episodes()[:1], *returns], options)
    assert measured.table.ok.tolist() == [False, True, True]
    assert np.isfinite(settle(measured, options).scores[1:]).all()


def test_a_limit_so_small_that_shares_overflow_is_refused():
    tiny = item("a", "efficiency", success=True, steps=0, max_steps=1e-320)
    measured = measure([tiny], EpisodeOptions())
    assert not measured.table.ok.any()


def test_what_would_hold_the_service_for_minutes_is_refused():
    options = EpisodeOptions.model_validate({"clusters": {"distance": "dtw", "threshold": 1.0}})
    long = episodes(kind="success", actions=np.zeros((60_000, 1)).tolist())
    with pytest.raises(InvalidRequest, match="too long trajectories for dtw"):
        settle(measure(long, options), options)


def test_a_schedule_leads_to_its_target():
    """Where success falls as the temperature rises, base settles where success is as asked."""
    schedule = Schedule(0.2, 0.1)
    for _ in range(60):
        rate = min(max(1.2 - schedule.base, 0), 1)
        schedule = schedule.after(signal_of_success(rate, 0.5))
    assert rate == pytest.approx(0.5, abs=0.02)
    for _ in range(200):
        diversity = schedule.width / 2
        schedule = schedule.after(signal_of_diversity(diversity, 0.2))
    assert diversity == pytest.approx(0.2, abs=0.02)
