"""A fleet behind TLS, with an authority of its own, or behind a proxy."""

import asyncio
import json
import os
import pickle
import re
import shutil
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import trustme

from rewardfleet import RewardFleet, Unavailable, blocking
from rewardfleet.adapters.trl import reward_function
from rewardfleet.tls import tls_context
from rewardfleet.wire.errors import BackendFailed
from rewardfleet_server.testing import serving, wait_until
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings
from rewardfleet_server.video.judges.chat_endpoint import ChatEndpoint

from ..gateways import fleet_of
from ..running import output_of, own_environment

TRUTH = "<response>42</response>"
ANSWER = f"<think>x</think>\n{TRUTH}"  # scores 1
KEY = "the key of the log"
PAST = datetime(2020, 1, 1, tzinfo=UTC)
EXPIRED = {"not_before": PAST, "not_after": PAST + timedelta(days=1)}
#: Before and since 1.3, a server refuses the client in the handshake, and in place of an answer.
TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
UNTRUSTED = "its certificate is refused"


class Front(ThreadingHTTPServer):
    """A server in front of a fleet, with TLS if it has a context, or a proxy of any host."""

    daemon_threads = True

    def __init__(self, fleet_url: str, tls: ssl.SSLContext | None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Passing)
        self.fleet_url = fleet_url
        self.passed: list[str] = []
        self.refused = 0  #: handshakes
        if tls is not None:  # the handshake is in the thread of its connection
            options = {"server_side": True, "do_handshake_on_connect": False}
            self.socket = tls.wrap_socket(self.socket, **options)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address) -> None:
        pass  # refused handshakes are part of the tests


class Passing(BaseHTTPRequestHandler):
    server: Front
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        if isinstance(self.request, ssl.SSLSocket):
            try:
                self.request.do_handshake()
            except ssl.SSLError:  # the client reads why before the connection is reset
                self.server.refused += 1
                self.request.shutdown(socket.SHUT_WR)
                while self.request.recv(65536):
                    pass
                raise
        super().setup()

    def do_GET(self) -> None:
        self.server.passed.append(self.path)
        url = self.path if self.path.startswith("http") else self.server.fleet_url + self.path
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        options = {"content": body, "headers": headers, "timeout": 60, "trust_env": False}
        answer = httpx.request(self.command, url, **options)
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_POST = do_DELETE = do_GET  # noqa: N815 - names of http.server

    def do_CONNECT(self) -> None:
        self.server.passed.append(self.path)
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as to:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=self._copy, args=(to, self.connection), daemon=True)
            back.start()
            self._copy(self.connection, to)
            back.join()
        self.close_connection = True

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):  # the other direction has ended
            while content := source.recv(65536):
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    def log_message(self, *_: object) -> None:
        pass


class Pem:
    """Files of certificates in a folder, and of an authority of no system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = self._write("ca", self.authority.cert_pem)
        self.client = self._client("client", self.authority)
        self.others = self._client("others", trustme.CA())

    def server_context(self, name: str = "127.0.0.1", **fields: datetime) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(name, **fields).configure_cert(context)
        return context

    def _client(self, name: str, authority: trustme.CA) -> str:
        return self._write(name, authority.issue_cert(name).private_key_and_cert_chain_pem)

    def _write(self, name: str, pem: trustme.Blob) -> str:
        pem.write_to_path(self.folder / f"{name}.pem")
        return str(self.folder / f"{name}.pem")


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Pem:
    return Pem(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a gateway of the tools service, which shows its log."""
    folder = tmp_path_factory.mktemp("log")
    (folder / "keys").write_text(KEY)
    settings = ToolsSettings(score_log=folder / "log", score_log_key_file=folder / "keys")
    with serving(create_app(settings)) as tools, fleet_of(tools=tools) as url:
        yield url


@contextmanager
def fronted(fleet: str, context: ssl.SSLContext | None, port: int = 0) -> Iterator[Front]:
    front = Front(fleet, context, port)
    thread = threading.Thread(target=front.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield front
    finally:
        front.shutdown()
        front.server_close()


@pytest.fixture
def front(fleet: str, pem: Pem) -> Iterator[Front]:
    with fronted(fleet, pem.server_context()) as front:
        yield front


async def reward(url: str, **options: object) -> float:
    async with RewardFleet(url, timeout_s=3600, **options) as fleet:
        return await fleet.tools.reward(ANSWER, TRUTH)


@pytest.mark.parametrize(
    ("server", "given", "problem"),
    [
        ({}, {"verify": "ca"}, None),
        ({}, {"verify": "ca", "cert": "client"}, None),
        ({}, {"verify": "client"}, rf"{UNTRUSTED} \(.*issuer.*SSL_CERT_FILE, or as verify="),
        ({}, {}, rf"{UNTRUSTED} \(.*issuer.*SSL_CERT_FILE, or as verify="),
        ({"name": "b"}, {"verify": "ca"}, rf"{UNTRUSTED} \(IP address.*use a host name"),
        (EXPIRED, {"verify": "ca"}, rf"{UNTRUSTED} \(.*expired\): replace it"),
        ({"wants": TLS_1_2}, {"verify": "ca", "cert": "client"}, None),
        ({"wants": TLS_1_2}, {"verify": "ca"}, "wants another client certificate.*cert="),
        ({"wants": TLS_1_2}, {"verify": "ca", "cert": "others"}, "wants another.*UNKNOWN_CA"),
        ({"wants": TLS_1_3}, {"verify": "ca", "cert": "client"}, None),
        ({"wants": TLS_1_3}, {"verify": "ca"}, "wants another client certificate.*cert="),
        ({"wants": TLS_1_3}, {"verify": "ca", "cert": "others"}, "wants another.*UNKNOWN_CA"),
    ],
)
async def test_a_certificate_is_accepted_or_the_error_says_what_to_do(
    pem: Pem, fleet: str, server, given, problem
):
    context = pem.server_context(**{name: server[name] for name in server.keys() - {"wants"}})
    if "wants" in server:
        context.verify_mode = ssl.CERT_REQUIRED
        context.maximum_version = server["wants"]
        pem.authority.configure_trust(context)
    options = {name: getattr(pem, file) for name, file in given.items()}
    with fronted(fleet, context) as front:
        if problem is None:
            assert await reward(front.url, **options) == 1.0
            return
        with pytest.raises(Unavailable, match=problem) as failure:
            await reward(front.url, on_failure=0.5, **options)
        assert failure.value.blames_url and front.url in failure.value.detail
        assert not front.passed


async def test_a_call_waits_for_the_certificate_of_a_url_that_has_worked(pem: Pem, fleet: str):
    async def call() -> float:
        return (await fleet_of_front.tools.score(ANSWER, TRUTH)).score

    with fronted(fleet, pem.server_context()) as front:
        fleet_of_front = RewardFleet(front.url, verify=pem.ca)
        assert await call() == 1.0
    await fleet_of_front.aclose()  # else its connection would be used again
    port = front.server_address[1]
    with fronted(fleet, pem.server_context(**EXPIRED), port) as front:
        waiting = asyncio.create_task(call())
        await asyncio.to_thread(wait_until, lambda: front.refused > 1, 60)
    with fronted(fleet, pem.server_context(), port):
        assert await waiting == 1.0
        await fleet_of_front.aclose()


def test_files_that_cannot_be_used_are_refused_when_the_fleet_is_made(pem: Pem, tmp_path: Path):
    from cryptography.hazmat.primitives import serialization as forms  # noqa: PLC0415

    leaf = pem.authority.issue_cert("client")
    key = forms.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    form = forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.BestAvailableEncryption(b"x")
    locked = key.private_bytes(*form) + leaf.cert_chain_pems[0].bytes()
    (tmp_path / "locked.pem").write_bytes(locked)
    # Nobody is asked for its password.
    certs = [("cert", file) for file in ("none.pem", pem.ca, tmp_path / "locked.pem")]
    for name, file in (("verify", "none.pem"), ("verify", __file__), *certs):
        with pytest.raises(ValueError, match=f"{name}=.*{Path(file).name}.*: "):
            RewardFleet("https://127.0.0.1:1", **{name: file})


async def test_an_adapter_and_a_blocking_fleet_take_their_files_into_other_folders(
    pem: Pem, front: Front, monkeypatch
):
    monkeypatch.chdir(pem.folder)
    options = {"verify": Path("ca.pem"), "cert": "client.pem", "is_async": False}
    reward = reward_function("tools", f"{front.url}/tools", **options)
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(reward))
    assert await asyncio.to_thread(again, [ANSWER], ground_truth=[TRUTH]) == [1.0]
    again._scorer.loop.close(again._scorer.fleet.aclose())
    with blocking.RewardFleet(tools=front.url, verify=pem.ca) as fleet:  # found below the URL
        assert fleet.tools.score(ANSWER, TRUTH).score == 1.0


ASKED = f"""
from rewardfleet import blocking
print(blocking.RewardFleet("URL").tools.score({ANSWER!r}, {TRUTH!r}).score)
"""
COPIED = f"""
from rewardfleet.score_log.copying import copied
with copied(["URL"], {KEY!r}) as [copies]:
    assert not copies.problems()
    print("copied")
"""
#: What each program prints of a fleet that it trusts, and its status then and otherwise.
PROGRAMS = {
    ASKED: ("1.0", 0, 1),
    COPIED: ("copied", 0, 1),
    "status URL": ("ready", 0, 1),
    "load URL --duration-s 0.5 --max-errors 0": ("p99", 0, 2),
    "score tools rows.jsonl --url URL": ("1.0", 0, 2),
    "explain row --url URL": ("1", 0, 2),
    "run-state delete r URL": ("had nothing", 1, 2),
    "harbor answer --ground-truth truth --url URL --output-dir .": ("", 0, 2),
}


@pytest.fixture
def run(front: Front, tmp_path: Path) -> Callable[..., str]:
    """Run one of `PROGRAMS`, maybe by another program, with no other variables of certificates."""
    row = json.dumps({"response": ANSWER, "ground_truth": TRUTH})
    for name, text in {"rows.jsonl": row, "row": row, "answer": ANSWER, "truth": TRUTH}.items():
        (tmp_path / name).write_text(text)

    def run(program: str, *before: object, fails: bool = False, **variables: str) -> str:
        words = ["-c", program] if "\n" in program else ["-m", "rewardfleet", *program.split()]
        given = [each.replace("URL", front.url) for each in words]
        inherited = {name: each for name, each in own_environment().items() if "SSL" not in name}
        shown, *statuses = PROGRAMS[program]
        options = {"status": statuses[fails], "env": {**inherited, **variables}, "cwd": tmp_path}
        printed = output_of(*before, sys.executable, *given, **options)
        assert fails or shown in printed
        return printed

    return run


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.split()[0])
def test_every_command_trusts_the_authority_of_ssl_cert_file_and_else_names_it(
    run, pem: Pem, front: Front, program: str
):
    run(program, SSL_CERT_FILE=pem.ca)
    assert re.search(rf"{UNTRUSTED}.*SSL_CERT_FILE", " ".join(run(program, fails=True).split()))


@pytest.mark.slow
def test_the_authorities_of_the_system_and_of_a_folder_are_trusted(run, pem: Pem, tmp_path: Path):
    store = Path(ssl.get_default_verify_paths().openssl_cafile).resolve()
    if not (shutil.which("openssl") and shutil.which("bwrap") and store.exists()):
        pytest.skip("this system has no store of OpenSSL, or no bubblewrap")
    shutil.copy(pem.ca, tmp_path)
    output_of("openssl", "rehash", tmp_path)
    run(ASKED, SSL_CERT_DIR=str(tmp_path))
    run(ASKED, "bwrap", "--dev-bind", "/", "/", "--ro-bind", pem.ca, store)


async def test_a_judge_trusts_ssl_cert_file_and_a_wrong_certificate_is_named_at_once(
    pem: Pem, front: Front, monkeypatch
):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    for is_trusted in (False, True):
        tls_context.cache_clear()
        judge = ChatEndpoint(url=front.url, model="m", api_key=None, concurrency=1, timeout_s=60)
        if is_trusted:
            assert await judge.outage() is None
        else:
            assert "SSL_CERT_FILE" in str(await judge.outage())
            with pytest.raises(BackendFailed, match=f"{UNTRUSTED}.*SSL_CERT_FILE"):
                await judge.complete([], {})
        await judge.aclose()
        monkeypatch.setenv("SSL_CERT_FILE", pem.ca)
    monkeypatch.undo()
    tls_context.cache_clear()


async def test_proxies_of_the_environment_are_used_where_that_is_asked_for(
    pem: Pem, front: Front, fleet: str, monkeypatch
):
    for name in [each for each in os.environ if each.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with fronted("", None) as proxy:
        host = front.url.removeprefix("https://")
        for variable, url, passed in (
            ("HTTPS_PROXY", front.url, host),
            ("HTTP_PROXY", fleet, f"{fleet}/tools/score"),
            ("ALL_PROXY", front.url, host),
        ):
            scheme = "http://" if variable == "ALL_PROXY" else ""  # which may be left out
            monkeypatch.setenv(variable, proxy.url.removeprefix(scheme))
            for asked, direct, expected in ((0, "", []), (1, "", [passed]), (1, "127.0.0.1", [])):
                monkeypatch.setenv("NO_PROXY", direct)
                assert await reward(url, verify=pem.ca, trust_env=bool(asked)) == 1.0
                assert proxy.passed == expected
                proxy.passed.clear()
            monkeypatch.delenv(variable)
