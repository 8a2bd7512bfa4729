"""Page routes under `/ui`: rendered HTML with the API's authorization, and live updates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec
from litestar import Request, Response, get
from litestar.enums import MediaType
from litestar.types import ControllerRouterHandler

from headgate.auth.principals import require
from headgate.auth.roles import Permission
from headgate.errors import HeadgateError, InvalidPayloadError, NotFoundError, TransientError, UnauthenticatedError
from headgate.health.model import urns
from headgate.health.model.timestamps import instant
from headgate.health.service import HealthService
from headgate.serve.http import sse
from headgate.serve.http.operations import principal_of
from headgate.serve.http.problem import CHALLENGE, retry_after
from headgate.serve.pages import datasets as page_datasets
from headgate.serve.pages import incidents as page_incidents
from headgate.serve.pages import labels
from headgate.serve.pages import pipelines as page_pipelines
from headgate.serve.pages import run as page_runs
from headgate.serve.pages.api_calls import ApiCaller, ApiCatalog, PipelineSource, segment, twin
from headgate.serve.pages.board import board
from headgate.serve.pages.live_updates import PageChanges, Subject
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

if TYPE_CHECKING:
    from jinja2 import Environment

PATH: Final = "/ui"
_DATASET: Final = "/datasets/{dataset_urn:str}"
_INCIDENT: Final = "/incidents/{incident_id:str}"
_PIPELINE: Final = "/pipelines/{pipeline_id:str}"
_RUN: Final = "/runs/{run_id:str}"
_OF_PIPELINES: Final = "pipelines"
# Sent by the page script to request only the page content.
FRAGMENT: Final = "headgate-fragment"
_ASSETS: Final[Mapping[str, str]] = {"style.css": "text/css", "live.js": "text/javascript"}
# Only our own script and style may run, and the page may not be framed.
_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_ASSET_HEADERS: Final[Mapping[str, str]] = {
    "cache-control": "max-age=86400",
    "x-content-type-options": "nosniff",
}

Drawn = Callable[[ApiCaller], "Page"]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page: template, view, JSON twin and live-update stream."""

    template: str
    title: str
    view: Any
    json: str = ""
    cli: str = ""
    changes: str = ""
    section: str = ""
    status: int = 200
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


def page_routes(
    health: HealthService, pool: WorkPool, watches: WatchHub, pipelines: PipelineSource | None = None
) -> list[ControllerRouterHandler]:
    """Return the routes of the pages. Without `pipelines`, their pages explain how to enable them."""
    drawing = _Renderer(ApiCatalog(health, pipelines), pool)
    changes = PageChanges(health, pool, watches)

    def route(path: str, draw: Callable[[Request[Any, Any, Any]], Drawn]) -> ControllerRouterHandler:
        async def show(request: Request[Any, Any, Any]) -> Response[Any]:
            return await drawing.answer(request, draw(request))

        return get(path, include_in_schema=False, sync_to_thread=None)(show)

    @get(f"{PATH}/changes", include_in_schema=False)
    async def follow(request: Request[Any, Any, Any]) -> Response[Any]:
        pipeline_id = request.query_params.get("pipeline_id") or None
        if pipeline_id is not None or request.query_params.get("of") == _OF_PIPELINES:
            principal = require(principal_of(request.scope), Permission.PIPELINE_READ)
            subject = Subject(pipeline_id=pipeline_id, is_of_pipelines=True)
            return sse.stream(changes.messages(principal, subject))
        named = request.query_params.get("dataset_urn") or None
        urn = None if named is None else await pool.run(lambda: health.registered(urns.dataset_urn(named)))
        principal = require(principal_of(request.scope), Permission.DATASET_READ, urn)
        return sse.stream(changes.messages(principal, Subject(dataset_urn=urn)))

    return [
        route(PATH, lambda _request: _board),
        route(f"{PATH}/datasets", _dataset_list),
        route(PATH + _DATASET, _dataset),
        route(f"{PATH}/incidents", _incident_list),
        route(PATH + _INCIDENT, _incident),
        route(f"{PATH}/pipelines", _pipeline_list),
        route(PATH + _PIPELINE, _pipeline),
        route(PATH + _RUN, _run),
        # Catch-all below /ui, so that unknown paths get an error page.
        *(route(f"{PATH}{under}/{{rest:path}}", _nothing) for under in ("", _DATASET, _INCIDENT, _PIPELINE, _RUN)),
        follow,
        *(_asset(name, media_type, drawing.assets[name]) for name, media_type in _ASSETS.items()),
    ]


# Views.


def _board(api: ApiCaller) -> Page:
    return Page(
        template="board.html",
        title="Health",
        view=board(api),
        json=twin("/incidents", {"status": ["OPEN", "ACKNOWLEDGED"]}),
        cli=labels.command("incident", "ls"),
        changes=f"{PATH}/changes",
        section="board",
    )


def _dataset_list(request: Request[Any, Any, Any]) -> Drawn:
    query = _query(request, page_datasets.FILTERS, frozenset())

    def draw(api: ApiCaller) -> Page:
        view = page_datasets.dataset_list(api, query)
        return Page(
            template="datasets.html",
            title="Datasets",
            view=view,
            json=twin("/datasets", query),
            cli=view.cli,
            changes=f"{PATH}/changes",
            section="datasets",
        )

    return draw


def _dataset(request: Request[Any, Any, Any]) -> Drawn:
    urn: str = request.path_params["dataset_urn"]

    def draw(api: ApiCaller) -> Page:
        view = page_datasets.dataset_page(api, urn)
        name = view.dataset["dataset_urn"]
        return Page(
            template="dataset.html",
            title=name,
            view=view,
            json=twin(f"/datasets/{segment(name)}"),
            cli=view.commands[0][1],
            changes=f"{PATH}/changes?{urlencode({'dataset_urn': name})}",
            section="datasets",
        )

    return draw


def _incident_list(request: Request[Any, Any, Any]) -> Drawn:
    query = _query(request, page_incidents.FILTERS, page_incidents.CHOICES)

    def draw(api: ApiCaller) -> Page:
        view = page_incidents.incident_list(api, query)
        return Page(
            template="incidents.html",
            title="Incidents",
            view=view,
            json=twin("/incidents", query),
            cli=view.cli,
            changes=f"{PATH}/changes",
            section="incidents",
        )

    return draw


def _incident(request: Request[Any, Any, Any]) -> Drawn:
    incident_id: str = request.path_params["incident_id"]

    def draw(api: ApiCaller) -> Page:
        view = page_incidents.incident_page(api, incident_id)
        return Page(
            template="incident.html",
            title=view.incident["title"],
            view=view,
            json=twin(f"/incidents/{segment(incident_id)}/context"),
            cli=view.commands[0][1],
            changes=f"{PATH}/changes?{urlencode({'dataset_urn': view.incident['primary_dataset_urn']})}",
            section="incidents",
        )

    return draw


def _pipeline_list(request: Request[Any, Any, Any]) -> Drawn:
    query = _query(request, page_pipelines.FILTERS, frozenset())

    def draw(api: ApiCaller) -> Page:
        view = page_pipelines.pipeline_list(api, query)
        return Page(
            template="pipelines.html",
            title="Pipelines",
            view=view,
            json=twin("/pipelines"),
            cli=view.cli,
            changes=f"{PATH}/changes?{urlencode({'of': _OF_PIPELINES})}",
            section="pipelines",
        )

    return draw


def _pipeline(request: Request[Any, Any, Any]) -> Drawn:
    pipeline_id: str = request.path_params["pipeline_id"]
    query = _query(request, ("date", "schedule"), frozenset())

    def draw(api: ApiCaller) -> Page:
        view = page_pipelines.pipeline_page(api, pipeline_id, query)
        return Page(
            template="pipeline.html",
            title=pipeline_id,
            view=view,
            json=twin(f"/pipelines/{segment(pipeline_id)}"),
            cli=view.commands[0][1],
            changes=f"{PATH}/changes?{urlencode({'pipeline_id': pipeline_id})}",
            section="pipelines",
        )

    return draw


def _run(request: Request[Any, Any, Any]) -> Drawn:
    run_id: str = request.path_params["run_id"]

    def draw(api: ApiCaller) -> Page:
        view = page_runs.run_page(api, run_id)
        return Page(
            template="run.html",
            title=f"{view.run['pipeline_id']} of {view.run['date']}",
            view=view,
            json=twin(f"/runs/{segment(run_id)}"),
            cli=view.commands[0][1],
            changes=f"{PATH}/changes?{urlencode({'pipeline_id': view.run['pipeline_id']})}",
            section="pipelines",
        )

    return draw


def _nothing(request: Request[Any, Any, Any]) -> Drawn:
    path = request.scope["path"]

    def draw(_asking: ApiCaller) -> Page:
        raise NotFoundError(f"{path}: no such page")

    return draw


def _failed(error: HeadgateError) -> Page:
    headers = {}
    if isinstance(error, UnauthenticatedError):
        headers = dict(CHALLENGE)
    elif isinstance(error, TransientError):
        headers = retry_after(error.retry_after_seconds)
    return Page(
        template="error.html",
        title=HTTPStatus(error.http_status).phrase,
        view=error,
        status=error.http_status,
        headers=headers,
    )


def _query(request: Request[Any, Any, Any], names: Sequence[str], choices: frozenset[str]) -> dict[str, Any]:
    """Return the query of a form, without empty and unknown fields."""
    found: dict[str, Any] = {}
    for name in (*names, "page_token"):
        given = [each for each in request.query_params.getall(name, []) if each.strip()]
        if given:
            found[name] = given if name in choices else given[0]
    return found


# Rendering.


class _Renderer:
    """Renders pages in the thread pool."""

    def __init__(self, questions: ApiCatalog, pool: WorkPool) -> None:
        self._questions = questions
        self._pool = pool
        folder = files("headgate.serve.pages") / "templates"
        self.assets = {name: (folder / name).read_bytes() for name in _ASSETS}

    @functools.cached_property
    def _templates(self) -> Environment:
        # Created on the first page request: most servers are used by programs only.
        from headgate.serve.pages.rendering import environment

        return environment(PATH, self.assets)

    async def answer(self, request: Request[Any, Any, Any], draw: Drawn) -> Response[Any]:
        """Return the page of a request, or an error page."""
        principal, is_fragment = principal_of(request.scope), FRAGMENT in request.headers
        api = ApiCaller(self._questions, principal)

        def work() -> Response[Any]:
            try:
                page = draw(api)
            except msgspec.ValidationError as exc:
                page = _failed(InvalidPayloadError(f"query: {exc}"))
            except HeadgateError as exc:
                page = _failed(exc)
            return self._response(page, api, is_fragment=is_fragment)

        return await self._pool.run(work)

    def _response(self, page: Page, api: ApiCaller, *, is_fragment: bool) -> Response[Any]:
        content = self._templates.get_template(page.template).render(
            layout="fragment.html" if is_fragment else "layout.html",
            page=page,
            view=page.view,
            now=instant(api.now_ms),
            now_ms=api.now_ms,
            has_pipelines=api.pipelines is not None,
        )
        headers = {**_HEADERS, "vary": FRAGMENT, **page.headers}
        return Response(content, status_code=page.status, media_type=MediaType.HTML, headers=headers)


def _asset(name: str, media_type: str, content: bytes) -> ControllerRouterHandler:
    @get(f"{PATH}/{name}", include_in_schema=False)
    async def asset() -> Response[bytes]:
        return Response(content, media_type=media_type, headers=dict(_ASSET_HEADERS))

    return asset
