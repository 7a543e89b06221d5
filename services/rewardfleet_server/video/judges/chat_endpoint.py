"""A model behind an OpenAI-compatible endpoint (vLLM, SGLang, Ollama, …)."""

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence

import httpx
from pydantic import BaseModel, Field, JsonValue, ValidationError

from rewardfleet.tls import certificate_problem, tls_context
from rewardfleet.wire.errors import BackendFailed, Unavailable
from rewardfleet.wire.waiting import backoff_with_jitter
from rewardfleet_server.observe.tracing import trace_headers

from .labels import Position

log = logging.getLogger(__name__)

_ATTEMPTS = 6  #: attempts per request
#: The longest wait before the first retry, and before any, in seconds.
_FIRST_WAIT, _MAX_WAIT = 0.4, 20.0
_PROBE_SECONDS = 10.0  #: seconds in which the endpoint must answer whether it is up
_DOWN = {502, 503, 504}  #: answers of a proxy in front of an endpoint that is down
_MAX_BYTES = 16 * 2**20  #: bytes of a response, decompressed
#: Ends of answers that are complete, cut or refused; and of texts that are no answer, such as
#: vLLM's at updates of weights.
_ENDS = {"stop", "length", "content_filter"}
_INTERRUPTED = {"abort", "error"}


class _Logprobs(BaseModel):
    content: list[Position] = Field(min_length=1)


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class Choice(BaseModel):
    index: int = 0
    message: _Message
    finish_reason: str | None = None  #: why it ended; `length` if it was cut off
    error: JsonValue = None
    logprobs: _Logprobs | None = None  #: log-probabilities, if they were requested
    prompt_tokens: int = 0  #: what the prompt became; 0 if the endpoint does not say
    prompt_token_ids: JsonValue = None  #: these tokens, by vLLM, if they were requested

    @property
    def refusal(self) -> str | None:
        """Why the model or a filter refused to answer, or None."""
        is_filtered = self.finish_reason == "content_filter"
        return self.message.refusal or ("by a content filter" if is_filtered else None)


class _ChatCompletion(BaseModel):
    choices: list[Choice] = Field(min_length=1)
    usage: JsonValue = None
    prompt_token_ids: JsonValue = None


class _Prompt(BaseModel):
    prompt_token_ids: list[int]


class _Prompts(BaseModel):
    choices: list[_Prompt]


class ChatEndpoint:
    """Sends turns to `POST {url}/chat/completions`, and retries what may succeed later.

    Args:
        url: Base URL of the endpoint.
        concurrency: Requests at the endpoint at the same time.
        timeout_s: Seconds for one HTTP request.
    """

    def __init__(
        self, *, url: str, model: str, api_key: str | None, concurrency: int, timeout_s: float
    ) -> None:
        self._base = url.rstrip("/")
        self.url = f"{self._base}/chat/completions"  #: where requests are sent
        self.model = model
        self._slots = asyncio.Semaphore(concurrency)
        self._completions = 0
        self.breaks = 0  #: how often it could not be reached: it may have been restarted
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            limits=httpx.Limits(max_connections=concurrency + 1),  # one for `outage`
            timeout=timeout_s,
            verify=tls_context(),
            trust_env=False,
        )

    async def outage(self) -> str | None:
        """Return why the endpoint cannot be used now, or None.

        Any answer shows that it is up, except those of a proxy that cannot reach it. So does a
        completion, as an endpoint may answer nothing else while it generates.
        """
        completions = self._completions
        try:
            async with (
                asyncio.timeout(_PROBE_SECONDS),
                self._http.stream("GET", f"{self._base}/models") as response,  # body unread
            ):
                status = response.status_code
        except (httpx.HTTPError, ssl.SSLError, TimeoutError) as error:
            reason = certificate_problem(error) or f"{type(error).__name__}: {error}".rstrip(": ")
        else:
            if status not in _DOWN:
                return None
            reason = f"HTTP {status}"
        if self._completions > completions:
            return None
        self.breaks += 1
        return f"the endpoint {self._base} does not answer: {reason}"

    async def complete(self, content: Sequence[object], parameters: Mapping[str, object]) -> Choice:
        """Return the first completion: an answer that is complete, cut or refused.

        Args:
            content: The parts of the user's turn.
            parameters: Other fields of the request, e.g. of sampling.

        Raises:
            BackendFailed: A certificate or the request was refused, or no completion answered.
            Unavailable: It failed, or was interrupted, several times.
        """
        messages = [{"role": "user", "content": content}]
        async with self._slots:
            return await self._answer({"model": self.model, "messages": messages, **parameters})

    async def single_tokens(self, texts: Sequence[str]) -> dict[str, int]:
        """Return the ids of those texts that are one token; none if it is not vLLM."""
        asked = {"prompt": texts, "add_special_tokens": False, "return_token_ids": True}
        body = {"model": self.model, "max_tokens": 1, **asked}
        try:
            _, content = await self._post(f"{self._base}/completions", body)
            prompts = _Prompts.model_validate_json(content).choices
        except (httpx.TransportError, ssl.SSLError, BackendFailed, ValidationError):
            return {}
        found = zip(texts, (each.prompt_token_ids for each in prompts), strict=False)
        return {text: ids[0] for text, ids in found if len(ids) == 1}

    async def _answer(self, body: Mapping[str, object]) -> Choice:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                response, content = await self._post(self.url, body)
            except (httpx.TransportError, ssl.SSLError) as error:
                if problem := certificate_problem(error):
                    raise BackendFailed(f"the endpoint of {self.model}: {problem}") from None
                reason = f"{type(error).__name__}: {error}"
                wait = 0.0
                self.breaks += not isinstance(error, httpx.TimeoutException)
            else:
                reason = f"HTTP {response.status_code}: {content[:200].decode(errors='replace')}"
                if response.status_code == 200:
                    self._completions += 1
                    choice = self._first_choice(content)
                    if not choice.error and choice.finish_reason not in _INTERRUPTED:
                        return choice
                    reason = f"its answer ended with {choice.error or choice.finish_reason}"[:200]
                elif response.status_code != 429 and response.status_code < 500:
                    raise BackendFailed(f"the endpoint of {self.model} refused: {reason}")
                self.breaks += response.status_code in _DOWN
                wait = _retry_after(response)
            if attempt < _ATTEMPTS:
                log.warning("endpoint of %s, attempt %d: %s", self.model, attempt, reason)
                pause = backoff_with_jitter(attempt, _FIRST_WAIT, _MAX_WAIT)
                await asyncio.sleep(max(wait, pause))
        raise Unavailable(f"the endpoint of {self.model} failed {_ATTEMPTS} times: {reason}")

    async def _post(self, url: str, body: Mapping[str, object]) -> tuple[httpx.Response, bytes]:
        content = bytearray()
        sending = self._http.stream("POST", url, json=body, headers=trace_headers())
        async with sending as response:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > _MAX_BYTES:
                    reason = f"answered with more than {_MAX_BYTES} bytes"
                    raise BackendFailed(f"the endpoint of {self.model} {reason}")
        return response, bytes(content)

    def _first_choice(self, content: bytes) -> Choice:
        """Return the choice 0 of a response; it must have ended for a known reason."""
        try:
            completion = _ChatCompletion.model_validate_json(content)
            choice = next(each for each in completion.choices if each.index == 0)
        except (ValidationError, StopIteration):
            reason = "did not return a valid chat completion, or none with log-probabilities"
            raise BackendFailed(f"the endpoint of {self.model} {reason}") from None
        end = choice.finish_reason
        if not (choice.error or choice.refusal or end in _ENDS or end in _INTERRUPTED):
            reason = f"ended its answer with finish_reason {str(end)[:60]!r}, not `stop`"
            raise BackendFailed(f"the endpoint of {self.model} {reason}")
        choice.prompt_token_ids = completion.prompt_token_ids
        if isinstance(completion.usage, dict):
            tokens = completion.usage.get("prompt_tokens")
            choice.prompt_tokens = tokens if isinstance(tokens, int) else 0
        return choice

    async def aclose(self) -> None:
        await self._http.aclose()


def _retry_after(response: httpx.Response) -> float:
    try:
        seconds = float(response.headers.get("retry-after", "0"))
    except ValueError:  # a date: rare, and the backoff suffices
        return 0.0
    return min(seconds, _MAX_WAIT) if seconds > 0 else 0.0
