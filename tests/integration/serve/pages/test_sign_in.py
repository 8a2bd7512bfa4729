"""Sign-in: pages in a browser that authenticates by the cookie of a session, in virtual time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from headgate.auth.authenticator import Authenticator
from headgate.auth.principals import LOCAL
from headgate.auth.roles import Role
from headgate.auth.sessions import CACHE_SECONDS, REPLACED_SECONDS, SessionLimits, Sessions
from headgate.bootstrap.store import all_items
from headgate.serve.application import build_http
from headgate.serve.http.limits.caller_limits import CallerLimits
from headgate.serve.http.session_cookies import SessionCookies
from headgate.serve.pages.routes import page_routes
from headgate.serve.pages.sign_in import SignIn, safe_next
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.settings import LimitSettings
from headgate.store.catalogue.tables import SESSIONS
from headgate.telemetry import Metrics, Tracing
from tests.integration.serve.health_rig import HealthApi

ORIGIN: Final = "http://127.0.0.1:8400"
IDLE_SECONDS: Final = 3600
TOTAL_SECONDS: Final = 6 * 3600
ROTATE_SECONDS: Final = 900
FAILURES_MAX: Final = 3
SECONDS_PER_STEP: Final = 1800
_CSRF: Final = re.compile(r'<meta name="csrf" content="([0-9a-f]{64})">')
KEYS: Final = "/api/v1/api-keys"


class Site(HealthApi):
    """A server that requires authentication, with pages, API and sessions."""

    def __init__(self, home: Path, *, is_required: bool = True, cookies: SessionCookies | None = None) -> None:
        super().__init__(home, is_required=is_required)
        limits = SessionLimits(IDLE_SECONDS, TOTAL_SECONDS, ROTATE_SECONDS)
        self.cookies = SessionCookies() if cookies is None else cookies
        self.sessions = self._process(limits)
        self.app = self._app(self.sessions, is_required=is_required)
        # Another process on the same store.
        self.other_app = self._app(self._process(limits), is_required=is_required)

    def _process(self, limits: SessionLimits) -> Sessions:
        return Sessions(self.opened.store, self.clock, self.health.ids, self.health.audit, self.keys, limits)

    def _app(self, sessions: Sessions, *, is_required: bool) -> Any:
        authenticator = Authenticator(self.keys, sessions=sessions, is_required=is_required)
        watches = WatchHub(self.opened.store, stopping=lambda: False)
        sign_in = SignIn(authenticator, sessions, self.cookies)
        return build_http(
            version="1.2.3",
            probes=self.server_health,
            pool=self.pool,
            metrics=Metrics(version="1.2.3"),
            tracing=Tracing(),
            clock=self.clock,
            routes=[*self.routes, *page_routes(self.health, self.pool, watches, self.routes, None, sign_in)],
            authenticator=authenticator,
            limits=CallerLimits(LimitSettings(failed_logins_per_minute=FAILURES_MAX), self.clock),
            cookies=self.cookies,
        )

    def sign_in(self, key: str, *, after: str = "/ui", headers: dict[str, str] | None = None) -> httpx.Response:
        return self.ask("POST", f"{ORIGIN}/ui/sign-in", data={"key": key, "next": after}, headers=headers or {})

    def signed_in(self, *roles: Role) -> Browser:
        """Sign in with a new key."""
        issued = self.keys.issue("ada", roles or (Role.ADMIN,), issuer=LOCAL)
        answer = self.sign_in(issued.key.reveal())
        assert answer.status_code == 303, answer.text
        return Browser(self, cookie_of(answer), issued.about.key_id)

    def actions(self) -> list[str]:
        return [each.action for each in self.health.audit.ls().entries]


class Browser:
    """A browser with the cookie of a session."""

    def __init__(self, site: Site, cookie: str, key_id: str) -> None:
        self.site = site
        self.cookie = cookie
        self.key_id = key_id

    def get(self, path: str = "/ui", **headers: str) -> httpx.Response:
        return self.ask("GET", path, **headers)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return self.site.ask(method, ORIGIN + path, body, headers={"cookie": self.cookie, **headers})

    def csrf(self) -> str:
        found = _CSRF.search(self.get().text)
        assert found is not None
        return found.group(1)

    def sign_out(self, csrf: str) -> httpx.Response:
        return self.site.ask("POST", f"{ORIGIN}/ui/sign-out", data={"csrf": csrf}, headers={"cookie": self.cookie})


def cookie_of(answer: httpx.Response) -> str:
    return answer.headers["set-cookie"].partition(";")[0]


def is_signed_in(answer: httpx.Response) -> bool:
    if answer.status_code == 200:
        return True
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"].startswith("/ui/sign-in?next=")
    return False


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    with closing(made):
        yield made


def test_page__without_a_session__leads_to_the_form_and_back(site: Site) -> None:
    answer = site.get(f"{ORIGIN}/ui/datasets?q=a%20b")

    assert answer.status_code == 303
    assert answer.headers["location"] == "/ui/sign-in?next=/ui/datasets%3Fq%3Da%2520b"
    form = site.get(ORIGIN + answer.headers["location"])
    assert form.status_code == 200
    assert 'value="/ui/datasets?q=a%20b"' in form.text
    assert 'action="/ui/sign-in"' in form.text


def test_sign_in__with_a_key__shows_the_page_with_name_token_and_sign_out(site: Site) -> None:
    answer = site.sign_in(site.key("ada", Role.VIEWER), after="/ui/datasets")
    page = Browser(site, cookie_of(answer), "").get("/ui/datasets")

    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/datasets")
    assert page.status_code == 200
    assert ">ada</span>" in page.text
    assert 'action="/ui/sign-out"' in page.text
    assert _CSRF.search(page.text)
    assert "session.sign_in" in site.actions()


def test_sign_in__wrong_key__is_refused_and_counts_as_a_failed_login(site: Site) -> None:
    wrong = "hg_" + "0" * 26 + "_" + "0" * 64

    answers = [site.sign_in(wrong) for _ in range(FAILURES_MAX + 1)]

    assert [each.status_code for each in answers] == [401] * FAILURES_MAX + [429]
    assert all("set-cookie" not in each.headers for each in answers)
    assert int(answers[-1].headers["retry-after"]) >= 1
    # A valid key is not locked out.
    assert site.sign_in(site.key("ada", Role.VIEWER)).status_code == 303


def test_sign_in__malformed_form__is_refused(site: Site) -> None:
    assert site.sign_in("").status_code == 401
    assert site.sign_in("eyJhbGciOiJub25lIn0.e30.").status_code == 401


def test_action__by_cookie_with_its_token__is_done_and_audited(site: Site) -> None:
    browser = site.signed_in(Role.ADMIN)
    body = {"principal": "svc", "roles": ["viewer"]}

    refused = browser.ask("POST", KEYS, body)
    done = browser.ask("POST", KEYS, body, **{"headgate-csrf": browser.csrf()})

    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert done.status_code == 201, done.text
    assert site.keys.show(done.json()["key"]["key_id"]).created_by == "ada"


def test_cookie__beside_credentials__is_not_read(site: Site) -> None:
    browser = site.signed_in(Role.ADMIN)
    viewer = site.key("bob", Role.VIEWER)

    assert browser.ask("GET", KEYS, authorization=f"Bearer {viewer}").status_code == 403
    assert browser.ask("GET", KEYS, authorization="Bearer hg_wrong").status_code == 401


def test_sign_out__with_the_token__ends_the_session_in_every_process(site: Site) -> None:
    browser = site.signed_in()
    csrf = browser.csrf()
    site.app, other = site.other_app, site.app
    assert is_signed_in(browser.get())
    site.app = other

    refused = browser.sign_out("0" * 64)
    assert refused.status_code == 403
    assert is_signed_in(browser.get())
    answer = browser.sign_out(csrf)

    assert answer.status_code == 303
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert not is_signed_in(browser.get())
    assert "session.sign_out" in site.actions()
    site.clock.advance(CACHE_SECONDS)
    site.app = site.other_app
    assert not is_signed_in(browser.get())


def test_session__key_revoked__ends(site: Site) -> None:
    browser = site.signed_in()
    assert is_signed_in(browser.get())

    site.keys.revoke(browser.key_id, issuer=LOCAL)

    assert not is_signed_in(browser.get())
    assert browser.ask("GET", KEYS).status_code == 401


def test_session__key_rotated__ends_with_the_overlap(site: Site) -> None:
    browser = site.signed_in()

    site.keys.rotate(browser.key_id, issuer=LOCAL, overlap_seconds=60)

    assert is_signed_in(browser.get())
    site.clock.advance(61)
    assert not is_signed_in(browser.get())


def test_session__idle__ends(site: Site) -> None:
    browser = site.signed_in()
    site.clock.advance(IDLE_SECONDS - 60)
    assert is_signed_in(browser.get())

    site.clock.advance(IDLE_SECONDS)

    assert not is_signed_in(browser.get())


def test_session__used_all_the_time__ends_at_its_absolute_limit_and_its_rows_expire(site: Site) -> None:
    browser = site.signed_in()
    for _ in range(TOTAL_SECONDS // SECONDS_PER_STEP - 1):
        site.clock.advance(SECONDS_PER_STEP)
        answer = browser.get()
        assert is_signed_in(answer)
        browser.cookie = cookie_of(answer)

    site.clock.advance(SECONDS_PER_STEP)

    assert not is_signed_in(browser.get())
    site.clock.advance(1)
    site.opened.store.sweep()
    assert list(all_items(site.opened, SESSIONS, site.clock)) == []


def test_rotation__id_is_old__the_page_sets_a_new_one_and_open_pages_keep_their_token(site: Site) -> None:
    browser = site.signed_in()
    before, csrf = browser.cookie, browser.csrf()
    site.clock.advance(ROTATE_SECONDS)

    answer = browser.get()
    browser.cookie = cookie_of(answer)

    assert browser.cookie != before
    assert "set-cookie" not in browser.get().headers
    assert browser.csrf() == csrf
    old = Browser(site, before, browser.key_id)
    # Requests on their way carry the replaced id; it sets no other.
    assert is_signed_in(old.get())
    assert "set-cookie" not in old.get().headers
    site.clock.advance(REPLACED_SECONDS)
    assert not is_signed_in(old.get())
    assert is_signed_in(browser.get())


def test_rotation__sign_out_with_the_replaced_id__ends_the_new_one_too(site: Site) -> None:
    browser = site.signed_in()
    site.clock.advance(ROTATE_SECONDS)
    old = Browser(site, browser.cookie, browser.key_id)
    browser.cookie = cookie_of(browser.get())

    old.sign_out(old.csrf())

    assert not is_signed_in(browser.get())
    assert not is_signed_in(old.get())


def test_fixation__sign_in_with_a_session_of_someone_else__gets_a_new_id_and_ends_the_other(site: Site) -> None:
    planted = site.signed_in(Role.VIEWER)

    answer = site.sign_in(site.key("eve", Role.ADMIN), headers={"cookie": planted.cookie})

    assert cookie_of(answer) != planted.cookie
    assert not is_signed_in(planted.get())


def test_cookie__sent_twice__is_not_read(site: Site) -> None:
    browser = site.signed_in()

    answer = browser.get(cookie=f"{browser.cookie}; headgate-session={'A' * 43}")

    assert not is_signed_in(answer)


def test_store__has_digests_only(site: Site) -> None:
    browser = site.signed_in()

    (row,) = all_items(site.opened, SESSIONS, site.clock)

    assert browser.cookie.partition("=")[2] not in str(row)
    assert row["principal"] == "ada"


def test_link__of_another_site__is_opened_by_our_own_page_so_that_the_cookie_is_sent(site: Site) -> None:
    # SameSite=Strict: the browser withholds the cookie.
    answer = site.get(
        f"{ORIGIN}/ui/incidents",
        headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    )

    assert answer.status_code == 200
    assert '<meta http-equiv="refresh" content="0;url=/ui/incidents">' in answer.text


def test_fragment__session_ended__is_401_so_that_the_page_reloads(site: Site) -> None:
    assert site.get(f"{ORIGIN}/ui", headers={"headgate-fragment": "main"}).status_code == 401
    assert site.get(f"{ORIGIN}/ui/changes").status_code == 401


def test_sign_in__authentication_is_not_required__there_is_nothing_to_do(tmp_path: Path) -> None:
    with closing(Site(tmp_path, is_required=False)) as site:
        assert site.get(f"{ORIGIN}/ui/sign-in").headers["location"] == "/ui"
        assert site.get(f"{ORIGIN}/ui").status_code == 200


@pytest.mark.parametrize(
    ("cookies", "headers", "flags"),
    [
        (SessionCookies(), {}, "headgate-session={}; Path=/; Max-Age=21600; HttpOnly; SameSite=Strict"),
        (
            SessionCookies(is_tls=True),
            {},
            "__Host-headgate-session={}; Path=/; Max-Age=21600; HttpOnly; SameSite=Strict; Secure",
        ),
        (
            SessionCookies(is_behind_proxy=True),
            {"x-forwarded-proto": "https"},
            "__Host-headgate-session={}; Path=/; Max-Age=21600; HttpOnly; SameSite=Strict; Secure",
        ),
        (
            SessionCookies(is_behind_proxy=True, public_url="https://headgate.example"),
            {},
            "__Host-headgate-session={}; Path=/; Max-Age=21600; HttpOnly; SameSite=Strict; Secure",
        ),
    ],
)
def test_cookie__has_every_flag(cookies: SessionCookies, headers: dict[str, str], flags: str, tmp_path: Path) -> None:
    with closing(Site(tmp_path, cookies=cookies)) as site:
        answer = site.sign_in(site.key("ada", Role.VIEWER), headers=headers)

    written = answer.headers["set-cookie"]
    assert re.fullmatch(re.escape(flags).replace(re.escape("{}"), "[A-Za-z0-9_-]{43}"), written)


@pytest.mark.parametrize("text", ["/ui", "/ui/datasets", "/ui/datasets?q=a%20b&tier=1", "/ui/datasets/urn%3Adp%3Ax"])
def test_next__page_of_this_server__stays(text: str) -> None:
    assert safe_next(text) == text


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "https://evil.example/ui",
        "//evil.example/ui",
        "/\\evil.example",
        "/ui\\@evil.example",
        "\\\\evil.example",
        "/uix",
        "/ui/../api/v1/api-keys",
        "/ui/%2e%2E/api",
        "/ui/./x",
        "/api/v1/api-keys",
        "javascript:alert(1)",
        "/ui\r\nset-cookie: a=b",
        "/ui /x",
        "/ui/sign-out",
        "/ui/sign-in?next=/ui",
        "/ui/" + "x" * 2000,
        "http:///ui",
        "/ui/é",
    ],
)
def test_next__anything_else__is_the_first_page(text: str | None) -> None:
    assert safe_next(text) == "/ui"
