"""Prices of AWS services: a dated table with region and sources, which a file replaces in part or as a whole."""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.errors import InvalidPayloadError

_FILE: Final = "prices.toml"
_HEAD: Final = frozenset({"as_of", "region"})


class Item(enum.StrEnum):
    """What AWS bills."""

    DYNAMODB_WRITES = "dynamodb_writes"
    DYNAMODB_READS = "dynamodb_reads"
    DYNAMODB_STORAGE_GB = "dynamodb_storage_gb"
    DYNAMODB_RECOVERY_GB = "dynamodb_recovery_gb"
    STATE_TRANSITIONS = "state_transitions"
    INVOCATIONS = "invocations"
    GB_SECONDS = "gb_seconds"
    SQS_STANDARD = "sqs_standard"
    SQS_FIFO = "sqs_fifo"
    S3_PUTS = "s3_puts"
    S3_GETS = "s3_gets"
    S3_STORAGE_GB = "s3_storage_gb"
    EVENTS = "events"
    SCHEDULES = "schedules"
    NOTIFICATIONS = "notifications"
    LOG_GB = "log_gb"


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dollars for so many of an item, with the page that says so.

    `confirmed` is the month of the latest page that was seen to state this price; empty: none later than the table.
    """

    dollars: Annotated[float, Meta(ge=0)]
    per: Annotated[float, Meta(gt=0)] = 1
    unit: str = ""
    source: str = ""
    confirmed: str = ""

    @property
    def of_one(self) -> float:
        return self.dollars / self.per


class PriceTable(Struct, frozen=True, kw_only=True):
    """The prices of one region as of a month."""

    as_of: str
    region: str
    prices: Mapping[Item, Price]

    @property
    def unconfirmed(self) -> list[Item]:
        """The items whose price was not checked since the date of the table."""
        return [item for item, price in self.prices.items() if not price.confirmed]


def published() -> PriceTable:
    """Return the prices of us-east-1 that come with Headgate."""
    text = resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    return _table(tomllib.loads(text), {})


def replaced(document: Mapping[str, Any]) -> PriceTable:
    """Return the published prices with those of a document in their place. Raises `InvalidPayloadError`.

    A document that changes prices names its own date and region.
    """
    missing = sorted(_HEAD - document.keys())
    if missing:
        raise InvalidPayloadError(f"prices: {', '.join(missing)} missing; write when and where the prices hold")
    table = _table(document, published().prices)
    # A price of the document counts as checked on the date of the document.
    given = {item: replace(table.prices[item], confirmed=table.as_of) for item in Item if item in document}
    return replace(table, prices={**table.prices, **given})


def _table(document: Mapping[str, Any], known: Mapping[Item, Price]) -> PriceTable:
    given: dict[Item, Price] = {}
    for name, value in document.items():
        if name in _HEAD:
            continue
        if name not in list(Item):
            raise InvalidPayloadError(f"prices: {name!r} is no item; use one of {', '.join(Item)}")
        try:
            given[Item(name)] = typed_decode.convert(value, Price)
        except msgspec.ValidationError as exc:
            raise InvalidPayloadError(f"prices, {name}: {exc}") from exc
    return PriceTable(as_of=str(document["as_of"]), region=str(document["region"]), prices={**known, **given})
