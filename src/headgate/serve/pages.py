"""Pages under `/ui`: drawn here as HTML, by the same rules as the API, and told when they are out of date."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from litestar import Request, Response, get
from litestar.enums import MediaType
from litestar.types import ControllerRouterHandler

from headgate.auth.principals import require
from headgate.auth.roles import Permission
from headgate.errors import HeadgateError, InvalidPayloadError, NotFoundError, TransientError, UnauthenticatedError
from headgate.health import urns
from headgate.health.moments import instant
from headgate.health.service import HealthService
from headgate.serve import page_datasets, page_incidents, page_words, streams
from headgate.serve.operations import principal_of
from headgate.serve.page_board import board
from headgate.serve.page_changes import PageChanges
from headgate.serve.page_questions import Asking, Questions, segment, twin
from headgate.serve.pool import WorkPool
from headgate.serve.problem import CHALLENGE, retry_after
from headgate.serve.watching import Watches

PATH: Final = "/ui"
_DATASET: Final = "/datasets/{dataset_urn:str}"
_INCIDENT: Final = "/incidents/{incident_id:str}"
# Sent by the script of a page that wants the inside of it alone.
FRAGMENT: Final = "headgate-fragment"
_ASSETS: Final[Mapping[str, str]] = {"style.css": "text/css", "live.js": "text/javascript"}
# Nothing but our own script and style runs on a page, whatever got into it, and nobody frames it.
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

Drawn = Callable[[Asking], "Page"]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn: a template and what it shows; where the same is as JSON, and what tells that it has changed."""

    template: str
    title: str
    view: Any
    json: str = ""
    cli: str = ""
    changes: str = ""
    section: str = ""
    status: int = 200
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


def page_routes(health: HealthService, pool: WorkPool, watches: Watches) -> list[ControllerRouterHandler]:
    """Return the routes of the pages."""
    drawing, changes = _Drawing(health, pool), PageChanges(health, pool, watches)

    def route(path: str, draw: Callable[[Request[Any, Any, Any]], Drawn]) -> ControllerRouterHandler:
        async def show(request: Request[Any, Any, Any]) -> Response[Any]:
            return await drawing.answer(request, draw(request))

        return get(path, include_in_schema=False, sync_to_thread=None)(show)

    @get(f"{PATH}/changes", include_in_schema=False)
    async def follow(request: Request[Any, Any, Any]) -> Response[Any]:
        named = request.query_params.get("dataset_urn") or None
        urn = None if named is None else await pool.run(lambda: health.registered(urns.dataset_urn(named)))
        principal = require(principal_of(request.scope), Permission.DATASET_READ, urn)
        return streams.stream(changes.messages(principal, urn))

    return [
        route(PATH, lambda _request: _board),
        route(f"{PATH}/datasets", _dataset_list),
        route(PATH + _DATASET, _dataset),
        route(f"{PATH}/incidents", _incident_list),
        route(PATH + _INCIDENT, _incident),
        # Whatever else begins like a page is answered by one: the framework looks no further than the first words fit.
        *(route(f"{PATH}{under}/{{rest:path}}", _nothing) for under in ("", _DATASET, _INCIDENT)),
        follow,
        *(_asset(name, media_type, drawing.assets[name]) for name, media_type in _ASSETS.items()),
    ]


# What each page shows.


def _board(asking: Asking) -> Page:
    return Page(
        template="board.html",
        title="Health",
        view=board(asking),
        json=twin("/incidents", {"status": ["OPEN", "ACKNOWLEDGED"]}),
        cli=page_words.command("incident", "ls"),
        changes=f"{PATH}/changes",
        section="board",
    )


def _dataset_list(request: Request[Any, Any, Any]) -> Drawn:
    query = _query(request, page_datasets.FILTERS, frozenset())

    def draw(asking: Asking) -> Page:
        view = page_datasets.dataset_list(asking, query)
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

    def draw(asking: Asking) -> Page:
        view = page_datasets.dataset_page(asking, urn)
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

    def draw(asking: Asking) -> Page:
        view = page_incidents.incident_list(asking, query)
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

    def draw(asking: Asking) -> Page:
        view = page_incidents.incident_page(asking, incident_id)
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


def _nothing(request: Request[Any, Any, Any]) -> Drawn:
    path = request.scope["path"]

    def draw(_asking: Asking) -> Page:
        raise NotFoundError(f"{path}: there is no such page")

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
    """Return what a form asks for. Fields that were left empty are not asked, and what it does not know is ignored."""
    found: dict[str, Any] = {}
    for name in (*names, "page_token"):
        given = [each for each in request.query_params.getall(name, []) if each.strip()]
        if given:
            found[name] = given if name in choices else given[0]
    return found


# How they are drawn.


class _Drawing:
    """Draws pages in threads of the pool."""

    def __init__(self, health: HealthService, pool: WorkPool) -> None:
        self._questions = Questions(health)
        self._pool = pool
        folder = files("headgate.serve") / "templates"
        self.assets = {name: (folder / name).read_bytes() for name in _ASSETS}
        self._templates = _environment(self.assets)

    async def answer(self, request: Request[Any, Any, Any], draw: Drawn) -> Response[Any]:
        """Return the answer to a request: a page, also of what went wrong."""
        principal, is_fragment = principal_of(request.scope), FRAGMENT in request.headers
        asking = Asking(self._questions, principal)

        def work() -> Response[Any]:
            try:
                page = draw(asking)
            except msgspec.ValidationError as exc:
                page = _failed(InvalidPayloadError(f"query: {exc}"))
            except HeadgateError as exc:
                page = _failed(exc)
            return self._response(page, asking, is_fragment=is_fragment)

        return await self._pool.run(work)

    def _response(self, page: Page, asking: Asking, *, is_fragment: bool) -> Response[Any]:
        content = self._templates.get_template(page.template).render(
            layout="fragment.html" if is_fragment else "layout.html",
            page=page,
            view=page.view,
            now=instant(asking.now_ms),
            now_ms=asking.now_ms,
        )
        headers = {**_HEADERS, "vary": FRAGMENT, **page.headers}
        return Response(content, status_code=page.status, media_type=MediaType.HTML, headers=headers)


def _environment(assets: Mapping[str, bytes]) -> Environment:
    environment = Environment(
        loader=PackageLoader("headgate.serve", "templates"),
        # Everything that is shown came from users.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    versions = {name: hashlib.blake2b(content, digest_size=6).hexdigest() for name, content in assets.items()}
    environment.filters |= {
        "ago": _ago,
        "clock_time": _clock_time,
        "stamp": page_words.stamp,
        "number": page_words.number,
        "span": page_words.span,
        "segment": segment,
        "asset": lambda name: f"{PATH}/{name}?v={versions[name]}",
        "with_token": _with_token,
    }
    return environment


@pass_context
def _ago(context: Context, at: str) -> str:
    return page_words.ago(at, context["now_ms"])


@pass_context
def _clock_time(context: Context, at: str) -> str:
    return page_words.clock_time(at, context["now"])


def _with_token(filters: Mapping[str, Any], token: str) -> str:
    """Return the query of the next page."""
    return urlencode({**{name: value for name, value in filters.items() if value}, "page_token": token}, doseq=True)


def _asset(name: str, media_type: str, content: bytes) -> ControllerRouterHandler:
    @get(f"{PATH}/{name}", include_in_schema=False)
    async def asset() -> Response[bytes]:
        return Response(content, media_type=media_type, headers=dict(_ASSET_HEADERS))

    return asset
