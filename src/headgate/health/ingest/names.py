"""OpenLineage names: maps a namespace and a name to a dataset URN, a column URN or a producer id.

A name that a URN can spell without loss is spelled: `kafka://broker:9092` becomes `kafka+broker@9092`. Any other is
cleaned and gets a digest of the whole, so that no two names map to one URN.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from headgate.errors import InvalidPayloadError
from headgate.health.model import urns

NAME_LENGTH_MAX: Final = 2_048
# Jobs of this namespace are pipelines of this server, by their ids; datasets may be named by their URNs.
OWN_NAMESPACE: Final = "headgate"
PIPELINE_PREFIX: Final = "pipeline:"
_SEGMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~+@-]*")
_COLUMN: Final = re.compile(r"[A-Za-z0-9_$][^\s:#~\x00-\x1f\x7f]*")
# The replacements of '://', ':' and '/' must not occur themselves.
_TAKEN: Final = re.compile(r"[~+@]")
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9._-]+")
_ILLEGAL_COLUMN: Final = re.compile(r"[\s:#~\x00-\x1f\x7f]+")
_NOT_FIRST: Final = re.compile(r"[^A-Za-z0-9]+")
_LIKE_DIGEST: Final = re.compile(r".*~[0-9a-f]{12}")
_LIKE_VERSION: Final = re.compile(r"v\d+")
_NAMESPACE_LENGTH: Final = 160
_NAME_LENGTH: Final = 300
_COLUMN_BYTES: Final = 400
_PRODUCER_LENGTH: Final = 220


class NameResolver(Struct, frozen=True):
    """Resolves datasets: `alias` by (namespace, name), `topic` by the Kafka topic of a namespace."""

    alias: Callable[[str, str], str | None] = lambda _namespace, _name: None
    topic: Callable[[str, str], str | None] = lambda _namespace, _topic: None


def known_urn(namespace: str, name: str, names: NameResolver) -> str | None:
    """Return the known dataset of a name, or None."""
    found = names.alias(namespace, name)
    if found is None and namespace.startswith("kafka://"):
        found = names.topic(namespace, name)
    return found


def made_urn(namespace: str, name: str) -> str:
    """Return the derived URN of an unknown name. Raises `InvalidPayloadError` for an empty name."""
    check(namespace, name)
    if namespace == OWN_NAMESPACE and urns.is_dataset_urn(name):
        return name
    domain, title = _spelt(namespace), _spelt(name)
    if domain is None or len(domain) > _NAMESPACE_LENGTH:
        domain = _marked(namespace, namespace, _NAMESPACE_LENGTH)
    # `urn:dp:topics:v2` would read as version 2 of `urn:dp:topics`.
    if title is None or len(title) > _NAME_LENGTH or _LIKE_VERSION.fullmatch(title):
        title = _marked(name, name, _NAME_LENGTH)
    return urns.dataset_urn(f"{urns.PREFIX}{domain}:{title}")


def made_column(dataset_urn: str, column: str) -> str | None:
    """Return the URN of a column, or None for an empty name."""
    if not column or len(column) > NAME_LENGTH_MAX:
        return None
    plain = _COLUMN.fullmatch(column) and len(column.encode(errors="replace")) <= _COLUMN_BYTES
    if plain and column.isprintable():
        return urns.column_urn(dataset_urn, column)
    cleaned = _ILLEGAL_COLUMN.sub("-", column).encode("ascii", "replace").decode().replace("?", "-")
    first = _NOT_FIRST.match(cleaned)
    cleaned = cleaned[first.end() :] if first else cleaned
    return urns.column_urn(dataset_urn, f"{cleaned[:64] or 'column'}~{_digest(column)}")


def producer_id(namespace: str, name: str) -> str:
    """Return the id of a job. Raises `InvalidPayloadError` for an empty name."""
    check(namespace, name)
    if namespace == OWN_NAMESPACE and (own := _own_pipeline(name)) is not None:
        return own
    # The separator is unambiguous only if the namespace has no dot.
    spelt = None if "." in namespace else _spelt(f"{namespace}.{name}")
    if spelt is None or len(spelt) > _PRODUCER_LENGTH:
        spelt = _marked(f"{namespace}.{name}", f"{len(namespace)}:{namespace}{name}", _PRODUCER_LENGTH)
    return f"job:{spelt}"


def _own_pipeline(name: str) -> str | None:
    """Return the producer id of a pipeline of this server, as its definition has it in the lineage."""
    return f"{PIPELINE_PREFIX}{name}" if _SEGMENT.fullmatch(name) and len(name) <= _PRODUCER_LENGTH else None


def check(namespace: str, name: str) -> None:
    """Raise `InvalidPayloadError` for an empty or too long name."""
    for field, text in (("namespace", namespace), ("name", name)):
        if not text.strip() or len(text) > NAME_LENGTH_MAX:
            raise InvalidPayloadError(f"OpenLineage {field} {text[:60]!r}: give 1 to {NAME_LENGTH_MAX} characters")


def _spelt(text: str) -> str | None:
    """Return the text in URN characters if that is reversible, else None."""
    if _TAKEN.search(text):
        return None
    spelt = text.replace("://", "+").replace(":", "@").replace("/", "~")
    return spelt if _SEGMENT.fullmatch(spelt) and not _LIKE_DIGEST.fullmatch(spelt) else None


def _marked(text: str, whole: str, length: int) -> str:
    cleaned = _ILLEGAL.sub("-", text)
    first = _NOT_FIRST.match(cleaned)
    cleaned = (cleaned[first.end() :] if first else cleaned)[: length - 13]
    return f"{cleaned.rstrip('-.') or 'x'}~{_digest(whole)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()
