"""The OpenAPI documents, tried by schemathesis over real HTTP.

What a document forbids is refused, what it allows is accepted, and every response is documented.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import schemathesis
from schemathesis import engine
from schemathesis.engine import events

from rewardfleet_server.code.app import create_app as create_code
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.episode.app import create_app as create_episode
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.testing import FakeSandbox, serving
from rewardfleet_server.tools.app import create_app as create_tools
from rewardfleet_server.tools.settings import ToolsSettings
from rewardfleet_server.video.app import create_app as create_video
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import DATA

#: Random bodies per operation, valid and not.
EXAMPLES = 10

SERVICES: dict[str, Callable[[Path], RewardApp]] = {
    "video": lambda _: create_video(VideoSettings()),
    "code": lambda _: create_code(CodeSettings(), FakeSandbox()),
    "episode": lambda folder: create_episode(EpisodeSettings(run_state=folder / "state.db")),
    "tools": lambda folder: create_tools(ToolsSettings(run_state=folder / "state.db")),
}
#: Routes in the formats of other clients, which `make test` tries in `test_trainers.py` and others,
#: and items of batches and groups, which have the fields of single ones.
LEFT_TO_FULL = (
    "/(batch|members|completions|run_code|submit|get_reward|slime|seed_session"
    "|verify|aggregate_metrics|reverify_mode|reset|step)$"
)
#: What the schemas do not express: rules between fields, fields that options need, the content of
#: texts, files and programs, and the state of a run.
NOT_EXPRESSIBLE = re.compile("|".join((DATA / "not_in_schemas.txt").read_text().splitlines()))


@schemathesis.check
def valid_is_accepted(_: object, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """A valid request is answered with 200, or refused for a reason outside of its schema."""
    is_valid = case.meta.generation.mode is schemathesis.GenerationMode.POSITIVE
    if is_valid and response.status_code == 422 and not NOT_EXPRESSIBLE.search(response.text):
        raise AssertionError(f"{response.text}\nfor {case.body!r}")


def failures_of(url: str, excluded: str, phases: list[str]) -> list[str]:
    """Return what a service at a URL does other than its OpenAPI document says."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    schema = schema.exclude(path_regex=excluded)
    schema.config.generation.update(max_examples=EXAMPLES, deterministic=True)
    schema.config.request_timeout = 120  # seconds, for a busy machine
    schema.config.phases.update(phases=phases)
    schema.config.checks.positive_data_acceptance.enabled = False  # `valid_is_accepted` does it
    failures, cases = [], 0
    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            cases += len(event.recorder.cases)
            failures += [
                f"{event.recorder.label}: {check.name}: {check.failure_info.failure}"
                for checks in event.recorder.checks.values()
                for check in checks
                if check.failure_info is not None
            ]
        elif isinstance(event, events.NonFatalError | events.FatalError):
            failures.append(repr(event))
    print(f"{cases} requests")
    assert cases > 100
    return failures


FULL = [pytest.param(each, "^$", ["fuzzing"], marks=pytest.mark.full) for each in SERVICES]


@pytest.mark.slow
@pytest.mark.timeout(480)
@pytest.mark.filterwarnings("default")  # of the libraries that schemathesis uses
@pytest.mark.parametrize(("service", "excluded", "more"), [("video", LEFT_TO_FULL, []), *FULL])
def test_a_service_does_what_its_document_says(
    service: str, excluded: str, more: list[str], tmp_path: Path
):
    """Random bodies as well, and all routes, in `make check-all`."""
    with serving(SERVICES[service](tmp_path)) as url:
        failures = failures_of(url, excluded, ["coverage", *more])
    assert not failures, "\n\n".join(failures)
