"""RLinf's `EmbodiedAPIRewardWorker`, at the commit in sources.toml, with the video service."""

import pytest

from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import client_of
from .peers import took

pytestmark = pytest.mark.slow


async def test_windows_get_the_rewards_of_their_trends_and_a_failure_ends_the_run():
    with client_of(create_app(VideoSettings())) as client:
        found = await took("rlinf", str(client.base_url).rstrip("/"))
    assert found == {
        "rewards": pytest.approx([1.0, -0.2]),
        "no task": "POST URL/v1/chat/completions failed: status=422",
        "down": "POST URL/v1/chat/completions failed after 1",
    }
