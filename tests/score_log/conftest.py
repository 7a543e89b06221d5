"""Each service by its name, for tests of all of them."""

from collections.abc import Iterator
from contextlib import contextmanager

from rewardfleet_server.testing import FakeJudge

from ..conftest import served
from ..server.answers.conftest import served_answers
from ..server.code.conftest import served_code
from ..server.episode.conftest import served_episodes
from ..server.tools.conftest import served_tools


@contextmanager
def service_at(name: str, **settings: object) -> Iterator[str]:
    """Serve a service, that of clips with a judge that gives 0.4; yield its URL."""
    if name == "code":
        with served_code(**settings) as service:
            yield str(service.client.base_url)
        return
    starts = {"tools": served_tools, "episode": served_episodes, "answers": served_answers}
    settings = {"judge": FakeJudge(0.4), **settings} if name == "video" else settings
    with starts.get(name, served)(**settings) as client:
        yield str(client.base_url)
