"""An issuer of tokens with real keys, for tests: signs, publishes its keys, and forges what must not pass."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import lru_cache
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://id.example.com/realms/data"
AUDIENCE = "headgate"


@lru_cache
def rsa_key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@lru_cache
def ec_key(number: int = 0) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@lru_cache
def ed_key() -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def jwk(key: Any, key_id: str | None, **more: Any) -> dict[str, Any]:
    """The public half of a key as a JWK."""
    result: dict[str, Any]
    if isinstance(key, rsa.RSAPrivateKey):
        result = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        result = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        result = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    result.pop("key_ops", None)
    return {**result, **({} if key_id is None else {"kid": key_id}), **more}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def claims(now: float, **more: Any) -> dict[str, Any]:
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "iat": int(now), "exp": int(now) + 300, "roles": ["viewer"]}
    return {name: value for name, value in {**usual, **more}.items() if value is not None}


def sign(said: dict[str, Any], key: Any, algorithm: str, key_id: str | None = "k1", **header: Any) -> str:
    headers = {**({} if key_id is None else {"kid": key_id}), **header}
    return jwt.encode(said, key, algorithm=algorithm, headers=headers)


def forged(header: dict[str, Any], said: dict[str, Any], signature: bytes = b"") -> str:
    """A token put together by hand, as no library would."""
    return ".".join(_text(part) for part in (json.dumps(header).encode(), json.dumps(said).encode(), signature))


def signed_with_public_key(said: dict[str, Any], key: rsa.RSAPrivateKey) -> str:
    """What someone makes who has only the public key, and hopes that it is taken for a shared secret."""
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "HS256", "kid": "k1", "typ": "JWT"}
    body = f"{_text(json.dumps(header).encode())}.{_text(json.dumps(said).encode())}"
    return f"{body}.{_text(hmac.digest(pem, body.encode(), hashlib.sha256))}"


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
