"""The episode functions: formulas, ranges, and properties that hold for any input."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rewardfleet import EpisodeOptions, EpisodeRequest
from rewardfleet import episodes as ep
from rewardfleet.episodes.kinds import KINDS, OBJECTIVES
from rewardfleet.episodes.rewards import EFFICIENCY
from rewardfleet.wire.episode import Objective, RewardKind
from rewardfleet.wire.errors import InvalidRequest

FRACTIONS = arrays(float, st.integers(1, 20), elements=st.floats(0, 3))  # of step limits
NUMBERS = st.floats(-1e3, 1e3)
FORMS = sorted(EFFICIENCY)


def test_every_kind_and_objective_is_implemented_and_documented():
    assert set(KINDS) == set(get_args(RewardKind))
    assert set(OBJECTIVES) == set(get_args(Objective))
    page = (Path(__file__).parents[2] / "docs" / "episodes.md").read_text()
    for name in [*KINDS, *OBJECTIVES]:
        assert f"| `{name}` |" in page


# Formulas


def test_efficiency_equals_the_original_test_time_rl_reward():
    original = ep.efficiency([1, 1, 0], [100, 500, 10], 500)
    assert original == pytest.approx([0.8333, 0.5, 0], abs=1e-4)
    assert ep.efficiency([1, 1], [75, 800], [75, 800]).tolist() == [0.5, 0.5], "each its own limit"
    assert ep.efficiency([1], [0], [500]).tolist() == [1.0]
    assert ep.efficiency([1], [512], [500]) == pytest.approx([500 / 1012]), "steps are not clamped"
    assert ep.efficiency([1, 1], [100, 200], 500, "group_best", best=0.2).tolist() == [1.0, 0.5]
    assert ep.efficiency([1, 1], [1, 250], 500, "linear") == pytest.approx([0.9982, 0.55])
    beyond = {"linear": 0.1, "exponential": np.exp(-3.072), "group_best": 100 / 512}
    for form, expected in beyond.items():
        assert ep.efficiency([1], [512], 500, form, best=0.2) == pytest.approx([expected])


@given(FRACTIONS, st.sampled_from(FORMS))
def test_efficiency_falls_with_steps_and_a_success_exceeds_a_failure(
    fractions: np.ndarray, form: str
):
    fractions = np.sort(fractions)
    values = ep.efficiency(np.ones_like(fractions), fractions, 1.0, form, best=fractions.min())
    assert ((values > 0) & (values <= 1)).all() or form == "group_best"
    assert (np.diff(values) <= 1e-12).all()
    assert (ep.efficiency(np.zeros_like(fractions), fractions, 1.0, form, best=0.0) == 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ep.efficiency([1], [-1], [5]), "steps"),
        (lambda: ep.efficiency([1], [0], [0]), "max_steps"),
        (lambda: ep.success([0.5]), "0 or 1"),
        (lambda: ep.by_length([1.0, 2.0], [3, 0]), r"entry 1"),
        (lambda: ep.visual([1], [1.5]), "visual_success"),
        (lambda: ep.hybrid([], 1.0), "step"),
        (lambda: ep.discounted([1], [-1], 0.9), "steps"),
        (lambda: ep.spread_temperatures(0), "n:"),
        (lambda: ep.normalize([1.0], ep.Grouping([0], 1), by_std=True), "two members"),
    ],
)
def test_impossible_input_raises_a_value_error(call, message: str):
    with pytest.raises(ValueError, match=message):
        call()


@given(arrays(float, st.integers(1, 20), elements=NUMBERS), st.floats(0, 1))
def test_the_discounted_sum_of_shaping_from_a_step_on_depends_on_its_potential_only(
    progress: np.ndarray, gamma: float
):
    """It is minus the progress since the start: shaping does not change which policy is optimal."""
    added = ep.shaping(progress, gamma)
    for step in range(len(progress)):
        discounts = gamma ** np.arange(len(progress) - step)
        left = (discounts * added[step:]).sum()
        assert left == pytest.approx(progress[0] - progress[step], abs=1e-6)


def test_hybrid_discounted_and_by_length():
    assert ep.hybrid([1, 2, 3], 10).tolist() == [1, 2, 13]
    assert ep.discounted([8.0, 8.0, 8.0], [0, 1, 4], 0.5).tolist() == [8, 8, 1]
    assert ep.by_length([6.0], [3]).tolist() == [2]


@given(st.lists(arrays(float, st.integers(0, 9), elements=NUMBERS), min_size=1, max_size=5))
def test_running_statistics_equal_those_of_all_rewards_at_once(batches: list[np.ndarray]):
    running = ep.RunningMeanStd()
    for rewards in batches:
        running = running.updated(rewards)
    together = np.concatenate(batches)
    assert running.count == len(together)
    if len(together):
        assert running.mean == pytest.approx(together.mean(), abs=1e-6)
        assert running.variance == pytest.approx(together.var(), rel=1e-6, abs=1e-6)


# Groups


GROUPS = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=25)


@pytest.mark.slow
@given(GROUPS, st.randoms())
def test_group_statistics_equal_those_of_each_group_alone(names: list[str | None], random):
    values = np.array([random.uniform(-5, 5) for _ in names])
    grouping, known = ep.Grouping.by_name(names)
    assert known == list(dict.fromkeys(name for name in names if name is not None))
    for number, name in enumerate(known):
        own = values[[each == name for each in names]]
        assert grouping.mean(values)[number] == pytest.approx(own.mean())
        assert grouping.minimum(values)[number] == own.min()
        if len(own) > 1:
            assert grouping.std(values)[number] == pytest.approx(own.std(ddof=1))
        assert ep.all_equal(values, grouping, 1.0)[number] == (np.ptp(own) <= 1.0)
    members = [index for groups in grouping.by_size() for group in groups for index in group]
    assert sorted(members) == [i for i, name in enumerate(names) if name is not None]


@given(st.lists(st.booleans(), min_size=4, max_size=12), st.randoms())
def test_an_episode_without_a_reward_does_not_count_in_its_group(scored: list[bool], random):
    """The others have what they have without it; an episode that is left alone has nothing."""
    has = np.array(scored)
    rewards = np.array([random.uniform(-5, 5) if each else np.nan for each in scored])
    codes = np.arange(len(scored)) % 2
    grouping = ep.Grouping(codes, 2)
    formulas = {
        "mean": lambda *given, **mask: ep.normalize(*given, by_std=False, **mask),
        "std": lambda *given, **mask: ep.normalize(*given, by_std=True, **mask),
        "leave_one_out": ep.leave_one_out,
    }
    for formula in formulas.values():
        result = formula(rewards, grouping)
        masked = formula(np.where(has, rewards, 1e9), grouping, mask=has)
        assert masked == pytest.approx(result, nan_ok=True)
        assert np.isnan(result[~has]).all()
        for group in (0, 1):
            left = has & (codes == group)
            if left.sum() > 1:
                alone = formula(rewards[left], ep.Grouping(np.zeros(left.sum(), int), 1))
                assert result[left] == pytest.approx(alone)
            else:
                assert np.isnan(result[left]).all()
    for group in (0, 1):
        left = rewards[has & (codes == group)]
        assert ep.all_equal(rewards, grouping, 1.0)[group] == (not left.size or np.ptp(left) <= 1)
    running = ep.RunningMeanStd().updated(rewards)
    assert (running.count, running.mean) == (
        has.sum(),
        pytest.approx(rewards[has].mean() if has.any() else 0),
    )


@pytest.mark.parametrize("formula", [partial(ep.normalize, by_std=True), ep.leave_one_out])
def test_an_infinite_reward_is_refused_instead_of_spread_over_its_group(formula):
    grouping = ep.Grouping([0, 0, 0], 1)
    with pytest.raises(ValueError, match="finite numbers, or NaN .entry 1: -inf"):
        formula([1, -np.inf, np.nan], grouping)
    with pytest.raises(ValueError, match="for 3 episodes"):
        formula([1, 0], grouping)
    masked = formula([1, np.inf, 0], grouping, mask=[True, False, True])
    assert np.isnan(masked).tolist() == [False, True, False]
    with pytest.raises(ValueError, match="finite numbers, or NaN .entry 0: inf"):
        ep.RunningMeanStd().updated([np.inf, 1])


def test_an_episode_without_success_is_not_among_the_most_efficient():
    grouping = ep.Grouping([0, 0, 0], 1)
    selected = ep.most_efficient([0.1, 9.0, 0.5], [np.nan, 1, 0], grouping, 1)
    assert selected.tolist() == [False, True, False], "also beyond the step limit"


def test_leave_one_out_compares_with_the_mean_of_the_others():
    grouping = ep.Grouping([0, 0, 0, 1, 1], 2)
    assert ep.leave_one_out([1, 0, 0, 4, 2], grouping) == pytest.approx([1, -0.5, -0.5, 2, -2])


# Motion and clusters


@given(st.integers(1, 6), st.randoms())
def test_the_motion_of_many_trajectories_equals_that_of_each(count: int, random):
    rng = np.random.default_rng(random.randrange(1000))
    trajectories = [rng.normal(size=(rng.integers(1, 9), 3)) for _ in range(count)]
    together = ep.Trajectories(trajectories)
    for index, each in enumerate(trajectories):
        jerk = np.diff(each, 2, axis=0)
        mean = (jerk**2).sum() / max(len(jerk), 1)
        assert ep.smoothness(together)[index] == pytest.approx(1 / (1 + mean))
        energy = (each**2).sum() / len(each)
        assert ep.low_energy(together)[index] == pytest.approx(1 / (1 + energy))
        length = np.linalg.norm(np.diff(each, axis=0), axis=1).sum()
        assert ep.short_path(together)[index] == pytest.approx(1 / (1 + length))


def test_uniform_motion_is_smooth():
    uniform, jerky = np.linspace([0, 0], [1, 1], 20), np.tile([[1.0, 1], [-1, -1]], (10, 1))
    assert ep.smoothness(ep.Trajectories([uniform, jerky])) == pytest.approx([1, 1 / 33])
    assert ep.commanded_path(np.array([[1.0, 0, 0, 9], [0, 1, 0, 9]])).tolist() == [
        [0, 0, 0],
        [1, 0, 0],
        [1, 1, 0],
    ]


def test_resampling_preserves_ends_and_lines():
    line = np.linspace([0.0, 5.0], [1.0, 9.0], 7)
    resampled = ep.resample([line, line[:1], line[::3]], 5)
    assert resampled.shape == (3, 5, 2)
    assert resampled[0] == pytest.approx(np.linspace([0.0, 5.0], [1.0, 9.0], 5))
    assert resampled[1] == pytest.approx(np.tile(line[:1], (5, 1)))
    assert resampled[2] == pytest.approx(resampled[0])


@given(st.integers(1, 3), st.integers(1, 5), st.randoms())
def test_distances_equal_those_of_each_pair(groups: int, size: int, random):
    resampled = np.random.default_rng(random.randrange(1000)).normal(size=(groups, size, 4, 2))
    distances = ep.resampled_distances(resampled)
    assert distances.shape == (groups, size, size)
    for i in range(size):
        for j in range(size):
            mean = ((resampled[:, i] - resampled[:, j]) ** 2).mean(axis=(1, 2))
            assert distances[:, i, j] == pytest.approx(np.sqrt(mean), abs=1e-6)


def test_time_warping_ignores_a_pause_and_resampling_does_not():
    time = np.linspace(0, 6, 60)[:, None]
    one = np.sin(time + np.arange(3))
    paused = np.concatenate([one[:30], np.tile(one[29:30], (5, 1)), one[30:]])
    warped = ep.dtw_distances([one, paused])[0, 1]
    straight = ep.resampled_distances(ep.resample([one, paused])[None])[0, 0, 1]
    assert warped < straight / 3
    assert ep.dtw_distances([one]).tolist() == [[0.0]]


@given(st.integers(1, 8), st.floats(0, 2), st.randoms())
def test_clusters_are_chains_of_neighbors(size: int, threshold: float, random):
    points = np.random.default_rng(random.randrange(1000)).uniform(0, 5, size)
    distances = np.abs(points[:, None] - points)[None]
    labels = ep.single_linkage(distances, threshold)[0]
    order = np.argsort(points)
    for one, other in pairwise(order):
        close = points[other] - points[one] <= threshold
        assert (labels[one] == labels[other]) == close
    assert sorted(set(labels)) == list(range(labels.max() + 1))
    is_majority, ratio = ep.majority_vote(labels[None])
    assert ratio[0] == max(np.bincount(labels)) / size == is_majority.mean()


def test_the_most_diverse_members_are_far_apart():
    points = np.array([0.0, 0.1, 0.2, 5.0, 10.0])
    selected = ep.most_diverse(np.abs(points[:, None] - points)[None], 3)
    assert set(points[selected[0]]) >= {5.0, 10.0} and selected.sum() == 3
    assert ep.most_diverse(np.zeros((2, 4, 4)), 2).sum(axis=1).tolist() == [2, 2]


# Temperatures


@given(st.integers(1, 16), st.floats(0.1, 1), st.floats(0, 1))
def test_temperatures_rise_from_base_to_base_plus_range(n: int, base: float, width: float):
    temperatures = ep.spread_temperatures(n, base, width)
    assert len(temperatures) == n and temperatures[0] == pytest.approx(base)
    assert n == 1 or temperatures[-1] == pytest.approx(base + width)


@given(st.floats(-1, 1), st.floats(0.1, 1.5), st.floats(0.05, 1))
def test_a_schedule_stays_within_its_limits(signal: float, base: float, width: float):
    moved = ep.TemperatureSchedule(base, width).after(signal)
    assert 0.1 <= moved.base <= 1.5 and 0.05 <= moved.width <= 1
    assert (moved.base - base) * signal >= -1e-12
    assert ep.TemperatureSchedule(base, 0).after(signal).width == 0


def test_a_schedule_converges_to_its_target():
    """If success falls as the temperature rises, base settles where success equals its target."""
    schedule = ep.TemperatureSchedule(0.2, 0.1)
    for _ in range(60):
        rate = min(max(1.2 - schedule.base, 0), 1)
        schedule = schedule.after(rate - 0.5)
    assert rate == pytest.approx(0.5, abs=0.02)
    for _ in range(200):
        diversity = schedule.width / 2
        schedule = schedule.after(1 - diversity / 0.2)
    assert diversity == pytest.approx(0.2, abs=0.02)


# Batches


def episodes(**fields: object) -> list[EpisodeRequest]:
    return [
        EpisodeRequest.model_validate(
            {"uid": str(n), "group": "g", "success": n != 2, "steps": 10 * n + 10, "max_steps": 100,
             "kind": "objectives", "actions": np.full((3, 2), n).tolist(), **fields}
        )
        for n in range(3)
    ]  # fmt: skip


def item(uid: str, kind: str, **fields: object) -> EpisodeRequest:
    return EpisodeRequest.model_validate({"uid": uid, "group": "g", "kind": kind, **fields})


def test_a_batch_flows_through_three_functions_and_validation_is_final():
    options = EpisodeOptions()
    batch = ep.validate_batch(episodes(), options)
    result = ep.aggregate(ep.compute_rewards(batch, options), options)
    assert result.scores.tolist() == ep.score_episodes(episodes(), options).scores.tolist()
    assert result.batch is batch
    with pytest.raises(ValueError, match="read-only"):
        batch.ok[0] = False


def test_objectives_are_summed_gated_or_normalized_and_have_their_values_as_details():
    weights = {"success": 1.0, "efficiency": 2.0, "low_energy": -0.5}
    energies = 1 / (1 + np.array([0, 2, 8]))
    successes, efficiencies = np.array([1, 1, 0]), np.array([1 / 1.1, 1 / 1.2, 0])
    total = successes + 2 * efficiencies - 0.5 * energies
    expected = {"sum": total, "gated": total * successes}
    for combine, scores in expected.items():
        options = EpisodeOptions(weights=weights, combine=combine)
        result = ep.score_episodes(episodes(), options)
        assert result.scores == pytest.approx(scores)
        assert set(result.components) == set(result.details) == set(weights)
        assert result.details["low_energy"] == pytest.approx(energies)
    options = EpisodeOptions(weights=weights, combine="normalized")
    normalized = ep.score_episodes(episodes(), options).scores
    by_hand = sum(
        weight * (values - values.mean()) / values.std(ddof=1)
        for weight, values in ((1, successes), (2, efficiencies), (-0.5, energies))
    )
    assert normalized == pytest.approx(by_hand, abs=1e-4)


def test_the_score_of_a_reward_model_is_not_normalized():
    items = episodes(kind="reward_model", reward_model_score=0.3, steps=None, max_steps=None)
    items += [EpisodeRequest(uid=f"{n} too", group="g", success=True, steps=9) for n in range(2)]
    for normalization in ("length", "group_mean", "group_std"):
        options = EpisodeOptions(normalize=normalization)
        result = ep.score_episodes(items, options)
        assert result.scores[:3].tolist() == [0.3] * 3
        assert not result.batch.reasons and (result.scores[3:] != 1).all()


def test_the_best_of_a_group_is_one_with_steps_and_makes_the_others_not_worthless():
    options = EpisodeOptions(efficiency="group_best")
    three = episodes(kind="efficiency")
    items = [*three, EpisodeRequest(uid="x", group="g", success=True)]
    assert ep.score_episodes(items, options).scores == pytest.approx([1, 0.5, 0, 1])
    items = [*three[:1], *episodes(kind="efficiency", uid="x", steps=0)[:1]]
    assert ep.score_episodes(items, options).scores == pytest.approx([0.1, 1])


def test_shaping_is_added_to_the_step_rewards_and_not_to_the_score():
    options = EpisodeOptions(gamma=0.5)
    items = episodes(kind="shaped", progress=[0, 1, 2], step_rewards=[1, 2, 3], episode_reward=9)
    rewards = ep.compute_rewards(ep.validate_batch(items[:1], options), options)
    assert rewards.step_rewards[0].tolist() == [2, 3, 4]  # the rest of the 9 is in the last step
    assert rewards.values[0] == 9 and items[0].step_rewards == [1, 2, 3]
    assert {name: each[0] for name, each in rewards.components.items()} == {"episode": 9}


def test_the_score_of_a_reward_model_is_not_part_of_the_baseline():
    options = EpisodeOptions(normalize="group_mean")
    items = [item("a", "return", episode_reward=1), item("b", "return", episode_reward=0)]
    items.append(item("c", "reward_model", reward_model_score=100))
    result = ep.score_episodes(items, options)
    assert result.scores.tolist() == [0.5, -0.5, 100]
    assert result.details["reward"][result.batch.is_normalizable].tolist() == [1, 0]


def test_the_only_episode_of_its_kind_is_refused_without_the_others():
    options = EpisodeOptions(normalize="group_mean", combine="normalized")
    returns = [item(uid, "return", episode_reward=1) for uid in "ab"]
    result = ep.score_episodes([*episodes()[:1], *returns], options)
    assert result.batch.ok.tolist() == [False, True, True]
    assert np.isfinite(result.scores[1:]).all()


def test_a_step_limit_so_small_that_fractions_overflow_is_refused():
    tiny = item("a", "efficiency", success=True, steps=0, max_steps=1e-320)
    assert not ep.validate_batch([tiny], EpisodeOptions()).ok.any()


@pytest.mark.slow
def test_trajectories_that_would_take_minutes_to_compare_are_refused():
    options = EpisodeOptions.model_validate({"clusters": {"distance": "dtw", "threshold": 1.0}})
    long = episodes(kind="success", actions=np.zeros((60_000, 1)).tolist())
    with pytest.raises(InvalidRequest, match="too long trajectories for dtw"):
        ep.score_episodes(long, options)
