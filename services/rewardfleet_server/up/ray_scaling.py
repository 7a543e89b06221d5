"""How many replicas Ray Serve runs: see deploy/ray_serve.py.

In the package, as Ray's controller and `serve status` import it by its name.
"""

from typing import Any


def scale_on_items(context: Any) -> tuple[float, dict[str, Any]]:
    """Return how many replicas are needed: one per `target_ongoing_requests` items.

    Ray's own policy counts requests, of which one may contain a thousand items. The metric `items`
    of Ray's `AutoscalingContext` is what replicas report: those at the backend, and in its queue.
    """
    items = sum((context.aggregated_metrics or {}).get("items", {}).values())
    waiting = items + context.total_queued_requests
    return waiting / context.config.get_target_ongoing_requests(), {}
