"""The server's OpenAPI document: it is valid, and what is made up from it never meets an error of the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import Case, checks
from schemathesis.core.result import Ok

from tests.integration.serve.health_rig import ORDERS, HealthApi, evidence_id, health_api, of

ORIGIN: Final = "http://127.0.0.1:8400"
EXAMPLES: Final = 6
PARTS: Final = {
    "datasets", "dataset-changes", "dataset-names", "resolve", "resolution-rules", "signals", "incidents", "evidence",
    "columns", "lineage", "gate", "audit", "api-keys", "schemas",
}  # fmt: skip
CHECKS: Final = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    with health_api(tmp_path_factory.mktemp("openapi") / "home", is_whole=True) as made:
        yield made


@pytest.fixture(scope="module")
def document(api: HealthApi) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{ORIGIN}/api/openapi.json").json()
    return found


def test_document__of_the_whole_server__is_valid_openapi_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert [str(error)[:300] for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_document__of_every_operation__has_a_name_of_its_own_and_its_problems(document: dict[str, Any]) -> None:
    operations = {
        f"{method} {path}": each
        for path, methods in document["paths"].items()
        if path.startswith("/api/v1/")
        for method, each in methods.items()
    }

    names = [each["operationId"] for each in operations.values()]
    assert len(names) == len(set(names))
    for name, each in operations.items():
        assert each["summary"], name
        for status, answer in each["responses"].items():
            if status == "default" or int(status) >= 400:
                assert answer["content"].keys() == {"application/problem+json"}, f"{name} {status}"


def test_document__reports_how_to_say_who_one_is_and_what_headers_there_are(document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    assert any(each["type"] == "http" and each["scheme"] == "bearer" for each in schemes.values())
    update = document["paths"]["/api/v1/datasets/{dataset_urn}"]["put"]
    create = document["paths"]["/api/v1/datasets"]["post"]

    def headers(operation: dict[str, Any]) -> set[str]:
        return {each["name"].lower() for each in operation["parameters"] if each["in"] == "header"}

    assert "if-match" in headers(update)
    assert "idempotency-key" in headers(create)


def _known(document: dict[str, Any], ids: dict[str, list[str]]) -> dict[str, Any]:
    """Return the part of a document about health, whose ids are those of things that there are."""
    paths = {path: methods for path, methods in document["paths"].items() if set(path.split("/")[3:4]) & PARTS}
    for methods in paths.values():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                if parameter["in"] == "path" and parameter["name"] in ids:
                    parameter["schema"] = {"type": "string", "enum": ids[parameter["name"]]}
    return {**document, "paths": paths}


def _sent(api: HealthApi, case: Case[Any]) -> httpx.Response:
    prepared = requests.Session().prepare_request(
        requests.Request(
            **{
                name: value
                for name, value in case.as_transport_kwargs(base_url=ORIGIN).items()
                if name in ("method", "url", "headers", "params", "data", "json", "files", "cookies")
            }
        )
    )
    headers = {name: str(value) for name, value in prepared.headers.items() if name.lower() != "content-length"}
    content = prepared.body
    assert content is None or isinstance(content, str | bytes)

    async def talk(client: httpx.AsyncClient) -> httpx.Response:
        return await client.request(prepared.method or "GET", prepared.url or "", headers=headers, content=content)

    return api.session(talk)


def test_operations__asked_whatever_their_document_allows__answer_as_it_says(
    api: HealthApi, document: dict[str, Any]
) -> None:
    api.dataset(ORDERS)
    api.signal("CRITICAL")
    api.post("/evidence", api.evidence(1))
    api.post(f"{of(ORDERS)}/resolution-rules", {"topic_pattern": "raw.orders"})
    ids = {
        "dataset_urn": [ORDERS, "urn:dp:orders:created", "urn:dp:nobody:knows"],
        "incident_id": [api.get("/incidents").json()["items"][0]["incident_id"]],
        "evidence_id": [evidence_id(1), "evd-none"],
        "signal_type": ["FRESHNESS", "NEW"],
        "topic_pattern": ["raw.orders"],
        "name": ["default", "signal-state-schema.json"],
        "column_urn": [f"urn:col:{ORDERS}:id"],
    }
    schema = schemathesis.openapi.from_dict(_known(document, ids))
    wrong: list[str] = []
    asked = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()

        @seed(20_260_115)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def ask(case: Case[Any]) -> None:
            nonlocal asked
            asked += 1
            answer = _sent(api, case)
            try:
                case.validate_response(answer, checks=CHECKS)
            except AssertionError as error:
                wrong.append(f"{case.operation.label} {answer.status_code} {answer.text[:200]}: {str(error)[:400]}")
            except BaseExceptionGroup as errors:
                said = "; ".join(str(each)[:400] for each in errors.exceptions)
                wrong.append(f"{case.operation.label} {answer.status_code} {answer.text[:200]}: {said}")

        ask()

    assert asked > 300
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:8])
