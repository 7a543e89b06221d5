"""The contract of every judge, including the shipped fake."""

import asyncio
import functools
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.testing import FakeJudge, serving
from rewardfleet_server.video.clip.frames import Clip, DecodeSpec, decode_video
from rewardfleet_server.video.judges import ClipJudge, Judgment, reference
from rewardfleet_server.video.judges.loading import find_judge
from rewardfleet_server.video.judges.settings import all_built_in
from rewardfleet_server.video.references.library import SHIPPED, load_library
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import LONG_CLIP
from ..server.video.test_openai import Endpoint

TASK = "put both the alphabet soup and the tomato sauce in the basket"


#: The library, which is loaded once.
LIBRARY = functools.cache(lambda: load_library(SHIPPED))


@contextmanager
def openai_judge() -> Iterator[ClipJudge]:
    with serving(Endpoint().app) as url:
        yield find_judge("openai", VideoSettings(openai_url=f"{url}/v1", openai_model="m"))


#: Checked by tests/engines/test_contract.py.
NEED_ENGINES = {"qwen2_5_vl_vllm", "PRIMO-R1", "transformers"}
#: Checked by tests/engines/test_published.py and test_robometer.py.
PUBLISHED = {"roboreward", "topreward", "sole-r1", "robometer"}

MAKERS: dict[str, Callable[[], AbstractContextManager[ClipJudge]]] = {
    "fake": lambda: nullcontext(FakeJudge(0.5)),
    "reference": lambda: nullcontext(reference.ReferenceJudge(LIBRARY())),
    "openai": openai_judge,
}


@pytest.fixture(params=MAKERS)
async def judge(request: pytest.FixtureRequest) -> AsyncIterator[ClipJudge]:
    with MAKERS[request.param]() as judge:
        async with judge.lifespan():
            yield judge


@pytest.fixture(scope="module")
def clip() -> Clip:
    return decode_video(str(LONG_CLIP), DecodeSpec(8, 65_536))


def test_the_contract_covers_every_judge():
    assert {each.name for each in all_built_in()} <= set(MAKERS) | NEED_ENGINES | PUBLISHED


async def test_it_returns_a_judgment(judge: ClipJudge, clip: Clip):
    judgment = await judge.judge(TASK, clip, {})
    assert isinstance(judgment, Judgment)
    assert judgment.score is not None and 0 <= judgment.score <= 1
    assert judgment.text
    assert all(math.isfinite(value) for value in judgment.details.values())


async def test_its_provenance_is_json_and_its_judgments_repeat(judge: ClipJudge, clip: Clip):
    before = json.dumps(dict(judge.provenance), sort_keys=True)
    assert judge.deterministic
    assert await judge.judge(TASK, clip, {}) == await judge.judge(TASK, clip, {})
    assert json.dumps(dict(judge.provenance), sort_keys=True) == before
    assert judge.provenance["judge"]


async def test_it_rejects_unknown_options(judge: ClipJudge):
    judge.check_options({})
    with pytest.raises(InvalidRequest, match="no_such_option"):
        judge.check_options({"no_such_option": 1})


async def test_it_judges_clips_concurrently(judge: ClipJudge, clip: Clip):
    judgments = await asyncio.gather(*(judge.judge(TASK, clip, {}) for _ in range(16)))
    assert len({judgment.score for judgment in judgments}) == 1
