"""Who may ask what of pipelines: every route is in the table, and every role may do what it is for and no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from headgate.auth.roles import Role
from tests.unit.serve.pipeline_rig import PipelineApi, done, pipeline_api

_P: Final = "/api/v1/pipelines/{id}"
_O: Final = f"{_P}/periods/{{date}}"
_B: Final = "/api/v1/backfills/{backfill_id}"

READ: Final = {
    "GET /api/v1/pipelines", "POST /api/v1/pipelines/validate", "POST /api/v1/pipelines/plan", f"GET {_P}",
    f"GET {_P}/versions", f"GET {_P}/readiness", f"GET {_P}/why", f"GET {_P}/evaluations", f"POST {_P}/simulate",
    f"GET {_P}/sensors", f"GET {_P}/sensors/{{key}}", f"GET {_P}/traits", f"GET {_P}/traits/{{type}}",
    f"GET {_P}/traits/{{type}}/history", f"GET {_P}/markers", f"GET {_P}/runs", "GET /api/v1/runs/{run_id}",
    f"GET {_P}/run-logs", f"GET {_P}/run-logs/{{date}}", f"GET {_P}/run-logs/{{date}}/jobs", f"GET {_P}/reruns",
    "GET /api/v1/reruns", "GET /api/v1/reruns/{rerun_id}", f"GET {_P}/control", f"GET {_P}/backfills", f"GET {_B}",
    f"GET {_P}/events", "GET /api/v1/pipeline-events", "GET /api/v1/expectations", "GET /api/v1/calendars",
    "GET /api/v1/calendars/{name}",
}  # fmt: skip
PUSH: Final = {
    f"POST {_P}/sensors/{{key}}", f"POST {_P}/traits/{{type}}", f"POST {_P}/markers", f"POST {_P}/runs",
    "POST /api/v1/runs/{run_id}/complete", f"POST {_P}/evaluate",
}  # fmt: skip
CONTROL: Final = {
    f"POST {_P}/pause", f"POST {_P}/resume", f"POST {_O}/hold", f"POST {_O}/approve", f"POST {_O}/skip",
    f"POST {_O}/mark-success", f"POST {_O}/force", "POST /api/v1/runs/{run_id}/cancel", f"POST {_P}/reruns",
    f"POST {_P}/backfills", f"POST {_B}/pause", f"POST {_B}/resume", f"POST {_B}/cancel",
    f"DELETE {_P}/sensors/{{key}}",
}  # fmt: skip
DEFINE: Final = {f"PUT {_P}", f"DELETE {_P}", "PUT /api/v1/calendars/{name}", "DELETE /api/v1/calendars/{name}"}
ALL: Final = READ | PUSH | CONTROL | DEFINE
ALLOWED: Final[dict[Role, set[str]]] = {
    Role.CONTROL_PLANE: READ | PUSH,
    Role.VIEWER: READ,
    Role.OPERATOR: READ | PUSH | CONTROL,
    Role.SERVICE: READ | PUSH | CONTROL,
    Role.ADMIN: ALL,
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineApi]:
    """What is asked of it names nothing that there is."""
    with pipeline_api(Path(tmp_path_factory.mktemp("rules"))) as made:
        yield made


def test_table__all_that_is_served__is_in_it(api: PipelineApi) -> None:
    paths = done(api.get("http://127.0.0.1:8400/api/openapi.json"))["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}

    assert {each for each in served if " /api/v1/" in each} == ALL


@pytest.mark.parametrize("role", list(Role))
def test_table__every_role__may_do_what_it_is_there_for_and_no_more(api: PipelineApi, role: Role) -> None:
    key = api.key(f"the-{role}", role)
    wrong: list[str] = []

    for name in sorted(ALL):
        method, path = name.split(" ")
        url = "http://127.0.0.1:8400" + re.sub(r"\{[a-z_]+\}", "x", path)
        answer = api.ask(method, url, None if method == "GET" else {}, key=key)
        is_allowed = answer.status_code not in (401, 403)
        if is_allowed is not (name in ALLOWED.get(role, set())) or answer.status_code >= 500:
            wrong.append(f"{name}: {answer.status_code} {answer.text[:120]}")

    assert not wrong, "\n".join(wrong)
