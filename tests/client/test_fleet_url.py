"""One URL for all services of a fleet."""

import pytest

from rewardfleet import InvalidRequest, NotFound, RewardFleet
from rewardfleet_server.testing import FakeJudge

from ..conftest import LONG_CLIP, Serve
from ..gateways import fleet_of
from .conftest import Received, Reply, ScriptedReplica, refusal

TASK = "put the bowl on the plate"
TESTS = {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}]}


@pytest.mark.slow
async def test_one_url_leads_to_every_service(serve: Serve, code_url: str):
    with fleet_of(video=str(serve().base_url), code=code_url) as url:
        for base_url in (url, f"{url}/", [url], [url, url]):
            async with RewardFleet(base_url) as fleet:
                assert (await fleet.video.health()).status == "ok"
                assert await fleet.code.reward("print(1)", TESTS) == 1
                with pytest.raises(NotFound, match="none.mp4"):  # and not that the URL is wrong
                    await fleet.video.score(TASK, "none.mp4")


async def test_a_keyword_replaces_the_service_of_the_fleet(serve: Serve, code_url: str):
    in_fleet, alone = (str(serve(FakeJudge(score)).base_url) for score in (0.25, 0.75))
    with fleet_of(video=in_fleet, code=code_url) as url:
        async with RewardFleet(url, video=alone, code=None, binary_reward=False) as fleet:
            assert await fleet.video.reward(TASK, LONG_CLIP.read_bytes()) == 0.75
            assert await fleet.code.reward("print(1)", TESTS) == 1


async def test_a_service_that_a_fleet_or_a_single_service_does_not_have_is_named(code_url: str):
    with fleet_of(code=code_url) as url:
        named = {
            url: f"fleet at {url} has no video",
            code_url: "is the code service, not the video",
        }
        for at, message in named.items():
            async with RewardFleet(at, on_failure=0.0) as fleet:
                assert await fleet.code.reward("print(1)", TESTS) == 1
                with pytest.raises(InvalidRequest, match=message):
                    await fleet.video.reward(TASK, LONG_CLIP.read_bytes())


async def test_a_failure_of_the_gateway_is_retried(replica):
    """For instance no replica of the service is ready."""
    headers = {"x-rewardfleet-service": "gateway"}

    async def recovering(request: Received) -> Reply:
        scored = sum(each.path == "/video/score" for each in gateway.received)  # not the probes
        if scored < 3 and request.path != "/video/readyz":
            return refusal(503, "unavailable", None, headers)
        return Reply(body={"score": 1, "status": "ok"}, headers={"x-rewardfleet-service": "video"})

    gateway: ScriptedReplica = await replica(recovering)
    async with RewardFleet(gateway.url) as fleet:
        assert await fleet.video.reward(TASK, "clip.mp4") == 1
    assert sum(each.path == "/video/score" for each in gateway.received) == 3


@pytest.mark.parametrize(
    "url",
    ["nonsense", "127.0.0.1:18000", "ftp://host", "http://", "", "http://a:x", "http://a/?b=c",
     "http://a#b", "http://[::1", "http://a\x00b", "http://a\n"],
)  # fmt: skip
def test_an_invalid_url_of_a_fleet_is_refused(url: str):
    for given in (url, ["http://127.0.0.1:1", url]):
        with pytest.raises(ValueError, match="url: give a URL such as http://127.0.0.1:18000, not"):
            RewardFleet(given)
        with pytest.raises(ValueError, match="video: give a URL"):
            RewardFleet(video=given)
