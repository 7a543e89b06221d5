"""Generate the files that repeat what the code says: `python docs/generate.py [--check]`."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from blocking_stub import blocking_stub
from causes_page import causes_page
from deployment_files import OF_SERVICES, WITH_REGIONS, with_regions
from grafana_dashboards import dashboard, names
from kubernetes_copies import prometheus_rule
from reference_pages import errors_page, http_page, metrics_page, settings_page

ROOT = Path(__file__).parent.parent

#: Each generated file, relative to the root, and the function that returns its text.
GENERATED: list[tuple[str, Callable[[], str]]] = [
    ("clients/rewardfleet/blocking.pyi", blocking_stub),
    ("docs/reference/causes.md", causes_page),
    ("docs/reference/errors.md", errors_page),
    ("docs/reference/http.md", http_page),
    ("docs/reference/metrics.md", metrics_page),
    ("docs/reference/settings.md", settings_page),
    *((f"deploy/grafana/dashboards/{name}.json", partial(dashboard, name)) for name in names()),
    ("k8s/components/monitoring/prometheus-rule.yaml", prometheus_rule),
    *((file, partial(with_regions, file)) for file in WITH_REGIONS),
    *((file, partial(str, text)) for file, text in OF_SERVICES.items()),
]


def main() -> int:
    """Write the generated files; with `--check`, write nothing and return 1 if a file differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a file is not up to date")
    check = parser.parse_args().check
    status = 0
    for name, generate in GENERATED:
        path, text = ROOT / name, generate()
        if path.exists() and path.read_text() == text:
            continue
        if check:
            print(f"{name} is not up to date: run `make docs`", file=sys.stderr)
            status = 1
        else:
            path.write_text(text)
            print(f"wrote {name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
