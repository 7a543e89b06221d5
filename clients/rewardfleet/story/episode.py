"""The story of an episode's score."""

from collections.abc import Iterator, Mapping
from typing import Any

from rewardfleet.episodes.batch import NUMBERS
from rewardfleet.wire.score import figures_of, reward_of

from .texts import number, quoted


def story_of_episode(request: Mapping[str, Any], score: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the episode brought, the reward of its kind, and what became of it."""
    kind, group = request.get("kind", "success"), request.get("group")
    in_group = "" if group is None else f", in the group {quoted(str(group))}"
    yield f"Episode {quoted(str(request.get('uid', score.get('uid', ''))))}: kind {kind}{in_group}"
    given = {name: request[name] for name in NUMBERS if request.get(name) is not None}
    if steps := request.get("step_rewards"):
        given["sum of step_rewards"] = number(sum(steps))
    if (video := request.get("visual_success")) is not None:
        given["visual_success"] = video.get("score") if isinstance(video, dict) else video
    if given:
        yield "It brought: " + quoted(", ".join(f"{name} {value}" for name, value in given.items()))
    figures, reward = figures_of(score), reward_of("episode", score)
    shown_apart = {"normalized", "reward"}
    parts = ", ".join(
        f"{name} {number(figures[name])}" for name in figures if name not in shown_apart
    )
    if reward is not None:
        yield f"Reward: {number(reward)}{f' ({quoted(parts)})' if parts else ''}"
    normalize = (request.get("options") or {}).get("normalize", "none")
    if normalize != "none" and score.get("score") is not None:
        yield f"Normalized by {normalize}: {number(score['score'])}"
    if score.get("drop_reason"):
        yield f"Decided by: the filter rule {score['drop_reason']}; do not train on this episode."
    elif reward is not None:
        side = "below" if reward < 1 else "at least"
        yield f"Decided by: the reward {number(reward)} is {side} 1, that of a success."
