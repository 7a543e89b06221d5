"""`--calibration`: calibrated scores, and what the service refuses with it."""

import pytest

from rewardfleet_server.testing import FakeJudge

from ...conftest import served

LOGISTIC = {"kind": "per-task", "slope": 0.0, "intercept": -1.0, "tasks": {"put the bowl": 3.0}}


def test_the_score_is_the_calibrated_one_and_says_so(write_calibration, frames_request):
    judge = FakeJudge(0.25)
    with served(judge, calibration=write_calibration()) as client:
        first, second = (client.post("/score", json=frames_request).json() for _ in range(2))
        batch = client.post("/score/batch", json={"items": [frames_request]}).json()
    assert first["score"] == pytest.approx(0.5)
    assert first["components"] == {"score": first["score"]}
    assert first["details"]["raw_score"] == 0.25
    said = first["provenance"]["calibration"]
    assert said["threshold"] == 0.7 and len(said["sha256"]) == 64
    assert second["cached"] and second["score"] == first["score"]
    assert second["details"] == first["details"]
    assert batch["provenance"]["fake"]["calibration"] == said
    assert len(judge.seen) == 1


def test_scores_of_another_calibration_are_not_taken_from_the_cache(
    write_calibration, frames_request, tmp_path
):
    cache = str(tmp_path / "scores.db")
    found = []
    first, second = write_calibration(), write_calibration("second.json", map=LOGISTIC)
    for calibration in (None, first, second, first):
        with served(FakeJudge(0.25), cache=cache, calibration=calibration) as client:
            answer = client.post("/score", json=frames_request).json()
            found.append((round(answer["score"], 3), answer["cached"]))
    assert found == [(0.25, False), (0.5, False), (0.269, False), (0.5, True)]


def test_a_task_has_its_offset_whatever_its_case(write_calibration, frames_request):
    with served(FakeJudge(0.25), calibration=write_calibration(map=LOGISTIC)) as client:
        answer = client.post("/score", json={**frames_request, "task_text": "Put  the BOWL"})
        assert answer.json()["score"] == pytest.approx(0.8808, abs=1e-4)


def test_an_abstention_stays_one(write_calibration, frames_request):
    path = write_calibration(provenance={"judge": "fake", "score": None})
    with served(FakeJudge(None), calibration=path) as client:
        answer = client.post("/score", json=frames_request).json()
    assert answer["status"] == "abstained" and answer["score"] is None
    assert "raw_score" not in answer["details"]


def test_requests_that_it_was_not_made_with_are_refused(write_calibration, frames_request):
    for binding, change, words in (
        ({}, {"nframes": 8}, "is for 16, not for 8"),
        ({}, {"max_pixels": 784}, "784"),
        ({"frame_sizes": [[48, 64]]}, {}, "64x48 pixels; this clip has 32x24"),
        ({"frame_sizes": []}, {}, None),
    ):
        with served(FakeJudge(0.25), calibration=write_calibration(**binding)) as client:
            answer = client.post("/score", json={**frames_request, **change})
        assert answer.status_code == (422 if words else 200)
        assert words is None or words in answer.json()["detail"]


def test_a_calibration_of_another_judge_stops_the_service(write_calibration, tmp_path):
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"format": "rewardfleet')
    other = {"judge": "fake", "score": 0.5}
    for path, words in (
        (write_calibration("0", backend="openai"), "'openai', which is not loaded; loaded: fake"),
        (write_calibration("1", provenance=other), "is 0.5, that of fake is 0.25"),
        (write_calibration("2", provenance={"judge": "fake"}), "its score is None"),
        (write_calibration("3", nframes=0), "nframes"),
        (damaged, "damaged.json"),
    ):
        with pytest.raises(ValueError, match=words), served(FakeJudge(0.25), calibration=path):
            pass


def test_other_versions_of_the_software_are_accepted(write_calibration, frames_request):
    path = write_calibration(provenance={"judge": "fake", "score": 0.25})
    judge = FakeJudge(0.25)
    type_ = type("Versioned", (FakeJudge,), {"provenance": {**judge.provenance, "engine": "x 2"}})
    with served(type_(0.25), calibration=path) as client:
        assert client.post("/score", json=frames_request).status_code == 200
