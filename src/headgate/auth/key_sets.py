"""Key sets: the token issuer's public keys (JWKS), fetched on demand with a minimum interval."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpcore
import jwt
import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations, Resolve, system_resolve
from headgate.durable.bus.outbound_http import OutboundHttp, read_body
from headgate.durable.model.failures import NonRetryable
from headgate.errors import SettingsError, TransientError, UnauthenticatedError

# Keys are refetched after this long, so that a withdrawn key is not trusted forever.
REFRESH_SECONDS: Final = 600.0
# The minimum interval of fetches, which tokens with unknown keys cause.
ASK_AGAIN_SECONDS: Final = 30.0
# How long the last fetched keys are trusted while the issuer cannot be reached.
TRUSTED_SECONDS: Final = 6 * 3600.0
FETCH_SECONDS: Final = 10.0
BYTES_MAX: Final = 512 * 1024
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
# The key type and curve of each algorithm: a token must not choose how its key is interpreted.
_KINDS: Final[Mapping[str, tuple[str, str | None]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
ALGORITHMS: Final = tuple(_KINDS)
_JSON: Final = {"accept": "application/json"}


class PublicKey(Struct, frozen=True):
    """A public key for verifying signatures."""

    id: str | None
    kind: str
    curve: str | None
    algorithm: str | None
    key: Any

    def fits(self, algorithm: str) -> bool:
        """Whether this key can verify a signature of this algorithm."""
        return self.algorithm in (None, algorithm) and (self.kind, self.curve) == _KINDS.get(algorithm)


class _FetchedKeys(Struct, frozen=True):
    keys: tuple[PublicKey, ...]
    fetched_at: float


class KeySet:
    """Finds the key of a token. Thread-safe; one thread fetches while the others use the cached keys."""

    def __init__(self, fetch: Callable[[], bytes], clock: Clock, *, is_static: bool = False) -> None:
        """`fetch` returns a JWKS document; an `is_static` one is fetched once."""
        self._fetch = fetch
        self._clock = clock
        self._is_static = is_static
        self._asking = threading.Lock()
        self._cached: _FetchedKeys | None = None
        self._asked_at: float | None = None
        self._failure = ""

    def key(self, key_id: str | None, algorithm: str) -> PublicKey:
        """Return the key of a token. Raises `UnauthenticatedError`, or `TransientError` if no keys can be fetched."""
        key = self.remembered(key_id, algorithm)
        if key is not None:
            return key
        self._refresh()
        trusted = self._trusted()
        if trusted is None:
            raise TransientError(f"the keys of the token issuer cannot be fetched: {self._failure or 'not yet'}")
        key = _match(trusted.keys, key_id, algorithm)
        if key is None:
            raise UnauthenticatedError(
                f"token: its key {(key_id or 'without id')[:60]!r} is not published by the issuer for {algorithm}"
            )
        return key

    def remembered(self, key_id: str | None, algorithm: str) -> PublicKey | None:
        """Return the key of a token if it is cached and fresh."""
        cached = self._cached
        is_fresh = cached is not None and (self._is_static or self._age(cached) < REFRESH_SECONDS)
        return _match(cached.keys, key_id, algorithm) if cached is not None and is_fresh else None

    def _refresh(self) -> None:
        if not self._asking.acquire(blocking=self._cached is None):
            return
        try:
            now = self._clock.monotonic()
            if self._asked_at is not None and (self._is_static or now - self._asked_at < ASK_AGAIN_SECONDS):
                return
            self._asked_at = now
            try:
                self._cached = _FetchedKeys(public_keys(self._fetch()), now)
                self._failure = ""
            except TransientError as exc:
                self._failure = exc.message
        finally:
            self._asking.release()

    def _trusted(self) -> _FetchedKeys | None:
        cached = self._cached
        return cached if cached is not None and (self._is_static or self._age(cached) < TRUSTED_SECONDS) else None

    def _age(self, cached: _FetchedKeys) -> float:
        return self._clock.monotonic() - cached.fetched_at


class JwksFetcher:
    """Fetches a JWKS document over HTTPS, from `url` or from the URL in the issuer's discovery document.

    It connects to addresses that were resolved once and checked; redirects are not followed.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        issuer: str,
        url: str | None = None,
        destinations: Destinations = Destinations(),  # noqa: B008 - frozen
        resolve: Resolve = system_resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._issuer = issuer
        self._url = url
        self._http = OutboundHttp(clock, destinations, resolve=resolve, tls=tls)

    def __call__(self) -> bytes:
        """Return the document. Raises `TransientError`."""
        return fetch(self._http, "GET", self._url or self._discovered(), _JSON)

    def _discovered(self) -> str:
        address = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            discovery = typed_decode.from_json(fetch(self._http, "GET", address, _JSON), _Discovery)
        except msgspec.DecodeError as exc:
            raise TransientError(f"{address}: not an OIDC discovery document ({exc})") from exc
        if discovery.issuer != self._issuer:
            raise TransientError(f"{address}: names issuer {discovery.issuer[:120]!r}, not {self._issuer!r}")
        return discovery.jwks_uri


def fetch(http: OutboundHttp, method: str, address: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Return what an endpoint of the issuer answers. Raises `TransientError`, and `UnauthenticatedError` for a 4xx."""
    try:
        url = http.target(address)
        with http.stream(method, url, headers, body, timeout_seconds=FETCH_SECONDS) as (response, _):
            where = f"{url.scheme}://{url.host}{url.path}"
            if method != "GET" and 400 <= response.status < 500:
                raise UnauthenticatedError(
                    f"{where}: the issuer answered {response.status}; check the client's id and secret"
                )
            if response.status != 200:
                raise TransientError(f"{where}: answered {response.status}")
            content = read_body(response, BYTES_MAX)
            if len(content) > BYTES_MAX:
                raise TransientError(f"{where}: answered more than {BYTES_MAX:,} bytes")
            return content
    except NonRetryable as exc:
        raise TransientError(f"{address[:200]}: the destination is not allowed: {exc}") from exc
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as exc:
        raise TransientError(f"{address[:200]}: {type(exc).__name__} {exc}".rstrip()) from exc


def from_file(path: Path, clock: Clock) -> KeySet:
    """Read the keys of a JWKS file. Raises `SettingsError`."""
    try:
        content = path.read_bytes()
        public_keys(content)
    except OSError as exc:
        raise SettingsError(f"auth.oidc_jwks_file = {path}: it cannot be read: {exc.strerror}") from exc
    except TransientError as exc:
        raise SettingsError(f"auth.oidc_jwks_file = {path}: {exc.message}") from exc
    return KeySet(lambda: content, clock, is_static=True)


def public_keys(document: bytes) -> tuple[PublicKey, ...]:
    """Return the signature keys of a JWKS document; other keys are ignored.

    Raises `TransientError` if there are none, because the issuer may correct the document.
    """
    try:
        key_set = typed_decode.from_json(document, _Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise TransientError(f"not a JWKS document: {exc}") from exc
    keys = tuple(key for key in map(_public_key, key_set.keys[:KEYS_MAX]) if key is not None)
    if not keys:
        raise TransientError("the JWKS document has no public key for signatures")
    return keys


class _Document(Struct, frozen=True):
    keys: list[dict[str, Any]]


class _Discovery(Struct, frozen=True):
    issuer: str
    jwks_uri: str


def _public_key(jwk: dict[str, Any]) -> PublicKey | None:
    kind, curve = jwk.get("kty"), jwk.get("crv")
    # Excludes shared secrets and encryption keys.
    if (kind, curve) not in _KINDS.values() or jwk.get("use", "sig") != "sig":
        return None
    # Only the public parameters are used.
    public: dict[str, Any] = {name: jwk[name] for name in ("kty", "crv", "n", "e", "x", "y") if name in jwk}
    algorithm = next(name for name, fits in _KINDS.items() if fits == (kind, curve))
    try:
        key = jwt.PyJWK(public, algorithm).key
    except (jwt.exceptions.PyJWTError, ValueError, TypeError):
        return None
    if kind == "RSA" and key.key_size < RSA_BITS_MIN:
        return None
    key_id, declared = jwk.get("kid"), jwk.get("alg")
    return PublicKey(
        key_id if isinstance(key_id, str) else None,
        str(kind),
        curve,
        declared if isinstance(declared, str) else None,
        key,
    )


def _match(keys: tuple[PublicKey, ...], key_id: str | None, algorithm: str) -> PublicKey | None:
    fitting = [key for key in keys if key.fits(algorithm) and (key_id is None or key.id == key_id)]
    # A token without a key id is accepted only if exactly one key fits.
    return fitting[0] if len(fitting) == 1 or (fitting and key_id is not None) else None
