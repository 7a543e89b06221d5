"""The router: a head on an actor language model that decides whether a prompt may use tools.

`labels` and `routes` need no torch; the rest is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .labels import RowLabels, labels_of, read_sidecar
from .routes import ROUTES, Route, RouteTexts, load_route_texts, rewrite_prompt

if TYPE_CHECKING:
    from .batch import (
        choose_group_routes,
        encode_prompts,
        route_prompts,
        routed_gen_batch,
        store_routes,
        stored_routes,
    )
    from .head import RouterActor, RouterHead, RouterOutput, choose_routes
    from .inference import RoutedPrompt, load_actor, route_prompt
    from .objective import (
        broadcast_advantages,
        router_advantages,
        router_loss,
        router_rewards,
        token_level_rewards,
    )

__all__ = [
    "ROUTES",
    "Route",
    "RouteTexts",
    "RoutedPrompt",
    "RouterActor",
    "RouterHead",
    "RouterOutput",
    "RowLabels",
    "broadcast_advantages",
    "choose_group_routes",
    "choose_routes",
    "encode_prompts",
    "labels_of",
    "load_actor",
    "load_route_texts",
    "read_sidecar",
    "rewrite_prompt",
    "route_prompt",
    "route_prompts",
    "routed_gen_batch",
    "router_advantages",
    "router_loss",
    "router_rewards",
    "store_routes",
    "stored_routes",
    "token_level_rewards",
]

#: The modules that need torch, by name.
_LAZY = {
    **dict.fromkeys(
        (
            "choose_group_routes",
            "encode_prompts",
            "route_prompts",
            "routed_gen_batch",
            "store_routes",
            "stored_routes",
        ),
        "batch",
    ),
    **dict.fromkeys(("RouterActor", "RouterHead", "RouterOutput", "choose_routes"), "head"),
    **dict.fromkeys(("RoutedPrompt", "load_actor", "route_prompt"), "inference"),
    **dict.fromkeys(
        (
            "broadcast_advantages",
            "router_advantages",
            "router_loss",
            "router_rewards",
            "token_level_rewards",
        ),
        "objective",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f".{_LAZY[name]}", __package__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"{name} needs PyTorch: pip install torch") from None
