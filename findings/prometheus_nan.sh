#!/usr/bin/env bash
# Version: prometheus-client 0.26.0.
# Guess: observe(nan) is refused, as inc(-1) is, or counts as an observation.
# Seen: it falls into no bucket, not even +Inf, and _count is the sum of the buckets, so the
# observation is not counted. Yet it makes _sum NaN, until the process ends. A counter takes
# inc(nan) as well, and stays NaN.
# Why it matters: one reward that is NaN ends the chart of the mean reward of that process,
# rate(sum) / rate(count), while the count says that nothing happened.
# Instead: test with math.isfinite before observe and inc, and count the others by themselves.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'prometheus-client==0.26.0'

venv/bin/python - <<'PYTHON'
from prometheus_client import CollectorRegistry, Counter, Histogram

registry = CollectorRegistry()
rewards = Histogram("reward", "Rewards.", buckets=(0.0, 1.0), registry=registry)
for reward in (0.5, float("nan"), 1.0):
    rewards.observe(reward)
tokens = Counter("tokens", "Tokens.", registry=registry)
tokens.inc(float("nan"))
tokens.inc(5)
try:
    tokens.inc(-1)
    refused = False
except ValueError as error:
    refused = True
    print("inc(-1):", error)

names = ("reward_count", "reward_sum", "tokens_total")
values = {name: registry.get_sample_value(name) for name in names}
infinite = registry.get_sample_value("reward_bucket", {"le": "+Inf"})
print("after 0.5, NaN and 1.0:", values, "bucket of +Inf:", infinite)

assert values["reward_count"] == infinite == 2, "NaN is counted now"
assert values["reward_sum"] != values["reward_sum"], "NaN leaves the sum alone now"
assert values["tokens_total"] != values["tokens_total"]
assert refused
PYTHON
