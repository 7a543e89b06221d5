"""The alert rules, with promtool. That one fires when a service is killed is in test_fleet.py."""

import re
from pathlib import Path

import pytest

from ..running import output_of
from ..test_docs import anchors
from .conftest import ALERTS, ROOT
from .prometheus import program

UNIT_TESTS = sorted(Path(__file__).parent.glob("alerts*.yml"))

#: The text of each rule, by the name of its alert.
RULES = dict(re.findall(r"(?ms)^ +- alert: (\w+)\n(.*?)(?=^ +- alert:|\Z)", ALERTS.read_text()))
#: Prometheus may have to be downloaded.
TIMEOUT = pytest.mark.timeout(150)


def promtool(*arguments: object) -> str:
    return output_of(program("promtool"), *arguments, cwd=ROOT)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_names_its_section_in_the_documentation(alert: str):
    assert re.search(r"labels: \{severity: (critical|warning|info)\}", RULES[alert])
    fields = dict(re.findall(r"(?m)^ +(summary|description|runbook): (\S.*)", RULES[alert]))
    assert fields.keys() == {"summary", "description", "runbook"}
    page, _, anchor = fields["runbook"].partition("#")
    assert anchor == alert.lower()
    assert anchor in anchors(ROOT / page)


def test_the_documentation_describes_no_other_alert():
    page = (ROOT / "docs/operations.md").read_text()
    assert re.findall(r"(?m)^#+ (Rewardfleet\w+)$", page) == list(RULES)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_has_a_unit_test(alert: str):
    fires = f'alertname="{alert}", alertstate="firing"'
    assert any(fires in each.read_text() for each in UNIT_TESTS)


@pytest.mark.slow
@TIMEOUT
def test_the_configuration_for_compose_is_valid():
    found = promtool("check", "config", "deploy/prometheus.yml")
    assert f"SUCCESS: {len(RULES)} rules found" in found


@pytest.mark.slow
@TIMEOUT
def test_the_unit_tests_of_the_rules_pass():
    assert "SUCCESS" in promtool("test", "rules", *UNIT_TESTS)
