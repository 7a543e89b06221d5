"""Wrong methods, strict types, and what the OpenAPI documents say about them."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from rewardfleet import MethodNotAllowed, RewardFleetError
from rewardfleet.services import SERVICES
from rewardfleet.wire.errors import ErrorKind, Problem
from rewardfleet_server.up.gateway import Gateway

from ...conftest import DATA, JSON, client_of, table
from ...gateways import LOOPBACK
from ..conftest import apps_of_all

#: Routes that answer without a key; that of metrics with a setting only.
OPEN = {"/", "/health", "/healthz", "/readyz", "/metrics"}


@contextmanager
def serving_all(**settings: Any) -> Iterator[dict[str, httpx.Client]]:
    """Serve all services with the same settings; yield their clients."""
    apps = apps_of_all(**settings)
    with ExitStack() as stack:
        yield {name: stack.enter_context(client_of(app)) for name, app in apps.items()}


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, httpx.Client]]:
    with serving_all() as services, client_of(Gateway({"tools": []}, LOOPBACK)) as gateway:
        yield {**services, "gateway": gateway}


def test_every_other_route_needs_the_key(tmp_path: Path):
    (tmp_path / "keys").write_text("secret\n")
    key = {"authorization": "Bearer secret"}
    settings = {"api_key_file": tmp_path / "keys", "open_metrics": True}
    with serving_all(**settings) as services:
        for name, client in services.items():
            paths = client.get("/openapi.json", headers=key).json()["paths"]
            routes = [(path, method) for path, methods in paths.items() for method in methods]
            for path, method in routes:
                url = re.sub(r"\{\w+\}", "r", path)
                answers = [client.request(method, url, json={}, headers=h) for h in ({}, key)]
                # The score log, which is off here, has a key of its own.
                is_open = path in OPEN or path.startswith("/score-log")
                refused = [answer.status_code == 401 for answer in answers]
                assert refused == [not is_open, False], (name, method, path)


@pytest.mark.parametrize(("service", "method", "path", "allowed"), table("wrong_methods"))
def test_a_wrong_method_is_405_with_allow(
    services: dict[str, httpx.Client], service: str, method: str, path: str, allowed: str
):
    response = services[service].request(method, path, json={})
    assert (response.status_code, response.headers["allow"]) == (405, allowed)
    if path.startswith("/v1/"):
        assert response.json()["error"]["code"] == "method_not_allowed"
        return
    assert response.headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate_json(response.content)
    assert problem.kind is ErrorKind.METHOD_NOT_ALLOWED
    assert allowed in problem.detail
    assert isinstance(RewardFleetError.from_problem(problem), MethodNotAllowed)
    assert response.headers["x-request-id"] == problem.request_id


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unknown_path_is_404(services: dict[str, httpx.Client], method: str):
    for service in services.values():
        assert service.request(method, "/nothing", json={}).status_code == 404


#: A body of each route, and where an integer is in it.
INTEGERS: list[tuple[str, str, dict[str, Any], tuple[str, ...]]] = table("integers")


def with_value(body: dict[str, Any], where: tuple[str, ...], value: object) -> dict[str, Any]:
    name, *rest = where
    inner = with_value(body.get(name, {}), tuple(rest), value) if rest else value
    return {**body, name: inner}


@pytest.mark.parametrize(("service", "path", "body", "where"), INTEGERS)
def test_text_and_booleans_are_no_integers(
    services: dict[str, httpx.Client],
    service: str,
    path: str,
    body: dict[str, Any],
    where: tuple[str, ...],
):
    client = services[service]
    number = {"nframes": 16, "max_pixels": 784, "memory_mb": 64, "memory_limit_MB": 64}
    valid = number.get(where[-1], 1)
    for value in (str(valid), True, valid + 0.5, [valid], {}):
        refused = client.post(path, json=with_value(body, where, value))
        assert refused.status_code == 422, value
        assert f"{where[-1]}:" in refused.text
    accepted = client.post(path, json=with_value(body, where, valid))
    as_float = client.post(path, json=with_value(body, where, float(valid)))
    assert as_float.status_code == accepted.status_code
    assert f"{where[-1]}:" not in as_float.text


@pytest.mark.parametrize(("service", "path", "body"), table("wrong_types"))
def test_no_type_stands_for_another(
    services: dict[str, httpx.Client], service: str, path: str, body: dict[str, Any]
):
    refused = services[service].post(path, json=body)
    assert (refused.status_code, refused.json()["kind"]) == (422, "invalid")


@pytest.mark.parametrize(("service", "item", "wrong"), table("wrong_items"))
def test_items_of_a_batch_are_as_strict_as_single_ones(
    services: dict[str, httpx.Client], service: str, item: dict[str, Any], wrong: dict[str, Any]
):
    items = [item, {**item, **wrong, **({"uid": "b"} if "uid" in item else {})}]
    answer = services[service].post("/score/batch", json={"items": items})
    assert answer.status_code == 200
    first, second = answer.json()["results"]
    assert next(iter(wrong)) not in str(first.get("error"))
    assert (second["status"], second["error"]["kind"]) == ("error", "invalid")
    assert next(iter(wrong)) in second["error"]["detail"]


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity", "1" + "0" * 400])
@pytest.mark.parametrize(("service", "path", "body"), table("bodies_with_numbers"))
def test_numbers_that_are_not_finite_are_refused(
    services: dict[str, httpx.Client], service: str, path: str, body: str, number: str
):
    refused = services[service].post(path, content=body % number, headers=JSON)
    assert (refused.status_code, refused.json()["kind"]) == (422, "invalid")


def test_a_member_that_is_invalid_by_itself_is_refused_at_once(services: dict[str, httpx.Client]):
    item = {"uid": "a", "group": "other", "kind": "efficiency", "success": True}
    member = {"run": "r", "step": 1, "group_size": 2, "item": item}
    refused = services["episode"].post("/groups/members", json=member)
    assert (refused.status_code, refused.json()["kind"]) == (422, "invalid")
    assert "needs steps" in refused.json()["detail"]


#: What a schema allows, and what it forbids by rules between fields.
RULES = [json.loads(line) for line in (DATA / "rules.jsonl").read_text().splitlines()]


#: That a video cannot be read, which is found out last.
UNUSABLE = re.compile(r"--video-root|is not a video|frames_base64\[0\] is not a JPEG or PNG")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule['service']}{rule['path']}")
def test_the_schema_and_the_service_agree(services: dict[str, httpx.Client], rule: dict[str, Any]):
    client, path = services[rule["service"]], rule["path"]
    body, is_valid = rule["body"], rule["valid"]
    route = client.get("/openapi.json").json()["paths"][path]["post"]
    schema = route["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema.Draft202012Validator(schema).is_valid(body) == is_valid
    client.put("/budgets/rules", json={})
    response = client.post(path.replace("{run}", "rules"), json=body)
    is_accepted = response.status_code == 200 or bool(UNUSABLE.search(response.text))
    assert is_accepted == is_valid, response.text


def test_failures_are_documented_as_problems(services: dict[str, httpx.Client]):
    for name in SERVICES:
        document = services[name].get("/openapi.json").json()
        assert "Problem" in document["components"]["schemas"]
        for path, operations in document["paths"].items():
            for operation in operations.values():
                failures = {**operation["responses"]}
                failures.pop("200")
                assert {"403", "405"} <= set(failures), path
                accepted = {"application/json" if "/v1/" in path else "application/problem+json"}
                assert all({*each["content"]} == accepted for each in failures.values()), path
