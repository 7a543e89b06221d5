"""API keys, over real HTTP."""

import os
from pathlib import Path

import pytest

from rewardfleet.wire.errors import Unauthorized
from rewardfleet_server.http.auth import ApiKeys

from ...conftest import Serve


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# trainers\nfirst-key\n\nsecond-key\n")
    return path


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_only_listed_keys_are_accepted(serve: Serve, frames_request, key_file):
    client = serve(api_key_file=key_file)
    for key in ("first-key", "second-key"):
        assert client.post("/score", json=frames_request, headers=bearer(key)).status_code == 200
    refused = [bearer("wrong"), bearer("# trainers"), {}, {"authorization": "first-key"}]
    for path in ("/score", "/score/batch"):
        for headers in refused:
            answer = client.post(path, json=frames_request, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "Bearer" in answer.json()["detail"]
            assert "first-key" not in answer.text


def test_refused_requests_are_reported_but_not_each_of_them(
    serve: Serve, frames_request, key_file, caplog: pytest.LogCaptureFixture
):
    client = serve(api_key_file=key_file)
    for _ in range(3):
        client.post("/score", json=frames_request, headers=bearer("a-wrong-key"))
    [message] = [each for each in caplog.messages if "REQUESTS ARE REFUSED" in each]
    assert "--api-key-file" in message and "a-wrong-key" not in message


def test_health_needs_no_key_and_metrics_do_unless_opened(serve: Serve, key_file):
    client = serve(api_key_file=key_file)
    for path in ("/healthz", "/readyz", "/health"):
        assert client.get(path).status_code == 200
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers=bearer("first-key")).status_code == 200
    assert serve(api_key_file=key_file, open_metrics=True).get("/metrics").status_code == 200


def test_a_replaced_key_file_of_equal_size_and_time_is_noticed(key_file: Path, monkeypatch):
    monkeypatch.setattr("rewardfleet_server.http.auth._RELOAD_SECONDS", 0)
    keys = ApiKeys(key_file)
    keys.check("bearer first-key")
    before = key_file.stat()
    with key_file.open("r+b") as file:  # the same inode
        file.write(key_file.read_bytes().replace(b"first-key", b"other-key"))
    os.utime(key_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    keys.check("Bearer other-key")
    with pytest.raises(Unauthorized):
        keys.check("Bearer first-key")


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n", b"schl\xc3\xbcssel", b"\xff\xfe"])
def test_while_the_key_file_is_invalid_every_key_is_refused(
    key_file: Path, monkeypatch, caplog, content: bytes | None
):
    monkeypatch.setattr("rewardfleet_server.http.auth._RELOAD_SECONDS", 0)
    keys = ApiKeys(key_file)
    valid = key_file.read_bytes()
    key_file.unlink()
    if content is not None:
        key_file.write_bytes(content)
    for key in ("first-key", "second-key", "wrong", "") * 2:
        with pytest.raises(Unauthorized):
            keys.check(f"Bearer {key}")
    assert caplog.text.count("no API key is accepted") == 1
    key_file.write_bytes(valid)
    keys.check("Bearer first-key")


def test_a_key_file_without_a_key_is_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        ApiKeys(path := tmp_path / "keys")
    for text, reason in (("# nothing\n", "no key in"), ("schlüssel\n", "plain ASCII")):
        path.write_text(text)
        with pytest.raises(ValueError, match=reason):
            ApiKeys(path)
    path.write_bytes(b"\xef\xbb\xbffirst-key\r\n")
    ApiKeys(path).check("Bearer first-key")


def test_the_password_of_a_url_is_a_key(serve: Serve, frames_request, key_file):
    """Trainers that take a URL only can use `http://any:KEY@host`."""
    client = serve(api_key_file=key_file)
    for auth, status in ((("any", "first-key"), 200), (("first-key", ""), 401)):
        assert client.post("/score", json=frames_request, auth=auth).status_code == status
    for credentials in ("first-key", "!", "Zmlyc3Q="):
        headers = {"authorization": f"Basic {credentials}"}
        assert client.post("/score", json=frames_request, headers=headers).status_code == 401
