"""placeholder"""

from rewardfleet_server.testing import FakeJudge


def build(settings):
    return FakeJudge()
