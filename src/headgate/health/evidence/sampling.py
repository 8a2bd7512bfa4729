"""Evidence sampling: decides which evidence is stored, by a hash of its id, the same in every process and retry.

Beyond the sample of each result, these are stored:

- the last PASS of a dataset before its first FAIL, as the comparison for the failure. It stays in memory until then.
  To bound what a crash or another process can lose, one PASS of each dataset is stored every `refresh_seconds`, and
  the dataset's row LAST-GOOD names it. So the recorded last success is at most that much older than the true one
  (while PASS results arrive and the limits have room).
- the first few PASS results once a dataset has had no FAIL for `quiet_seconds`, as proof of recovery.

A FAIL is a first one if its dataset had none for `quiet_seconds`: where a few percent fail all the time, a failure is
not a new event.

The hash is CRC-32 and a multiplication: portable, a third of a microsecond, and uniform over sequential ids, which
differ in their last characters only. It is not a cryptographic hash and need not be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple
from zlib import crc32

from msgspec import Meta, Struct

from headgate.errors import InvalidPayloadError, UserError
from headgate.health.evidence.limits import DatasetMeter, Limits, Meter, Stats
from headgate.health.evidence.rows import Result, result

# A salt, so that the sample is independent of other programs that hash the same ids alike.
_SALT: Final = 0x48474154
# CRC-32 alone is linear: ids that differ in single digits would be sampled together.
_MIX: Final = 0x9E3779B1
_WHOLE: Final = 2**32
_LAST: Final = _WHOLE - 1
_NEVER_MS: Final = 2**63
# The retry interval of a periodic item that found no room.
_AGAIN_MS: Final = 1_000
DATASETS_MAX: Final = 50_000
# How many batches stay in memory for their last PASS. By then most of their datasets have passed again.
BATCHES_WHOLE: Final = 4

Rate = Annotated[float, Meta(ge=0, le=1)]


class ResultRates(Struct, frozen=True, kw_only=True):
    """The sampling rate of each result, from 0 to 1."""

    passed: Rate = 0.01
    failed: Rate = 1.0
    warned: Rate = 1.0
    skipped: Rate = 0.01

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            rate = getattr(self, name)
            if not 0 <= rate <= 1:
                raise InvalidPayloadError(f"sampling rate {name} is {rate}; give 0 to 1")


class Rates(Struct, frozen=True, kw_only=True):
    """Sampling rates, the default ones and those of single datasets, and what is stored besides."""

    usual: ResultRates = ResultRates()
    datasets: Mapping[str, ResultRates] = {}
    refresh_seconds: float = 300
    quiet_seconds: float = 60
    recovered: int = 3


class Admission(NamedTuple):
    """The decision to store an item. `last_good` is an earlier item to be stored with it."""

    is_kept: bool
    is_shed: bool = False
    last_good: Any = None
    # Whether it is the newest known success, to be recorded in LAST-GOOD.
    is_good_on_record: bool = False


KEPT: Final = Admission(is_kept=True)
GOOD_ON_RECORD: Final = Admission(is_kept=True, is_good_on_record=True)
SAMPLED_OUT: Final = Admission(is_kept=False)
SHED: Final = Admission(is_kept=False, is_shed=True)


class Offers(NamedTuple):
    """The columns that the decision on many items needs, all of one length.

    There are thousands at a time, and an object for each would cost more than its decision. `offered` is remembered for
    a PASS; if it keeps a large object alive, such as a whole batch message, `packed` returns a compact copy.
    `signatures` are those of failures, by index.
    """

    evidence_ids: Sequence[str]
    results: Sequence[str]
    dataset_urns: Sequence[str]
    offered: Sequence[Any]
    signatures: Mapping[int, str] = {}
    packed: Callable[[Any], object] | None = None


class _Batch(NamedTuple):
    """The last PASS of each dataset in a batch, unpacked, and the function that packs it."""

    passed: dict[_Dataset, Any]
    packed: Callable[[Any], object]


class _Dataset:
    """The sampling state of a dataset."""

    __slots__ = (
        "below", "due_ms", "failed_ms", "given_out", "last_good", "meter", "pass_below", "recovered_left", "refresh_ms",
    )  # fmt: skip

    def __init__(self, pass_below: int, below: Mapping[Result, int]) -> None:
        self.pass_below = pass_below
        self.below = below
        self.last_good: Any = None
        # The last good item that was handed out, in case it cannot be stored.
        self.given_out: Any = None
        self.failed_ms = -_NEVER_MS
        self.recovered_left = 0
        # From when on a PASS is stored whatever its hash: the periodic one is due, or it is the first after a FAIL.
        self.due_ms = 0
        self.refresh_ms = 0
        self.meter = DatasetMeter()


class Sampler:
    """Decides on evidence item by item. Not thread-safe: the owner holds a lock.

    `ticks_ms` are milliseconds of a monotonic clock.
    """

    def __init__(self, rates: Rates, limits: Limits, stats: Stats) -> None:
        self._rates = rates
        self._stats = stats
        self._meter = Meter(limits)
        self._datasets: dict[str, _Dataset] = {}
        # Shared by almost all datasets, so that a dataset takes little memory.
        self._below = _below(rates.usual)
        self._refresh_ms = round(1000 * rates.refresh_seconds)
        self._quiet_ms = round(1000 * rates.quiet_seconds)
        self._whole: deque[_Batch] = deque()

    def admit_many(self, offers: Offers, ticks_ms: int) -> dict[int, Admission | UserError]:
        """Decide on many items as `admit` does, in order.

        Return by index the decisions on items that are not sampled out, or the errors that `admit` raises.
        """
        found: dict[int, Admission | UserError] = {}
        passed: dict[_Dataset, Any] = {}
        if offers.packed is not None:
            self._keep_whole(_Batch(passed, offers.packed))
        datasets = self._datasets
        # From 0 to 2^32, by the id alone. The id is validated later, if the item is stored.
        hashes = [crc32(each.encode("utf-8", "surrogatepass"), _SALT) * _MIX & _LAST for each in offers.evidence_ids]
        columns = zip(hashes, offers.results, offers.dataset_urns, offers.offered, strict=True)
        for place, (hashed, outcome, dataset_urn, offered) in enumerate(columns):
            try:
                if outcome == "PASS" or result(outcome) is Result.PASS:
                    dataset = datasets.get(dataset_urn) or self._met(dataset_urn)
                    passed[dataset] = dataset.last_good = offered
                    # All but one in a hundred end here.
                    if hashed >= dataset.pass_below and ticks_ms < dataset.due_ms:
                        continue
                    admission = self._passed(dataset, ticks_ms)
                else:
                    signature = offers.signatures.get(place, "")
                    admission = self._not_passed(hashed, result(outcome), dataset_urn, ticks_ms, signature)
            except UserError as exc:
                found[place] = exc
                continue
            if admission is not SAMPLED_OUT:
                found[place] = admission
        return found

    def admit(
        self,
        evidence_id: str,
        outcome: str,
        dataset_urn: str,
        ticks_ms: int,
        offered: object = None,
        signature: str = "",
    ) -> Admission:
        """Decide on one item. `offered` is remembered for a PASS, and returned with a FAIL."""
        offers = Offers((evidence_id,), (outcome,), (dataset_urn,), (offered,), {0: signature})
        admission = self.admit_many(offers, ticks_ms).get(0, SAMPLED_OUT)
        if isinstance(admission, UserError):
            raise admission
        return admission

    def give_back(self, dataset_urn: str) -> None:
        """Undo the decision on an item that could not be stored: the next PASS is due, the next FAIL is a first one."""
        dataset = self._datasets.get(dataset_urn)
        if dataset is not None:
            dataset.failed_ms = -_NEVER_MS
            dataset.refresh_ms = dataset.due_ms = 0
            if dataset.last_good is None:
                dataset.last_good = dataset.given_out

    def shed_of(self, dataset_urn: str) -> int:
        """Return how much evidence of a dataset was shed."""
        dataset = self._datasets.get(dataset_urn)
        return 0 if dataset is None else dataset.meter.shed

    def shed_by_dataset(self) -> dict[str, int]:
        """Return how much was shed, by dataset."""
        return {urn: dataset.meter.shed for urn, dataset in self._datasets.items() if dataset.meter.shed}

    def _passed(self, dataset: _Dataset, ticks_ms: int) -> Admission:
        is_refresh = ticks_ms >= dataset.refresh_ms
        is_recovery = dataset.recovered_left > 0 and ticks_ms >= dataset.failed_ms + self._quiet_ms
        if not self._meter.takes_pass(dataset.meter, ticks_ms):
            self._stats.shed_pass += 1
            # Retried after an interval: a due PASS must not slow down all that follow.
            dataset.due_ms = max(dataset.due_ms, ticks_ms + _AGAIN_MS)
            return SHED
        if is_recovery:
            dataset.recovered_left -= 1
            self._stats.kept_recovered += 1
        if is_refresh:
            dataset.refresh_ms = ticks_ms + self._refresh_ms
            self._stats.kept_refreshed += 1
        self._set_due(dataset)
        return GOOD_ON_RECORD if is_refresh else KEPT

    def _not_passed(self, hashed: int, outcome: Result, dataset_urn: str, ticks_ms: int, signature: str) -> Admission:
        dataset = self._datasets.get(dataset_urn) or self._met(dataset_urn)
        is_sampled = hashed < dataset.below[outcome]
        if outcome is Result.FAIL:
            return self._failed(dataset, signature, ticks_ms, is_sampled=is_sampled)
        return self._neutral(dataset, signature, ticks_ms) if is_sampled else SAMPLED_OUT

    def _failed(self, dataset: _Dataset, signature: str, ticks_ms: int, *, is_sampled: bool) -> Admission:
        is_first = ticks_ms >= dataset.failed_ms + self._quiet_ms
        if not (is_sampled or is_first):
            dataset.failed_ms = ticks_ms
            self._set_due(dataset)
            return SAMPLED_OUT
        if not self._meter.takes_fail(dataset.meter, signature, ticks_ms):
            self._stats.shed_fail += 1
            if not is_first:
                # The next FAIL is still a first one: the success before it is not recorded yet.
                dataset.failed_ms = ticks_ms
            return SHED
        dataset.failed_ms = ticks_ms
        last_good = None
        if is_first:
            dataset.recovered_left = self._rates.recovered
            last_good, dataset.last_good = self._last_good(dataset), None
            dataset.given_out = last_good
        self._set_due(dataset)
        if last_good is None:
            return KEPT
        self._stats.kept_last_good += 1
        self._meter.count(dataset.meter, ticks_ms)
        return Admission(is_kept=True, last_good=last_good)

    def _neutral(self, dataset: _Dataset, signature: str, ticks_ms: int) -> Admission:
        if self._meter.takes_fail(dataset.meter, signature, ticks_ms):
            return KEPT
        self._stats.shed_fail += 1
        return SHED

    def _last_good(self, dataset: _Dataset) -> Any:  # noqa: ANN401 - as it was offered, or as it is packed
        """Return the last PASS, packed if it would keep a batch alive."""
        for batch in self._whole:
            if dataset in batch.passed and batch.passed[dataset] is dataset.last_good:
                return batch.packed(dataset.last_good)
        return dataset.last_good

    def _keep_whole(self, batch: _Batch) -> None:
        """Keep a batch unpacked, and pack what is still a last PASS in the oldest one."""
        # Packing each item on arrival would cost more than its decision, and nearly all for nothing.
        self._whole.append(batch)
        if len(self._whole) > BATCHES_WHOLE:
            passed, packed = self._whole.popleft()
            for dataset, offered in passed.items():
                if dataset.last_good is offered:
                    dataset.last_good = packed(offered)

    def _set_due(self, dataset: _Dataset) -> None:
        recovered_ms = dataset.failed_ms + self._quiet_ms if dataset.recovered_left else _NEVER_MS
        dataset.due_ms = min(dataset.refresh_ms, recovered_ms)

    def _met(self, dataset_urn: str) -> _Dataset:
        if len(self._datasets) >= DATASETS_MAX:
            # An arbitrary one: its dataset loses its sampling state, as at a restart.
            del self._datasets[next(iter(self._datasets))]
        own = self._rates.datasets.get(dataset_urn)
        below = self._below if own is None else _below(own)
        return self._datasets.setdefault(dataset_urn, _Dataset(below[Result.PASS], below))


def _below(rates: ResultRates) -> dict[Result, int]:
    """Return the hash threshold of each result below which an item is stored."""
    shares = {
        Result.PASS: rates.passed,
        Result.FAIL: rates.failed,
        Result.WARN: rates.warned,
        Result.SKIP: rates.skipped,
    }
    return {each: round(rate * _WHOLE) for each, rate in shares.items()}
