"""Key sets: the public keys of whoever issues tokens, fetched when needed and never more often than allowed."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpcore
import httpx
import jwt
import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations, Resolve, system_resolve
from headgate.durable.bus.outbound_http import OutboundHttp, read_body
from headgate.durable.model.failures import NonRetryable
from headgate.errors import SettingsError, TransientError, UnauthenticatedError

# Keys are asked for anew after this long, so that one that was withdrawn is not trusted for ever.
REFRESH_SECONDS: Final = 600.0
# Tokens with unknown keys make us ask again, but not more often than this, whatever they are.
ASK_AGAIN_SECONDS: Final = 30.0
# If the issuer cannot be asked, what it last said is trusted for this long.
TRUSTED_SECONDS: Final = 6 * 3600.0
FETCH_SECONDS: Final = 10.0
BYTES_MAX: Final = 512 * 1024
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
# Which kind of key, and curve, an algorithm goes with: a token must not choose how its key is read.
_KINDS: Final[Mapping[str, tuple[str, str | None]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
ALGORITHMS: Final = tuple(_KINDS)


class PublicKey(Struct, frozen=True):
    """A key that signatures are checked with, and what it may be used for."""

    id: str | None
    kind: str
    curve: str | None
    algorithm: str | None
    key: Any

    def fits(self, algorithm: str) -> bool:
        """Whether a token signed with this algorithm can have been signed with this key."""
        return self.algorithm in (None, algorithm) and (self.kind, self.curve) == _KINDS.get(algorithm)


class _Kept(Struct, frozen=True):
    keys: tuple[PublicKey, ...]
    fetched_at: float


class KeySet:
    """Finds the key that a token names. Safe to use from many threads; one of them asks, the others go on."""

    def __init__(self, fetch: Callable[[], bytes], clock: Clock, *, is_static: bool = False) -> None:
        """Take what fetches a JWKS document; `is_static` ones are read once."""
        self._fetch = fetch
        self._clock = clock
        self._is_static = is_static
        self._asking = threading.Lock()
        self._kept: _Kept | None = None
        self._asked_at: float | None = None
        self._failure = ""

    def key(self, key_id: str | None, algorithm: str) -> PublicKey:
        """Return the key for a token. Raises `UnauthenticatedError`, or `TransientError` if the issuer is silent."""
        found = self.remembered(key_id, algorithm)
        if found is not None:
            return found
        self._refresh()
        kept = self._trusted()
        if kept is None:
            raise TransientError(f"the keys of the issuer of tokens cannot be fetched: {self._failure or 'not yet'}")
        found = _match(kept.keys, key_id, algorithm)
        if found is None:
            raise UnauthenticatedError(
                f"token: its key {(key_id or 'without id')[:60]!r} is not one that the issuer publishes for {algorithm}"
            )
        return found

    def remembered(self, key_id: str | None, algorithm: str) -> PublicKey | None:
        """Return the key for a token if it is known and need not be asked for again."""
        kept = self._kept
        is_fresh = kept is not None and (self._is_static or self._age(kept) < REFRESH_SECONDS)
        return _match(kept.keys, key_id, algorithm) if kept is not None and is_fresh else None

    def _refresh(self) -> None:
        if not self._asking.acquire(blocking=self._kept is None):
            return
        try:
            now = self._clock.monotonic()
            if self._asked_at is not None and (self._is_static or now - self._asked_at < ASK_AGAIN_SECONDS):
                return
            self._asked_at = now
            try:
                self._kept = _Kept(public_keys(self._fetch()), now)
                self._failure = ""
            except TransientError as exc:
                self._failure = exc.message
        finally:
            self._asking.release()

    def _trusted(self) -> _Kept | None:
        kept = self._kept
        return kept if kept is not None and (self._is_static or self._age(kept) < TRUSTED_SECONDS) else None

    def _age(self, kept: _Kept) -> float:
        return self._clock.monotonic() - kept.fetched_at


class JwksFetcher:
    """Fetches a JWKS document over HTTPS, or what an issuer says of itself first if only that is known.

    It connects to addresses that were looked up once and checked; redirects are not followed.
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
        return self._get(self._url or self._discovered())

    def _discovered(self) -> str:
        address = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            told = typed_decode.from_json(self._get(address), _Issuer)
        except msgspec.DecodeError as exc:
            raise TransientError(f"{address}: it is not what an issuer says of itself ({exc})") from exc
        if told.issuer != self._issuer:
            raise TransientError(f"{address}: it speaks of issuer {told.issuer[:120]!r}, not of {self._issuer!r}")
        return told.jwks_uri

    def _get(self, address: str) -> bytes:
        try:
            return self._read(self._http.target(address))
        except NonRetryable as exc:
            raise TransientError(f"{address[:200]}: it must not be asked for keys: {exc}") from exc
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as exc:
            raise TransientError(f"{address[:200]}: {type(exc).__name__} {exc}".rstrip()) from exc

    def _read(self, url: httpx.URL) -> bytes:
        with self._http.stream("GET", url, {"accept": "application/json"}, timeout_seconds=FETCH_SECONDS) as (
            response,
            _,
        ):
            if response.status != 200:
                raise TransientError(f"{url.scheme}://{url.host}{url.path}: answered {response.status}")
            content = read_body(response, BYTES_MAX)
            if len(content) > BYTES_MAX:
                raise TransientError(f"{url.scheme}://{url.host}{url.path}: answered more than {BYTES_MAX:,} bytes")
            return content


def from_file(path: Path, clock: Clock) -> KeySet:
    """Return the keys of a JWKS file, which is read now. Raises `SettingsError`."""
    try:
        content = path.read_bytes()
        public_keys(content)
    except OSError as exc:
        raise SettingsError(f"auth.oidc_jwks_file = {path}: it cannot be read: {exc.strerror}") from exc
    except TransientError as exc:
        raise SettingsError(f"auth.oidc_jwks_file = {path}: {exc.message}") from exc
    return KeySet(lambda: content, clock, is_static=True)


def public_keys(document: bytes) -> tuple[PublicKey, ...]:
    """Return the keys of a JWKS document that signatures can be checked with; others are left out.

    Raises `TransientError` if there are none: what an issuer says by mistake it may put right.
    """
    try:
        told = typed_decode.from_json(document, _Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise TransientError(f"not a JWKS document: {exc}") from exc
    found = tuple(key for key in map(_public_key, told.keys[:KEYS_MAX]) if key is not None)
    if not found:
        raise TransientError("the JWKS document has no public key that signatures can be checked with")
    return found


class _Document(Struct, frozen=True):
    keys: list[dict[str, Any]]


class _Issuer(Struct, frozen=True):
    issuer: str
    jwks_uri: str


def _public_key(told: dict[str, Any]) -> PublicKey | None:
    kind, curve = told.get("kty"), told.get("crv")
    # A shared secret is no public key, and a key for encryption is none for signatures.
    if (kind, curve) not in _KINDS.values() or told.get("use", "sig") != "sig":
        return None
    # What is private has no business in the document, and what we check with needs only this much.
    public: dict[str, Any] = {name: told[name] for name in ("kty", "crv", "n", "e", "x", "y") if name in told}
    algorithm = next(name for name, fits in _KINDS.items() if fits == (kind, curve))
    try:
        key = jwt.PyJWK(public, algorithm).key
    except (jwt.exceptions.PyJWTError, ValueError, TypeError):
        return None
    if kind == "RSA" and key.key_size < RSA_BITS_MIN:
        return None
    key_id, declared = told.get("kid"), told.get("alg")
    return PublicKey(
        key_id if isinstance(key_id, str) else None,
        str(kind),
        curve,
        declared if isinstance(declared, str) else None,
        key,
    )


def _match(keys: tuple[PublicKey, ...], key_id: str | None, algorithm: str) -> PublicKey | None:
    fitting = [key for key in keys if key.fits(algorithm) and (key_id is None or key.id == key_id)]
    # A token that does not say which is taken only if there is no choice.
    return fitting[0] if len(fitting) == 1 or (fitting and key_id is not None) else None
