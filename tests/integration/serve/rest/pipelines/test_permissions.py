"""Who may ask what of pipelines: every route is in the table, and every role may do what it is for and no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from headgate.auth.roles import Role
from tests.integration.serve.pipeline_rig import PipelineApi, done, pipeline_api
from tests.integration.serve.rpc.statestore.test_route_rules import (
    BY_TOKEN,
    CONTROL_PIPELINES,
    PIPELINES,
    PUSH_PIPELINES,
    READ_PIPELINES,
)

ALLOWED: Final[dict[Role, set[str]]] = {
    Role.CONTROL_PLANE: READ_PIPELINES | PUSH_PIPELINES,
    Role.VIEWER: READ_PIPELINES,
    Role.OPERATOR: READ_PIPELINES | PUSH_PIPELINES | CONTROL_PIPELINES,
    Role.SERVICE: READ_PIPELINES | PUSH_PIPELINES | CONTROL_PIPELINES,
    Role.ADMIN: PIPELINES,
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineApi]:
    """What is asked of it names nothing that there is."""
    with pipeline_api(Path(tmp_path_factory.mktemp("rules"))) as made:
        yield made


def test_table__all_that_is_served__is_in_it(api: PipelineApi) -> None:
    paths = done(api.get("http://127.0.0.1:8400/api/openapi.json"))["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}

    assert {each for each in served if " /api/v1/" in each} == PIPELINES | BY_TOKEN


@pytest.mark.parametrize("role", list(Role))
def test_table__every_role__may_do_what_it_is_there_for_and_no_more(api: PipelineApi, role: Role) -> None:
    key = api.key(f"the-{role}", role)
    wrong: list[str] = []

    for name in sorted(PIPELINES):
        method, path = name.split(" ")
        url = "http://127.0.0.1:8400" + re.sub(r"\{[a-z_]+\}", "x", path)
        answer = api.ask(method, url, None if method == "GET" else {}, key=key)
        is_allowed = answer.status_code not in (401, 403)
        if is_allowed is not (name in ALLOWED.get(role, set())) or answer.status_code >= 500:
            wrong.append(f"{name}: {answer.status_code} {answer.text[:120]}")

    assert not wrong, "\n".join(wrong)
