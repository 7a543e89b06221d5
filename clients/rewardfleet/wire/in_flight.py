"""The samples in flight, as `GET /inflight` of services and gateways lists them."""

import heapq

from pydantic import BaseModel, Field

MAX_LISTED = 1000


class InFlightSample(BaseModel):
    """A sample in flight, or several that are scored as a whole. It contains no payload."""

    service: str = Field(description="The service, e.g. `video`.")
    replica: str = Field(description="Its host; of a gateway's answer, its URL, or `gateway`.")
    request_id: str = Field(description="The request id, as in the service's log.")
    path: str = Field(description="The route, e.g. `/score/batch`.")
    stage: str = Field(
        description="`line` (waits for its turn), `body` (it is being received), `prepare` "
        "(checks, finding the input, cache lookup), `queue` (waits for the backend), `decode`, "
        "`backend`, `jail`, or `response`."
    )
    backend: str = Field(description="What scores it; empty if that is not known yet.")
    items: int = Field(description="How many samples it is.")
    age_s: float = Field(description="Seconds since its request arrived.")
    stage_s: float = Field(description="Seconds in this stage.")
    remaining_s: float | None = Field(description="Seconds until its deadline; null if none.")


class InFlight(BaseModel):
    """The samples in flight of one replica, or of all replicas behind a gateway."""

    total: int = Field(description="How many samples are in flight, also those not listed.")
    samples: list[InFlightSample] = Field(description=f"The oldest {MAX_LISTED}, in order.")
    failures: dict[str, str] = Field(
        {}, description="Of a gateway: the URLs of replicas that did not answer, with the reason."
    )


def merged(answers: list[InFlight], failures: dict[str, str]) -> InFlight:
    """Return one list of the samples of several replicas."""
    samples = (sample for answer in answers for sample in answer.samples)
    inner = {url: reason for each in answers for url, reason in each.failures.items()}
    return InFlight(
        total=sum(answer.total for answer in answers),
        samples=heapq.nlargest(MAX_LISTED, samples, key=lambda sample: sample.age_s),
        failures=inner | failures,
    )
