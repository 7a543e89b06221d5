"""The async client of all services."""

import asyncio
import difflib
import inspect
import math
import numbers
import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from .answers import AnswersClient
from .code import CodeClient
from .episode import EpisodeClient
from .http.pending import PendingCalls
from .http.transport import ServiceTransport
from .service import OnFailure, RewardPolicy
from .services import SERVICES
from .tls import connections, tls_context
from .tools import ToolsClient
from .video import VideoClient
from .wire.score import MAX_NAME
from .wire.urls import is_base_url, redact

if TYPE_CHECKING:
    from .sample_tables import SampleTables
    from .score_log.of_client import ClientLog
    from .score_log.queue import ScoredQueue


class RewardFleet:
    """Async clients of the services.

    ```python
    async with RewardFleet("http://127.0.0.1:18000") as fleet:
        reward = await fleet.video.reward("put the bowl on the plate", frames)
    ```

    Each service is below the URL of the fleet: `/video`, `/code`, `/episode`, `/tools`, `/answers`.
    Nothing is sent before the first call. A service that the fleet does not have raises
    `InvalidRequest`. It can be pickled, and used in forked processes, threads, and several event
    loops, each of which has its own connections.

    Args:
        url: The base URL of a fleet (a gateway or an ingress), or those of its replicas. None: the
            services in `urls` only.
        timeout_s: Seconds, above 0, for a complete call: encoding, waiting, retries, the response.
        api_key: Sent as a bearer token.
        max_concurrency: The most items sent to each replica and not answered yet, 1 or more;
            further items wait in the client.
        coalesce_s: Seconds, in [0, 1], in which single calls are collected into one batch; 0 for
            none.
        compress_frames: Whether frames of arrays are sent compressed with zstd, for a slow network.
        on_failure: What `reward` and `rewards` do without a score: "raise", or return this number
            instead, e.g. NaN.
        binary_reward: Whether rewards of the video service are 1.0 for a score of at least
            `success_threshold`, else 0.0. If False, they are the scores. Rewards of the other
            services are always the scores.
        run: The training run of calls that do not name one, for score logs, and in batches of
            episodes. A run of the tools service has a budget, so its requests name it themselves.
        attempt: Which start of the training run this is, the same in all of its processes: the
            first call of a new one discards what services store of the run from its step on.
        score_log: A folder that keeps what was scored; see `rewardfleet log`.
        sample_tables: Logs tables of samples to the tracker of the training run.
        success_threshold: The least score of a success, in [0, 1].
        verify: A PEM file of the only authorities that are trusted. None: those of the system, of
            `SSL_CERT_FILE` and `SSL_CERT_DIR`, and of certifi.
        cert: A PEM file with the certificate of the client and its key, which is not encrypted.
        trust_env: Whether `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` are obeyed.
        urls: The base URL of a service (`video`, `code`, `episode`, `tools`, `answers`), or
            those of its replicas. It replaces the one below `url`.

    Raises:
        ValueError: A value is out of range, a URL or a file is not valid, or no URL is given.
        TypeError: There is no such service or option, or a value has another type.
        ImportError: `compress_frames` needs a package that is not installed.
    """

    # For type checkers: `SERVICES` has them.
    video: VideoClient
    code: CodeClient
    episode: EpisodeClient
    tools: ToolsClient
    answers: AnswersClient

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        timeout_s: float = 120.0,
        api_key: str | None = None,
        max_concurrency: int = 128,
        coalesce_s: float = 0.0,
        compress_frames: bool = False,
        on_failure: OnFailure = "raise",
        binary_reward: bool = True,
        success_threshold: float = 0.5,
        run: str | None = None,
        attempt: str | None = None,
        score_log: str | Path | None = None,
        sample_tables: "SampleTables | None" = None,
        verify: str | Path | None = None,
        cert: str | Path | None = None,
        trust_env: bool = False,
        **urls: str | Sequence[str] | None,
    ) -> None:
        _check("success_threshold", success_threshold, "a number in [0, 1]", 0, 1)
        _check("timeout_s", timeout_s, "seconds above 0", sys.float_info.min, sys.float_info.max)
        _check("max_concurrency", max_concurrency, "1 or more", 1, math.inf)
        _check("coalesce_s", coalesce_s, "seconds in [0, 1]", 0, 1)
        _check_types(str, run=run, attempt=attempt, api_key=api_key)
        _check_types(str | os.PathLike, score_log=score_log, verify=verify, cert=cert)
        if compress_frames and find_spec("zstandard") is None:
            raise ImportError("compress_frames needs it: pip install 'zstandard>=0.23'")
        given = {name: each for name, each in urls.items() if each is not None}
        if unknown := given.keys() - SERVICES.keys():
            known = [*inspect.signature(RewardFleet).parameters, *SERVICES]
            near = difflib.get_close_matches(min(unknown), known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise TypeError(f"no such service or option: {', '.join(sorted(unknown))}{hint}")
        base_urls: dict[str, list[str]] = {}
        if url is not None:
            fleet_urls = _base_urls("url", url, "http://127.0.0.1:18000")
            base_urls = {name: [f"{each}/{name}" for each in fleet_urls] for name in SERVICES}
        for name, each in given.items():
            base_urls[name] = _base_urls(name, each, f"http://127.0.0.1:{SERVICES[name].port}")
        if not base_urls:
            raise ValueError("give the URL of a fleet, or of a service, e.g. video=... or code=...")
        if run is not None and not 1 <= len(run) <= MAX_NAME:
            raise ValueError(f"run: give a name of 1 to {MAX_NAME} characters")
        pem = [str(Path(each).absolute()) if each else None for each in (verify, cert)]
        tls_context(*pem)  # refuses files that cannot be used
        self._logs: list[ScoredQueue] = [] if sample_tables is None else [sample_tables]
        if score_log is not None:
            from .score_log import ScoreLog  # noqa: PLC0415 - a client without one imports nothing

            self._logs.insert(0, ScoreLog(Path(score_log)))
        self._pending = PendingCalls()
        for name, service_urls in base_urls.items():
            client_type = SERVICES[name].client
            is_binary = binary_reward and client_type.has_threshold
            transport = ServiceTransport(
                name,
                service_urls,
                api_key=header_safe(api_key),
                timeout_s=timeout_s,
                max_concurrency=max_concurrency,
                compress_frames=compress_frames,
                connect=partial(connections, pem, trust_env),
                pending=self._pending,
            )
            policy = RewardPolicy(
                on_failure, is_binary, success_threshold, transport.count_fallback
            )
            log = self._log_of(name, run)
            client = client_type(
                transport, policy, coalesce_s=coalesce_s, run=run, attempt=attempt, log=log
            )
            setattr(self, name, client)

    if not TYPE_CHECKING:  # else any attribute would be accepted

        def __getattr__(self, name: str) -> NoReturn:
            hint = f"no URL of the {name} service: give {name}=..., or the URL of a fleet"
            services = f"no attribute {name!r}; the services are {', '.join(SERVICES)}"
            raise AttributeError(hint if name in SERVICES else services)

    def __repr__(self) -> str:
        clients = [repr(vars(self)[name]) for name in SERVICES if name in vars(self)]
        return f"RewardFleet({', '.join(clients)})"

    def _log_of(self, service: str, run: str | None) -> "ClientLog | None":
        if not self._logs:
            return None
        from .score_log.of_client import ClientLog  # noqa: PLC0415 - imports numpy

        return ClientLog(self._logs, service, run)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        for name in SERVICES.keys() & vars(self).keys():
            await getattr(self, name).aclose()
        for log in self._logs:
            await asyncio.to_thread(log.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _check(name: str, value: Any, accepted: str, low: float, high: float) -> None:
    is_number = isinstance(value, numbers.Real)  # also numpy's
    if not (is_number and low <= value <= high):
        raise ValueError(f"{name}: give {accepted}, not {value!r}")


def _check_types(accepted: Any, **values: object) -> None:
    for name, value in values.items():  # which may be secret
        if not isinstance(value, accepted | None):
            what = "a text" if accepted is str else "a path"
            raise TypeError(f"{name}: give {what}, not {type(value).__name__}")


def header_safe(api_key: str | None) -> str | None:
    """Return a key that fits in a header, without white space around it, or raise `ValueError`."""
    key = (api_key or "").strip()
    if not (key.isascii() and key.isprintable()):  # the message must not contain it
        raise ValueError("the API key is not one line of plain ASCII")
    return key or None


def _base_urls(argument: str, given: str | Sequence[str], example: str) -> list[str]:
    """Check the base URLs of an argument; return each once, without a slash at the end."""
    urls = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for url in urls:
        if not (isinstance(url, str) and is_base_url(url)):
            raise ValueError(f"{argument}: give a URL such as {example}, not {redact(str(url))!r}")
    if not urls:
        raise ValueError(f"{argument}: give one URL or more")
    return list(dict.fromkeys(url.rstrip("/") for url in urls))
