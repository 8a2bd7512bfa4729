"""Words of writers: what each pipeline said last of a dataset that it writes, and what follows from all of them.

A dataset has one signal of a kind and may have several writers. It is as well as the worst of them says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from headgate.health.model import timestamps as moments
from headgate.health.model.enums import SignalState
from headgate.health.model.signals import Signal
from headgate.pipelines.row_codec import row, struct_of
from headgate.store.catalogue.tables import PIPELINES, WRITER_WORD
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query, Range, Sort
from headgate.store.port import Store

# Good news is forgotten in time: it only keeps what is older from being taken for news.
KEPT_SECONDS: Final = 90 * 86_400
WRITERS_MAX: Final = 1_000
_WORST_LAST: Final = (SignalState.OK, SignalState.UNKNOWN, SignalState.WARNING, SignalState.CRITICAL)


class Word(Struct, frozen=True, kw_only=True):
    """What a pipeline says of a signal of a dataset. `written_as` is how its definition calls the dataset."""

    dataset_urn: str
    signal_type: str
    pipeline_id: str
    written_as: str
    state: SignalState
    window_start_ms: int
    window_end_ms: int
    # The event that says it.
    at_ms: int
    event_id: str
    signature: str | None = None
    evidence: tuple[str, ...] = ()
    version: int = 1

    @property
    def place(self) -> tuple[int, int, str]:
        """What comes later: that of a later period, and of the same period what was told later."""
        return self.window_end_ms, self.at_ms, self.event_id


class Words:
    """The words of writers in one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, dataset_urn: str, signal_type: str) -> dict[str, Word]:
        """Return what was said of a signal, by who said it."""
        key = WRITER_WORD.key(dataset_urn=dataset_urn, signal_type=signal_type, pipeline_id="-")
        prefix = str(key.sort).removesuffix("-")
        page = self._store.query(
            Query(
                table=PIPELINES,
                partition=key.partition,
                sort=Sort(Range.BEGINS_WITH, prefix),
                limit=WRITERS_MAX,
                consistent=True,
            )
        )
        words = (struct_of(item, Word) for item in page.items)
        return {word.pipeline_id: word for word in words}

    def say(self, word: Word, now_ms: int) -> None:
        """Keep a word in the place of the version before it. Raises `ConflictError` if that is another one now."""
        key = WRITER_WORD.key(dataset_urn=word.dataset_urn, signal_type=word.signal_type, pipeline_id=word.pipeline_id)
        ttl = None if word.state.is_breach else now_ms // 1000 + KEPT_SECONDS
        condition = absent() if word.version == 1 else version_is(word.version - 1)
        self._store.transact([Put(PIPELINES, row(key, word, ttl=ttl), condition)])


def may_follow(before: Word | None, word: Word, takes_back: str) -> bool:
    """Whether a word is news after the last of the same writer. `takes_back`: it ends one reason alone."""
    if before is None:
        return True
    if before.place > word.place:
        return False
    return not (takes_back and before.state.is_breach) or (before.signature or "").startswith(f"{takes_back}:")


def remembered(words: dict[str, Word], current: Signal | None) -> dict[str, Word]:
    """Return words with that which only the signal itself remembers, if there is one.

    A signal is written after the word that it shows; one without is of before words were kept.
    """
    producer = "" if current is None or current.value.top_producer is None else current.value.top_producer.producer_id
    if current is None or not producer or producer in words or not current.state.is_breach:
        return words
    value = current.value
    return {
        **words,
        producer: Word(
            dataset_urn=current.dataset_urn,
            signal_type=current.signal_type,
            pipeline_id=producer,
            written_as=current.dataset_urn,
            state=value.state,
            window_start_ms=moments.milliseconds(value.window_start),
            window_end_ms=moments.milliseconds(value.window_end),
            at_ms=0,
            event_id="",
            signature=value.failure_signature,
            evidence=value.evidence_sample,
            version=0,
        ),
    }


def prevailing(own: Word, others: Iterable[Word], current: Signal | None) -> Word:
    """Return the word that the signal shows: the worst; of the equally bad, news before what is shown already."""

    def rank(word: Word) -> tuple[int, bool, bool, tuple[int, int, str]]:
        is_shown = current is not None and current.value.failure_signature == word.signature
        return _WORST_LAST.index(word.state), word is own, is_shown, word.place

    return max((own, *others), key=rank)
