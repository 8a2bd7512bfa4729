"""Key sets: refreshed when they must be, never in a storm, and fetched from where they may be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headgate.auth.key_sets import ASK_AGAIN_SECONDS, REFRESH_SECONDS, TRUSTED_SECONDS, JwksFetcher, KeySet, public_keys
from headgate.clock import SystemClock, VirtualClock
from headgate.durable.bus.egress_policy import Destinations
from headgate.errors import TransientError, UnauthenticatedError
from tests.unit.auth.issuing import ISSUER, ec_key, jwk, jwks, rsa_key


class Source:
    """A document that changes, fails, and counts."""

    def __init__(self, document: bytes) -> None:
        self.document = document
        self.fetches = 0
        self.is_down = False
        self.before: Callable[[], object] = lambda: None

    def __call__(self) -> bytes:
        self.fetches += 1
        self.before()
        if self.is_down:
            raise TransientError("down")
        return self.document


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def source() -> Source:
    return Source(jwks(jwk(rsa_key(), "k1")))


@pytest.fixture
def keys(source: Source, clock: VirtualClock) -> KeySet:
    return KeySet(source, clock)


def test_key__given_new_key_of_the_issuer__is_fetched_for_it(keys: KeySet, source: Source, clock: VirtualClock) -> None:
    keys.key("k1", "RS256")
    source.document = jwks(jwk(rsa_key(), "k1"), jwk(rsa_key(1), "k2"))
    clock.advance(ASK_AGAIN_SECONDS)

    assert keys.key("k2", "RS256").id == "k2"
    assert source.fetches == 2


def test_key__given_storm_of_unknown_keys__asks_seldom_and_goes_on_with_known_ones(
    keys: KeySet, source: Source, clock: VirtualClock
) -> None:
    keys.key("k1", "RS256")
    for number in range(1000):
        with pytest.raises(UnauthenticatedError):
            keys.key(f"guess-{number}", "RS256")
        keys.key("k1", "RS256")
    assert source.fetches == 1

    clock.advance(ASK_AGAIN_SECONDS)
    for number in range(1000):
        with pytest.raises(UnauthenticatedError):
            keys.key(f"guess-{number}", "RS256")
    assert source.fetches == 2


def test_key__given_withdrawn_key__is_not_trusted_after_the_next_refresh(
    keys: KeySet, source: Source, clock: VirtualClock
) -> None:
    keys.key("k1", "RS256")
    source.document = jwks(jwk(rsa_key(1), "k2"))
    clock.advance(REFRESH_SECONDS - 1)
    keys.key("k1", "RS256")
    assert source.fetches == 1
    clock.advance(1)

    with pytest.raises(UnauthenticatedError):
        keys.key("k1", "RS256")


def test_key__given_issuer_that_is_down__is_trusted_for_hours_and_then_not(
    keys: KeySet, source: Source, clock: VirtualClock
) -> None:
    keys.key("k1", "RS256")
    source.is_down = True
    clock.advance(TRUSTED_SECONDS - 1)
    keys.key("k1", "RS256")
    clock.advance(1)

    with pytest.raises(TransientError, match="down"):
        keys.key("k1", "RS256")
    source.is_down = False
    clock.advance(ASK_AGAIN_SECONDS)
    keys.key("k1", "RS256")


def test_key__given_issuer_that_was_never_up__is_asked_seldom_and_is_not_the_callers_fault(
    keys: KeySet, source: Source, clock: VirtualClock
) -> None:
    source.is_down = True
    for _ in range(100):
        with pytest.raises(TransientError, match="down"):
            keys.key("k1", "RS256")
    assert source.fetches == 1
    source.is_down = False
    clock.advance(ASK_AGAIN_SECONDS)
    keys.key("k1", "RS256")


def test_key__given_document_that_is_broken__keeps_the_one_before(
    keys: KeySet, source: Source, clock: VirtualClock
) -> None:
    keys.key("k1", "RS256")
    source.document = b"<html>"
    clock.advance(REFRESH_SECONDS)

    assert keys.key("k1", "RS256").id == "k1"


def test_key__given_many_threads__one_asks_and_the_others_do_not_wait_for_it(
    keys: KeySet, source: Source, clock: VirtualClock
) -> None:
    keys.key("k1", "RS256")
    clock.advance(REFRESH_SECONDS)
    asked, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        asked.set()
        assert go_on.wait(10)

    source.before = hang
    slow = threading.Thread(target=lambda: keys.key("k1", "RS256"))
    slow.start()
    assert asked.wait(10)

    assert keys.key("k1", "RS256").id == "k1"
    go_on.set()
    slow.join()
    assert source.fetches == 2


def test_public_keys__given_keys_of_all_kinds__keeps_those_that_can_check_signatures() -> None:
    private = {**jwk(rsa_key(), "p"), "d": "AQAB", "p": "x"}
    document = jwks(
        jwk(rsa_key(), "k1"),
        jwk(ec_key(), "e1", use="sig"),
        jwk(rsa_key(1), "enc", use="enc"),
        jwk(rsa_key(0, 1024), "short"),
        {"kty": "oct", "k": "AAAA", "kid": "s"},
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA", "kid": "bitcoin"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "off the curve"},
        {"kty": "RSA", "n": 7, "e": "AQAB", "kid": "broken"},
        {"kty": ["RSA"], "kid": "odd"},
        private,
    )

    found = {key.id: key for key in public_keys(document)}

    assert set(found) == {"k1", "e1", "p"}
    assert type(found["p"].key).__name__ == type(found["k1"].key).__name__ == "RSAPublicKey"
    assert found["k1"].fits("RS512")
    assert found["k1"].fits("PS256")
    assert not found["k1"].fits("ES256")
    assert not found["k1"].fits("HS256")
    assert not found["k1"].fits("none")
    assert found["e1"].fits("ES256")
    assert not found["e1"].fits("ES384")


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": []}', b'{"keys": [1]}', b"\xff", b"[" * 100_000])
def test_public_keys__given_no_document__is_refused(document: bytes) -> None:
    with pytest.raises(TransientError):
        public_keys(document)


# Fetching, from a real server on this machine.


class Site:
    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                status, content = site.pages.get(self.path, (404, b""))
                self.send_response(status)
                if status == 302:
                    self.send_header("location", content.decode())
                    content = b""
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


HERE = Destinations(hosts=("127.0.0.1",), plain_http=True)
DOCUMENT = jwks(jwk(rsa_key(), "k1"))


def test_fetch__given_address_of_keys__gets_them(site: Site) -> None:
    site.pages["/keys?x=1"] = (200, DOCUMENT)

    fetch = JwksFetcher(SystemClock(), issuer=ISSUER, url=f"{site.address}/keys?x=1", destinations=HERE)

    assert fetch() == DOCUMENT


def test_fetch__given_issuer_alone__asks_it_where_its_keys_are(site: Site) -> None:
    site.pages["/realm/.well-known/openid-configuration"] = (
        200,
        f'{{"issuer": "{site.address}/realm", "jwks_uri": "{site.address}/keys"}}'.encode(),
    )
    site.pages["/keys"] = (200, DOCUMENT)

    assert JwksFetcher(SystemClock(), issuer=f"{site.address}/realm", destinations=HERE)() == DOCUMENT


@pytest.mark.parametrize(
    "page",
    [
        (200, b'{"issuer": "https://evil.example.com", "jwks_uri": "SITE/keys"}'),
        (200, b"{}"),
        (200, b"<html>"),
        (500, b""),
    ],
)
def test_fetch__given_issuer_that_says_something_else__is_refused(site: Site, page: tuple[int, bytes]) -> None:
    site.pages["/.well-known/openid-configuration"] = (page[0], page[1].replace(b"SITE", site.address.encode()))
    site.pages["/keys"] = (200, DOCUMENT)

    with pytest.raises(TransientError):
        JwksFetcher(SystemClock(), issuer=site.address, destinations=HERE)()


@pytest.mark.parametrize("page", [(404, b""), (302, b"http://127.0.0.1:1/keys"), (200, b"x" * 600_000)])
def test_fetch__given_answer_that_is_no_document__is_refused(site: Site, page: tuple[int, bytes]) -> None:
    site.pages["/keys"] = page

    with pytest.raises(TransientError):
        JwksFetcher(SystemClock(), issuer=ISSUER, url=f"{site.address}/keys", destinations=HERE)()
    assert site.asked == ["/keys"]


@pytest.mark.parametrize(
    ("address", "destinations"),
    [
        ("{site}/keys", Destinations(plain_http=True)),  # Not public, and not named.
        ("{site}/keys", Destinations(hosts=("127.0.0.1",))),  # Not over TLS.
        ("file:///etc/passwd", HERE),
        ("ftp://127.0.0.1/keys", HERE),
        ("", HERE),
        ("http://", HERE),
        ("http://127.0.0.1:99999/", HERE),
        ("http://user:pass@{there}/keys", HERE),
    ],
)
def test_fetch__given_address_that_must_not_be_asked__is_not(
    site: Site, address: str, destinations: Destinations
) -> None:
    fetch = JwksFetcher(
        SystemClock(),
        issuer=ISSUER,
        url=address.format(site=site.address, there=site.address.removeprefix("http://")) or "x",
        destinations=destinations,
    )

    with pytest.raises(TransientError):
        fetch()
    assert site.asked == []


def test_fetch__given_name_that_leads_inside__is_not_asked(site: Site) -> None:
    fetch = JwksFetcher(
        SystemClock(),
        issuer=ISSUER,
        url=f"http://keys.example.com:{site.server.server_port}/keys",
        destinations=Destinations(plain_http=True),
        resolve=lambda _host, _port: ["127.0.0.1"],
    )

    with pytest.raises(TransientError, match="destination is not allowed"):
        fetch()
    assert site.asked == []


def test_fetch__given_no_one_there__is_a_passing_fault() -> None:
    with pytest.raises(TransientError):
        JwksFetcher(SystemClock(), issuer=ISSUER, url="http://127.0.0.1:1/keys", destinations=HERE)()
