"""Page routes under `/ui`: rendered HTML with the API's authorization, and live updates."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import Request, Response, get
from litestar.enums import MediaType
from litestar.types import ControllerRouterHandler

from headgate.auth.principals import Principal, require
from headgate.auth.roles import Permission
from headgate.auth.sessions import Session
from headgate.errors import HeadgateError, InvalidPayloadError, NotFoundError, TransientError, UnauthenticatedError
from headgate.health.model import urns
from headgate.health.model.timestamps import instant
from headgate.health.service import HealthService
from headgate.pipelines.service import PipelineService
from headgate.serve.http import sse
from headgate.serve.http.authentication import session_of
from headgate.serve.http.operations import principal_of
from headgate.serve.http.problem import CHALLENGE, retry_after
from headgate.serve.pages import board
from headgate.serve.pages.api_calls import ApiCaller, ApiCatalog
from headgate.serve.pages.attention import Attention
from headgate.serve.pages.attention import reader as attention_reader
from headgate.serve.pages.change_feed import ChangeFeed
from headgate.serve.pages.fragment_cache import FragmentCache, Rendered
from headgate.serve.pages.health import datasets, incidents, jobs, lineage
from headgate.serve.pages.live_updates import ALL_PIPELINES, ALL_WORK, OF_SERVER, PATH, PageChanges, Subject
from headgate.serve.pages.navigation import NavItem, navigation
from headgate.serve.pages.operations import alerts, audit, events, server, settings
from headgate.serve.pages.page import Page, PageRequest, PageRoute
from headgate.serve.pages.pipelines import backfills, expectations, pipeline, run, runs
from headgate.serve.pages.search import Hits, search
from headgate.serve.pages.sign_in import SignIn
from headgate.serve.pages.work import executions, fanouts, machines, schedules, workers
from headgate.serve.runtime.concurrency_gate import ConcurrencyGate
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.serve.server_monitor import ServerMonitor

if TYPE_CHECKING:
    from jinja2 import Environment

# Each view module lists its pages.
PAGES: Final[tuple[PageRoute, ...]] = (
    *board.PAGES,
    *datasets.PAGES,
    *incidents.PAGES,
    *lineage.PAGES,
    *jobs.PAGES,
    *pipeline.PAGES,
    *run.PAGES,
    *runs.PAGES,
    *expectations.PAGES,
    *backfills.PAGES,
    *executions.PAGES,
    *fanouts.PAGES,
    *machines.PAGES,
    *schedules.PAGES,
    *events.PAGES,
    *alerts.PAGES,
    *workers.PAGES,
    *audit.PAGES,
    *settings.PAGES,
)
# Sent by the page script to request only the page content.
FRAGMENT: Final = "headgate-fragment"
# Sent with it: the position in the change feed that the content has to include.
AS_OF: Final = "headgate-as-of"
# Renderings at a time, so that pages do not occupy all threads of the API.
_RENDERINGS_MAX: Final = 4
_WAIT_SECONDS: Final = 10.0
_TIMES: Final = re.compile(rb"(<time [^>]*>).*?</time>", re.DOTALL)
_QUERY_CHARS_MAX: Final = 200
_MEDIA_TYPES: Final[Mapping[str, str]] = {".css": "text/css", ".js": "text/javascript"}
# Only our own script and style may run, and the page may not be framed.
_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
# The address of an asset changes with its content.
_ASSET_HEADERS: Final[Mapping[str, str]] = {
    "cache-control": "max-age=31536000, immutable",
    "x-content-type-options": "nosniff",
}


def page_routes(
    health: HealthService,
    pool: WorkPool,
    watches: WatchHub,
    api: Sequence[ControllerRouterHandler],
    pipelines: PipelineService | None = None,
    sign_in: SignIn | None = None,
    monitor: ServerMonitor | None = None,
) -> list[ControllerRouterHandler]:
    """Return the routes of the pages, which call the operations of the routes of the `api`.

    Without `pipelines`, their pages explain how to enable them. Without `sign_in`, browsers cannot authenticate.
    Without `monitor`, there is no page of operations.
    """
    pages = PAGES if monitor is None else (*PAGES, *server.pages(monitor))
    assets = Assets()
    catalog = ApiCatalog(health, api, pipelines)
    addresses = {PATH + each.path for each in pages if not each.needs or catalog.has(each.needs)}
    rail = navigation(addresses, has_pipelines=pipelines is not None)
    feed = ChangeFeed(health, pool, watches)
    attention = Attention(attention_reader(health, pipelines, monitor), health.clock, health.store.generation)
    renderer = _Renderer(catalog, pool, assets, rail, sign_in, feed, attention)
    changes = PageChanges(feed, watches)

    def route(page: PageRoute) -> ControllerRouterHandler:
        async def show(request: Request[Any, Any, Any]) -> Response[Any]:
            return await renderer.answer(request, page)

        return get(PATH + page.path, include_in_schema=False, sync_to_thread=None)(show)

    @get(f"{PATH}/changes", include_in_schema=False)
    async def follow(request: Request[Any, Any, Any]) -> Response[Any]:
        permission, subject = _followed(request.query_params)
        if subject.dataset_urn is not None:
            named = subject.dataset_urn
            urn = await pool.run(lambda: health.registered(urns.dataset_urn(named)))
            subject = msgspec.structs.replace(subject, dataset_urn=urn)
        principal = require(principal_of(request.scope), permission, subject.dataset_urn)
        return sse.stream(changes.messages(principal, subject))

    @get(f"{PATH}/search", include_in_schema=False)
    async def find(request: Request[Any, Any, Any]) -> Response[Hits]:
        principal = require(principal_of(request.scope), Permission.DATASET_READ)
        text = request.query_params.get("q", "")[:_QUERY_CHARS_MAX]
        listed = [each for group in rail for each in group]
        return Response(await pool.run(lambda: search(ApiCaller(catalog, principal), text, listed)))

    @get(lineage.EXPAND, include_in_schema=False)
    async def expand(request: Request[Any, Any, Any]) -> Response[lineage.Graph]:
        api = ApiCaller(catalog, principal_of(request.scope))
        node, way = (request.query_params.get(name, "") for name in ("node", "way"))
        return Response(await pool.run(lambda: lineage.expanded(api, node, way)))

    @get(f"{PATH}/assets/{{version:str}}/{{name:str}}", include_in_schema=False)
    async def asset(request: Request[Any, Any, Any]) -> Response[bytes]:
        # Whatever the version: to a page of an earlier build the current content is better than none.
        name = request.path_params["name"]
        content = assets.files.get(name)
        if content is None:
            raise NotFoundError(f"{PATH}/assets: there is no {name[:80]}")
        media_type = _MEDIA_TYPES[name[name.rindex(".") :]]
        return Response(content, media_type=media_type, headers=dict(_ASSET_HEADERS))

    # Below each path, so that unknown paths get an error page.
    unknown = [PageRoute(f"{below}/{{rest:path}}", _nothing) for below in ("", *_with_parameter(pages))]
    own = [] if sign_in is None else sign_in.routes(pool, renderer.bare)
    return [*(route(each) for each in (*pages, *unknown)), follow, find, expand, asset, *own]


def _followed(query: Mapping[str, str]) -> tuple[Permission, Subject]:
    """Return the subject of a stream of changes, and the permission that it needs."""
    pipeline_id, of = query.get("pipeline_id") or None, query.get("of")
    if pipeline_id is not None or of == ALL_PIPELINES:
        return Permission.PIPELINE_READ, Subject(pipeline_id=pipeline_id, is_of_pipelines=True)
    if of == ALL_WORK:
        return Permission.EXECUTION_READ, Subject(is_of_work=True)
    if of == OF_SERVER:
        return Permission.SERVER_READ, Subject(is_of_server=True)
    return Permission.DATASET_READ, Subject(dataset_urn=query.get("dataset_urn") or None)


def _with_parameter(pages: tuple[PageRoute, ...]) -> list[str]:
    """Return the paths that end with a parameter."""
    return [each.path for each in pages if each.path.endswith("}")]


def _nothing(_api: ApiCaller, request: PageRequest) -> Page:
    raise NotFoundError(f"{PATH}/{request.path['rest'].lstrip('/')}: no such page")


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


def _query(request: Request[Any, Any, Any], page: PageRoute) -> dict[str, Any]:
    """Return the query of a form, without empty and unknown fields."""
    found: dict[str, Any] = {}
    for name in (*page.filters, "page_token"):
        given = [each for each in request.query_params.getall(name, []) if each.strip()]
        if given:
            found[name] = given if name in page.choices else given[0]
    return found


class Assets:
    """The scripts and styles of the pages, under an address that changes with their content."""

    def __init__(self) -> None:
        folder = files("headgate.serve.pages") / "assets"
        self.files = {each.name: each.read_bytes() for each in sorted(folder.iterdir(), key=lambda each: each.name)}
        digest = hashlib.blake2b(digest_size=6)
        for name, content in self.files.items():
            digest.update(name.encode() + b"\0" + content)
        self._version = digest.hexdigest()

    def address(self, name: str) -> str:
        """Return the URL of an asset."""
        assert name in self.files
        return f"{PATH}/assets/{self._version}/{name}"


class _Renderer:
    """Renders pages in the thread pool."""

    def __init__(
        self,
        catalog: ApiCatalog,
        pool: WorkPool,
        assets: Assets,
        rail: Sequence[Sequence[NavItem]],
        sign_in: SignIn | None,
        feed: ChangeFeed,
        attention: Attention,
    ) -> None:
        self._rail = rail
        self._attention = attention
        self._catalog = catalog
        self._pool = pool
        self._gate = ConcurrencyGate(pool, "pages", calls_max=_RENDERINGS_MAX, wait_seconds=_WAIT_SECONDS)
        self._feed = feed
        self._fragments = FragmentCache(catalog.health.clock.monotonic)
        self._assets = assets
        self._sign_in = sign_in

    @functools.cached_property
    def _templates(self) -> Environment:
        # Created on the first page request: most servers are used by programs only.
        from headgate.serve.pages.rendering import environment

        return environment(self._assets.address)

    async def answer(self, request: Request[Any, Any, Any], page: PageRoute) -> Response[Any]:
        """Return the page of a request, or an error page."""
        principal, is_fragment = principal_of(request.scope), FRAGMENT in request.headers
        sign_in, session = self._sign_in, session_of(request.scope)
        if principal is None and sign_in is not None and not is_fragment:
            return sign_in.redirect(request, self.bare)
        asked = PageRequest(request.path_params, _query(request, page))

        def draw() -> Rendered:
            return self._drawn(page, asked, principal, None if is_fragment else session, is_fragment=is_fragment)

        as_of = self._feed.sequence_of(request.headers.get(AS_OF, "")) if is_fragment else None
        if as_of is None or principal is None:
            drawn = await self._gate.run(draw)
        else:
            # Whatever the content depends on, besides data and time.
            key = (principal, request.scope["path"], msgspec.json.encode(asked.query, order="sorted"))
            drawn = await self._fragments.get(key, as_of, self._feed.sequence, lambda: self._gate.run(draw))
        answer = _response(drawn, request.headers.get("if-none-match", "") if is_fragment else "")
        if sign_in is not None and session is not None and session.is_due_for_rotation:
            cookie = await self._pool.run(lambda: sign_in.rotated(request, session))
            if cookie is not None:
                answer.headers["set-cookie"] = cookie
        return answer

    def _drawn(
        self,
        route: PageRoute,
        asked: PageRequest,
        principal: Principal | None,
        session: Session | None,
        *,
        is_fragment: bool,
    ) -> Rendered:
        api = ApiCaller(self._catalog, principal)
        try:
            page = route.draw(api, asked)
        except msgspec.ValidationError as exc:
            page = _failed(InvalidPayloadError(f"query: {exc}"))
        except HeadgateError as exc:
            page = _failed(exc)
        content = (
            self._templates.get_template(page.template)
            .render(
                layout="fragment.html" if is_fragment else "layout.html",
                page=page,
                view=page.view,
                now=instant(api.now_ms),
                now_ms=api.now_ms,
                navigation=self._rail,
                attention=self._attention.counts(principal),
                principal=principal,
                session=session,
                is_defined=functools.cache(api.has_pipeline),
            )
            .encode()
        )
        # An error may be over at the next request.
        is_reusable = is_fragment and page.status == HTTPStatus.OK
        return Rendered(content, page.status, page.headers, _digest(content) if is_reusable else "")

    def bare(
        self, template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **view: object
    ) -> Response[Any]:
        """Return a page without navigation, for a browser that is not signed in."""
        content = self._templates.get_template(template).render(**view)
        return Response(content, status_code=status, media_type=MediaType.HTML, headers={**_HEADERS, **(headers or {})})


def _digest(content: bytes) -> str:
    """Return the digest of what a fragment says, apart from the ages of times, which the page itself keeps current."""
    return hashlib.blake2b(_TIMES.sub(_time, content), digest_size=12).hexdigest()


def _time(found: re.Match[bytes]) -> bytes:
    # The time of the rendering itself is no part of what it says.
    return b"" if b'class="stamp rendered"' in found[1] else found[1]


def _response(drawn: Rendered, known_digest: str) -> Response[Any]:
    headers = {**_HEADERS, "vary": FRAGMENT, **drawn.headers}
    if not drawn.digest:
        return Response(drawn.content, status_code=drawn.status, media_type=MediaType.HTML, headers=headers)
    headers["etag"] = f'"{drawn.digest}"'
    if headers["etag"] == known_digest:
        return Response(b"", status_code=HTTPStatus.NOT_MODIFIED, media_type=MediaType.HTML, headers=headers)
    return Response(drawn.content, status_code=drawn.status, media_type=MediaType.HTML, headers=headers)
