"""Sign-in: the pages by which a person opens and ends a session in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from litestar import Request, Response, get, post
from litestar.datastructures import Cookie
from litestar.enums import MediaType
from litestar.types import ControllerRouterHandler

from headgate.auth.api_keys import PREFIX as KEY_PREFIX
from headgate.auth.authenticator import Authenticator
from headgate.auth.sessions import OpenedSession, Session, Sessions, is_csrf_token
from headgate.errors import ForbiddenError, HeadgateError, RateLimitedError, TransientError, UnauthenticatedError
from headgate.serve.http.authentication import session_of
from headgate.serve.http.framework import raw_path
from headgate.serve.http.operations import principal_of
from headgate.serve.http.problem import retry_after
from headgate.serve.http.session_cookies import SessionCookies
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.settings import is_loopback

if TYPE_CHECKING:
    # Imported only with an issuer: the JWT libraries are slow to load.
    from headgate.auth.oidc_sign_in import OidcSignIn

PAGES: Final = "/ui"
SIGN_IN: Final = f"{PAGES}/sign-in"
SIGN_OUT: Final = f"{PAGES}/sign-out"
_OIDC_START: Final = f"{SIGN_IN}/oidc"
_OIDC_END: Final = f"{SIGN_IN}/callback"
_ATTEMPT_COOKIE: Final = "headgate-sign-in"
_ATTEMPT_SECONDS: Final = 600
_NEXT_CHARS_MAX: Final = 2_000
_FORM_BYTES_MAX: Final = 8_192
# Printable ASCII, without the backslash, which browsers take for a slash.
_ADDRESS: Final = re.compile(r"[!-\[\]-~]+")
_DOTS: Final = frozenset({".", ".."})
_ENCODED_DOT: Final = re.compile("%2e", re.IGNORECASE)

# Renders a template of the pages, with their headers.
Render = Callable[..., Response[Any]]


def safe_next(text: str | None) -> str:
    """Return the page to show after signing in: one of this server, otherwise the first page."""
    if not text or len(text) > _NEXT_CHARS_MAX or not _ADDRESS.fullmatch(text):
        return PAGES
    try:
        parts = urlsplit(text)
    except ValueError:
        return PAGES
    if parts.scheme or parts.netloc or not (parts.path == PAGES or parts.path.startswith(f"{PAGES}/")):
        return PAGES
    segments = {_ENCODED_DOT.sub(".", each) for each in parts.path.split("/")}
    if segments & _DOTS or parts.path.startswith((SIGN_IN, SIGN_OUT)):
        return PAGES
    return text


class SignIn:
    """Opens and ends sessions for requests of browsers."""

    def __init__(
        self,
        authenticator: Authenticator,
        sessions: Sessions,
        cookies: SessionCookies,
        *,
        oidc: OidcSignIn | None = None,
        public_url: str | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._sessions = sessions
        self._cookies = cookies
        self._oidc = oidc
        self._public_url = public_url

    def redirect(self, request: Request[Any, Any, Any], render: Render) -> Response[Any]:
        """Return the answer to a page request without a session: the way to the sign-in page and back."""
        query = request.scope["query_string"].decode("latin-1")
        target = raw_path(request.scope) + (f"?{query}" if query else "")
        if request.headers.get("sec-fetch-site") == "cross-site":
            # The browser withholds the cookie when a link of another site is followed, but not from our own page.
            return render("continue.html", address=safe_next(target))
        return _see_other(_address(safe_next(target)))

    def rotated(self, request: Request[Any, Any, Any], session: Session | None) -> str | None:
        """Return the `Set-Cookie` header of a session whose id is due to be replaced, else None."""
        if session is None or not session.is_due_for_rotation:
            return None
        try:
            cookie = self._sessions.rotate(session)
        except TransientError:
            # The next page does it.
            return None
        return None if cookie is None else self._written(request, cookie.reveal())

    def routes(self, pool: WorkPool, render: Render) -> list[ControllerRouterHandler]:
        """Return the routes of signing in and out."""

        @get(SIGN_IN, include_in_schema=False)
        async def show(request: Request[Any, Any, Any]) -> Response[Any]:
            after = safe_next(request.query_params.get("next"))
            if principal_of(request.scope) is not None:
                return _see_other(after)
            if request.headers.get("sec-fetch-site") == "cross-site":
                return render("continue.html", address=_address(after))
            return await pool.run(lambda: self._form(render, after))

        @post(SIGN_IN, include_in_schema=False, status_code=HTTPStatus.SEE_OTHER)
        async def sign_in(request: Request[Any, Any, Any]) -> Response[Any]:
            form = await _form_fields(request)
            return await pool.run(lambda: self._by_key(request, form, render))

        @post(SIGN_OUT, include_in_schema=False, status_code=HTTPStatus.SEE_OTHER)
        async def sign_out(request: Request[Any, Any, Any]) -> Response[Any]:
            form = await _form_fields(request)
            return await pool.run(lambda: self._sign_out(request, form))

        oidc = [] if self._oidc is None else self._oidc_routes(self._oidc, pool, render)
        return [show, sign_in, sign_out, *oidc]

    def _oidc_routes(self, oidc: OidcSignIn, pool: WorkPool, render: Render) -> list[ControllerRouterHandler]:
        @get(_OIDC_START, include_in_schema=False)
        async def start(request: Request[Any, Any, Any]) -> Response[Any]:
            return await pool.run(lambda: self._start(request, oidc, render))

        @get(_OIDC_END, include_in_schema=False)
        async def finish(request: Request[Any, Any, Any]) -> Response[Any]:
            return await pool.run(lambda: self._finish(request, oidc, render))

        return [start, finish]

    def _start(self, request: Request[Any, Any, Any], oidc: OidcSignIn, render: Render) -> Response[Any]:
        """Send the browser to the issuer, with a cookie that its answer must meet again."""
        after = safe_next(request.query_params.get("next"))
        try:
            started = oidc.start(self._redirect_uri(request))
        except HeadgateError as exc:
            return self._form(render, after, exc)
        # Lax: the issuer, another site, sends the browser back.
        attempt = f"{started.attempt.reveal()}.{quote(after, safe='')}"
        return _see_other(started.address, self._attempt_cookie(request, attempt, seconds=_ATTEMPT_SECONDS))

    def _finish(self, request: Request[Any, Any, Any], oidc: OidcSignIn, render: Render) -> Response[Any]:
        headers = _pairs(request)
        attempt, _, target = (self._cookies.read(headers, _ATTEMPT_COOKIE) or "").partition(".")
        after = safe_next(unquote(target))
        try:
            principal = oidc.finish(attempt, dict(request.query_params), self._redirect_uri(request))
            opened = self._sessions.open_for(principal, replaces=self._cookies.read(headers))
        except UnauthenticatedError as exc:
            answer = self._refused(request, render, after, exc)
        except HeadgateError as exc:
            answer = self._form(render, after, exc)
        else:
            # Not a redirect: after one, the browser would still count the request as caused by the issuer, and
            # withhold the cookie.
            answer = render("continue.html", address=after)
            answer.headers["set-cookie"] = self._written(request, opened.cookie.reveal())
        # The attempt is over. A second header of this name, which the headers of a response cannot hold.
        answer.set_cookie(
            Cookie(
                key=self._cookies.name(headers, _ATTEMPT_COOKIE),
                value="",
                max_age=0,
                httponly=True,
                secure=self._cookies.is_secure(headers),
                samesite="lax",
            )
        )
        return answer

    def _redirect_uri(self, request: Request[Any, Any, Any]) -> str:
        """Return where the issuer sends the browser back to. The origin guard has checked the host."""
        if self._public_url is not None:
            return f"{self._public_url.rstrip('/')}{_OIDC_END}"
        scheme = "https" if self._cookies.is_secure(_pairs(request)) else "http"
        return f"{scheme}://{request.headers['host']}{_OIDC_END}"

    def _attempt_cookie(self, request: Request[Any, Any, Any], value: str, *, seconds: int) -> str:
        return self._cookies.written(_pairs(request), value, seconds=seconds, name=_ATTEMPT_COOKIE, same_site="Lax")

    def _by_key(self, request: Request[Any, Any, Any], form: Mapping[str, str], render: Render) -> Response[Any]:
        after, key = safe_next(form.get("next")), form.get("key", "").strip()
        try:
            opened = self._opened(request, key)
        except UnauthenticatedError as exc:
            return self._refused(request, render, after, exc)
        except HeadgateError as exc:
            return self._form(render, after, exc)
        return self._signed_in(request, opened, after)

    def _opened(self, request: Request[Any, Any, Any], key: str) -> OpenedSession:
        if not key.startswith(KEY_PREFIX):
            raise UnauthenticatedError(f"API key: malformed; it begins with {KEY_PREFIX}")
        headers, client = _pairs(request), request.scope.get("client")
        # As if the key had been sent with the request: also that it came encrypted is checked.
        self._authenticator.principal(
            [*(each for each in headers if each[0] != "authorization"), ("authorization", f"Bearer {key}")],
            is_loopback_peer=client is not None and is_loopback(client[0]),
            is_tls=request.scope["scheme"] == "https",
        )
        return self._sessions.open_by_key(key, replaces=self._cookies.read(headers))

    def _refused(
        self, request: Request[Any, Any, Any], render: Render, after: str, error: HeadgateError
    ) -> Response[Any]:
        """Count a failed login, and show the form again."""
        on_failed_login = request.scope.get("on_failed_login")
        try:
            if on_failed_login is not None:
                on_failed_login()  # type: ignore[operator]  # ours
        except RateLimitedError as exc:
            return self._form(render, after, exc)
        return self._form(render, after, error)

    def _form(self, render: Render, after: str, error: HeadgateError | None = None) -> Response[Any]:
        status = HTTPStatus.OK.value if error is None else error.http_status
        headers = retry_after(error.retry_after_seconds) if isinstance(error, TransientError) else {}
        message = "" if error is None else error.message
        issuer = "" if self._oidc is None else urlsplit(self._oidc.issuer).netloc
        oidc = f"{_OIDC_START}?next={quote(after)}" if issuer else ""
        return render(
            "sign_in.html", status=status, headers=headers, after=after, message=message, oidc=oidc, issuer=issuer
        )

    def _signed_in(self, request: Request[Any, Any, Any], opened: OpenedSession, after: str) -> Response[Any]:
        return _see_other(after, self._written(request, opened.cookie.reveal()))

    def _sign_out(self, request: Request[Any, Any, Any], form: Mapping[str, str]) -> Response[Any]:
        session = session_of(request.scope)
        if session is not None:
            if not is_csrf_token(session, form.get("csrf", "")):
                raise ForbiddenError("csrf: the form lacks the token of this session; reload the page and try again")
            self._sessions.end(session)
        return _see_other(SIGN_IN, self._cookies.written(_pairs(request), "", seconds=0))

    def _written(self, request: Request[Any, Any, Any], cookie: str) -> str:
        return self._cookies.written(_pairs(request), cookie, seconds=self._sessions.limits.total_seconds)


def _address(after: str) -> str:
    return f"{SIGN_IN}?next={quote(after)}"


def _pairs(request: Request[Any, Any, Any]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.scope["headers"]]


async def _form_fields(request: Request[Any, Any, Any]) -> dict[str, str]:
    content = await request.body()
    if len(content) > _FORM_BYTES_MAX:
        raise UnauthenticatedError(f"form: larger than {_FORM_BYTES_MAX:,} bytes; send a key only")
    return dict(parse_qsl(content.decode("utf-8", "replace"), max_num_fields=10))


def _see_other(address: str, cookie: str | None = None) -> Response[Any]:
    headers = {"location": address, "cache-control": "no-store"}
    if cookie is not None:
        headers["set-cookie"] = cookie
    return Response(b"", status_code=HTTPStatus.SEE_OTHER.value, media_type=MediaType.TEXT, headers=headers)
