"""The stories of a clip, of an episode, and of an answer that is compared with a reference."""

from collections.abc import Iterator, Mapping
from typing import Any

from rewardfleet.episodes.batch import NUMBERS
from rewardfleet.wire.causes import success_threshold
from rewardfleet.wire.score import figures_of, reward_of

from .texts import Part, Text, number, quoted

#: Frames whose numbers are shown.
_MAX_INDICES = 16
#: What `details` of an answer has besides the verdicts of checkers.
_COMPARED = ("form", "rule", "answer", "reference")


def story_of_clip(request: Mapping[str, Any], score: Mapping[str, Any]) -> Iterator[Part]:
    """Yield what the judge saw, what it said, and which threshold decided."""
    provenance = score.get("provenance") or {}
    model = provenance.get("model")
    of_model = "" if model is None else f", the model {quoted(str(model))}"
    yield f"Judge: {quoted(str(score.get('backend') or ''))}{of_model}"
    yield f"Task: {quoted(request.get('task_text') or '')}"
    if request.get("video_path"):
        yield f"Clip: {quoted(request['video_path'])}"
    frames = provenance.get("frames")
    if frames:
        indices = frames["indices"]
        shown = ", ".join(map(str, indices[:_MAX_INDICES]))
        more = ", …" if len(indices) > _MAX_INDICES else ""
        yield (
            f"It saw {len(indices)} of {frames['total']} frames, of {frames['width']} x "
            f"{frames['height']} pixels: {shown}{more}"
        )
    else:
        yield "It reads the file itself: the service does not know what it saw."
    if options := request.get("backend_kwargs"):
        yield f"Options: {quoted(str(options))}"
    yield Text("What the judge said", score.get("model_output") or "")
    figures = figures_of(score)
    figures.pop("score", None)
    if figures:
        parts = (f"{name} {number(value)}" for name, value in sorted(figures.items()))
        yield f"Details: {quoted(', '.join(parts))}"
    value = score.get("score")
    if value is not None:
        threshold = success_threshold(provenance)
        is_done = value >= threshold
        yield (
            f"Decided by: {number(value)} is {'at least' if is_done else 'below'} "
            f"{number(threshold)}: the judge finds the task {'' if is_done else 'not '}done. "
            "Adapters may compare with another threshold."
        )


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


def story_of_answer(request: Mapping[str, Any], score: Mapping[str, Any]) -> Iterator[Part]:
    """Yield which part of the text was the answer, and what each checker found."""
    if request.get("response") is not None:
        yield Text("What the policy wrote", request["response"])
    details = score.get("details") or {}
    if not details:
        return
    if "rule" in details:
        yield f"The answer, by the rule {details['rule']}: {quoted(details['answer'])}"
    yield f"The reference, as {details['form']}: {quoted(details['reference'])}"
    for name, verdict in details.items():
        if name not in _COMPARED:
            yield f"  {name}: {verdict}"
