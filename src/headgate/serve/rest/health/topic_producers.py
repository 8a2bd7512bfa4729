"""Topic producer API: list and record the producers of a topic."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.health.model import enums
from headgate.health.resolution.topic_producers import Source, TopicProducer
from headgate.health.service import HealthService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.rest.health.models import PageQuery
from headgate.serve.rest.parameters import Timestamp

_ALL: Final = "/topics/{topic}/producers"
_READ: Final = Rule(Permission.RULE_READ, Reach.ALL)
_WRITE: Final = Rule(Permission.RULE_WRITE, Reach.ALL)


class Sighting(Struct, forbid_unknown_fields=True, kw_only=True):
    """How the producer was detected; `seen_at` is now by default."""

    source: Source
    confidence: str = "HIGH"
    seen_at: Timestamp | None = None


class ProducerPage(Struct, frozen=True):
    """A page of producers of a topic."""

    items: list[TopicProducer]
    next_page_token: str | None = None


def topic_producer_operations(health: HealthService) -> list[Operation]:
    """Return the operations on the producers of topics."""
    return _TopicProducers(health).operations()


class _TopicProducers:
    def __init__(self, health: HealthService) -> None:
        self._producers = health.topic_producers

    def operations(self) -> list[Operation]:
        one = f"{_ALL}/{{producer_id}}"
        return [
            Operation(
                "GET", _ALL, "List producers of a topic", self.ls, {200: ProducerPage}, query=PageQuery, rule=_READ
            ),
            Operation(
                "PUT", one, "Record a producer of a topic", self.put, {200: TopicProducer}, body=Sighting, rule=_WRITE
            ),
        ]

    def ls(self, call: Call[None, PageQuery]) -> Answer:
        page = self._producers.of(call.path["topic"], limit=call.query.page_size, cursor=call.query.page_token)
        return Answer(ProducerPage(page.producers, page.cursor))

    def put(self, call: Call[Sighting, NoQuery]) -> Answer:
        body = call.body
        return Answer(
            self._producers.seen(
                call.path["topic"],
                call.path["producer_id"],
                confidence=enums.confidence(body.confidence),
                source=body.source,
                seen_at=body.seen_at,
            )
        )
