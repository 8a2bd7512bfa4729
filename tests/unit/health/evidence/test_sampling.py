"""Sampling: the same everywhere, the last good kept, and too much turned away in order and counted."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import count
from typing import Final

import pytest

from headgate.errors import InvalidPayloadError
from headgate.health.evidence import sampling
from headgate.health.evidence.limits import SIGNATURES_MAX, Limits, Stats
from headgate.health.evidence.sampling import SAMPLED_OUT, Admission, Rates, ResultRates, Sampler

URN: Final = "urn:dp:orders:order_created:v1"
# Nothing but what is asked for: no PASS is kept merely because it is time for one.
QUIET: Final = Rates(refresh_seconds=1e9)
_DECIDE: Final = """
from headgate.health.evidence.limits import Limits, Stats
from headgate.health.evidence.sampling import Rates, Sampler
sampler = Sampler(Rates(refresh_seconds=1e9), Limits(), Stats())
ids = [f"evd-01HQXY8MNP4QR7ST9VW2{n:06d}" for n in range(2000)]
print([n for n, each in enumerate(ids) if sampler.admit(each, "PASS", "urn:dp:a:b", 0).is_kept])
"""


class Offers:
    """Offers one after the other to a sampler."""

    def __init__(self, rates: Rates = QUIET, limits: Limits | None = None) -> None:
        self.stats = Stats()
        self.sampler = Sampler(rates, limits or Limits(), self.stats)
        self._number = count()

    def offer(self, said: str, ticks_ms: int = 0, *, urn: str = URN, signature: str = "S") -> Admission:
        number = next(self._number)
        return self.sampler.admit(f"evd-{number:026d}", said, urn, ticks_ms, f"offer {number}", signature)

    def kept(self, said: str, number: int, ticks_ms: int = 0, *, signature: str = "S") -> int:
        return sum(self.offer(said, ticks_ms, signature=signature).is_kept for _ in range(number))


def test_sampling__given_other_processes_and_hash_seeds__then_all_decide_alike() -> None:
    answers = {
        subprocess.run(
            [sys.executable, "-c", _DECIDE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }

    assert len(answers) == 1
    # The very ids, so that another build decides alike too.
    assert answers == {f"{_KEPT_OF_2000}\n"}


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.25, 1.0])
@pytest.mark.parametrize("kind", ["counting", "random"])
def test_sampling__given_ids_that_count_up_or_are_random__then_the_share_is_kept(rate: float, kind: str) -> None:
    draw = random.Random(7)
    ids = [
        f"evd-01HQXY8MNP4QR7ST9VW2{number:06d}" if kind == "counting" else f"evd-{draw.randbytes(13).hex()}"
        for number in range(30_000)
    ]
    rates = Rates(usual=ResultRates(passed=rate), refresh_seconds=1e9)
    sampler = Sampler(rates, Limits(total_per_minute=10**9, per_dataset_per_minute=10**9), Stats())
    sampler.admit("first", "PASS", URN, 0)

    kept = sum(sampler.admit(each, "PASS", URN, 0).is_kept for each in ids) / len(ids)

    assert kept == pytest.approx(rate, rel=0.15)


def test_sampling__given_a_dataset_with_rates_of_its_own__then_they_count_there_and_nowhere_else() -> None:
    own = ResultRates(passed=1.0, failed=0.0)
    offers = Offers(Rates(datasets={URN: own}, refresh_seconds=1e9))
    other = "urn:dp:orders:other"

    offers.offer("FAIL")  # The first one is kept whatever the rate.
    assert offers.kept("FAIL", 100) == 0
    assert offers.kept("PASS", 100) == 100
    offers.offer("PASS", urn=other)
    assert sum(offers.offer("PASS", urn=other).is_kept for _ in range(100)) < 20


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_rates__given_no_share__then_they_are_refused(rate: float) -> None:
    with pytest.raises(InvalidPayloadError, match="passed"):
        ResultRates(passed=rate)


def test_sampling__given_an_alias_of_a_result__then_it_is_understood_and_others_are_refused() -> None:
    offers = Offers(Rates(usual=ResultRates(passed=0.0), refresh_seconds=1e9))
    offers.offer("PASS")
    assert offers.offer("passed") is SAMPLED_OUT
    assert offers.offer("FAILED").last_good == "offer 1"
    with pytest.raises(InvalidPayloadError, match="MAYBE"):
        offers.offer("MAYBE")


def test_last_good__given_a_first_failure__then_the_pass_before_it_is_given_back_once() -> None:
    offers = Offers(Rates(usual=ResultRates(passed=0.0), refresh_seconds=1e9))
    for _ in range(5):
        offers.offer("PASS")

    first = offers.offer("FAIL", 10)
    offers.offer("PASS", 20)
    second = offers.offer("FAIL", 30)

    assert first.last_good == "offer 4"
    # A few failures among many successes are one story, not many.
    assert second.is_kept
    assert second.last_good is None
    assert offers.offer("FAIL", 30 + 60_000).last_good == "offer 6"
    assert offers.stats.kept_last_good == 2


def _passed(urns: list[str], name: str) -> sampling.Offers:
    """Return a batch of one PASS of each dataset, as what can be packed."""
    ids = [f"evd-{name}-{urn}" for urn in urns]
    return sampling.Offers(ids, ["PASS"] * len(urns), urns, ids, packed=lambda offered: f"packed {offered}")


def test_last_good__given_batches__then_only_what_outlasts_a_few_of_them_is_packed() -> None:
    packed: list[str] = []
    sampler = Sampler(Rates(usual=ResultRates(passed=0.0)), Limits(), Stats())

    def pack(offered: str) -> str:
        packed.append(offered)
        return f"packed {offered}"

    sampler.admit_many(_passed(["urn:dp:a:rare", "urn:dp:a:often"], "first")._replace(packed=pack), 0)
    for number in range(sampling.BATCHES_WHOLE + 2):
        sampler.admit_many(_passed(["urn:dp:a:often"], f"{number}")._replace(packed=pack), 1)

    assert packed == ["evd-first-urn:dp:a:rare"]
    assert sampler.admit("evd-1", "FAIL", "urn:dp:a:rare", 2).last_good == "packed evd-first-urn:dp:a:rare"
    newest = f"evd-{sampling.BATCHES_WHOLE + 1}-urn:dp:a:often"
    assert sampler.admit("evd-2", "FAIL", "urn:dp:a:often", 2).last_good == f"packed {newest}"


def test_last_good__given_it_is_of_the_same_batch__then_the_failure_gets_what_passed_before_it() -> None:
    sampler = Sampler(Rates(usual=ResultRates(passed=0.0)), Limits(), Stats())
    sampler.admit_many(_passed([URN], "first"), 0)
    ids = ["evd-a", "evd-b", "evd-c", "evd-d"]
    batch = _passed([URN] * 4, "second")._replace(offered=ids, results=["PASS", "ok", "FAIL", "PASS"])

    found = sampler.admit_many(batch, 1)

    assert found == {2: Admission(is_kept=True, last_good="packed evd-b")}
    # What could not be stored is remembered again, and keeps no batch alive either.
    sampler.give_back(URN)
    assert sampler.admit("evd-3", "FAIL", URN, 2).last_good == "packed evd-d"


def test_batch__given_one_says_what_is_unknown__then_the_others_are_decided_on_all_the_same() -> None:
    sampler = Sampler(QUIET, Limits(), Stats())

    found = sampler.admit_many(_passed([URN] * 3, "a")._replace(results=["FAIL", "MAYBE", "FAIL"]), 0)

    assert isinstance(found[1], InvalidPayloadError)
    assert [place for place, each in found.items() if isinstance(each, Admission) and each.is_kept] == [0, 2]


def test_last_good__given_failures_that_never_pause__then_it_is_not_given_back_again() -> None:
    offers = Offers(Rates(usual=ResultRates(passed=0.0), refresh_seconds=1e9))
    offers.offer("PASS")
    for second in range(0, 600, 30):
        offers.offer("PASS", 1000 * second)
        assert (offers.offer("FAIL", 1000 * second).last_good is not None) == (second == 0)


def test_last_good__given_it_could_not_be_stored__then_the_next_failure_is_the_first() -> None:
    offers = Offers(Rates(usual=ResultRates(passed=0.0), refresh_seconds=1e9))
    offers.offer("PASS")
    given = offers.offer("FAIL", 1).last_good

    offers.sampler.give_back(URN)

    assert offers.offer("FAIL", 2).last_good == given


def test_last_good__given_a_newer_pass_while_storing_failed__then_that_one_counts() -> None:
    offers = Offers(Rates(usual=ResultRates(passed=0.0), refresh_seconds=1e9))
    offers.offer("PASS")
    offers.offer("FAIL", 1)
    newer = "offer 2"
    offers.offer("PASS", 2)

    offers.sampler.give_back(URN)

    assert offers.offer("FAIL", 3).last_good == newer


def test_recovery__given_quiet_after_failures__then_the_first_few_are_kept() -> None:
    offers = Offers(Rates(usual=ResultRates(passed=0.0), refresh_seconds=1e9))
    offers.offer("PASS")
    offers.offer("FAIL", 0)

    assert offers.kept("PASS", 10, 59_999) == 0
    assert offers.kept("PASS", 10, 60_000) == 3
    assert offers.kept("PASS", 10, 120_000) == 0
    assert offers.stats.kept_recovered == 3


def test_refresh__given_passes_all_the_time__then_one_is_on_record_every_few_minutes() -> None:
    offers = Offers(Rates(usual=ResultRates(passed=0.0), refresh_seconds=300))
    on_record = [ms for ms in range(0, 1_200_000, 1_000) if offers.offer("PASS", ms).is_good_on_record]
    assert on_record == [0, 300_000, 600_000, 900_000]


def test_limits__given_too_much_of_one_failure__then_it_is_capped_and_others_are_not() -> None:
    offers = Offers(limits=Limits(per_signature_per_minute=20))
    assert offers.kept("FAIL", 100, signature="A") == 20
    assert offers.kept("FAIL", 5, signature="B") == 5
    assert offers.stats.shed_fail == 80
    assert offers.sampler.shed_of(URN) == 80
    # Another minute, another allowance.
    assert offers.kept("FAIL", 100, 60_000, signature="A") == 20


def test_limits__given_ever_new_signatures__then_they_count_as_one_in_the_end() -> None:
    offers = Offers(limits=Limits(per_signature_per_minute=5))
    kept = sum(offers.offer("FAIL", signature=f"ID:{number}").is_kept for number in range(500))
    assert kept == SIGNATURES_MAX + 5


def test_limits__given_a_burst__then_passes_give_way_first_then_repeated_failures_then_all() -> None:
    everything = Rates(usual=ResultRates(passed=1.0), refresh_seconds=1e9)
    offers = Offers(everything, Limits(total_per_minute=100, samples_enough=2))

    assert offers.kept("PASS", 200) == 50
    # The last good before the first failure counts too.
    assert offers.kept("FAIL", 200, signature="A") == 39
    assert offers.kept("FAIL", 3, signature="B") == 2
    assert sum(offers.offer("FAIL", signature=f"new {n}").is_kept for n in range(100)) == 8
    stats = offers.stats
    assert stats.kept_last_good == 1
    assert stats.shed_pass == 150
    assert stats.shed_fail == 161 + 1 + 92
    assert offers.sampler.shed_of(URN) == stats.shed
    assert offers.offer("PASS", 60_000).is_kept


def test_limits__given_a_hot_dataset__then_others_still_have_room() -> None:
    offers = Offers(limits=Limits(per_dataset_per_minute=30, per_signature_per_minute=1_000))
    assert offers.kept("FAIL", 100) == 27
    assert offers.offer("FAIL", urn="urn:dp:orders:other").is_kept
    assert offers.sampler.shed_of("urn:dp:orders:other") == 0


def test_limits__given_as_many_rows_as_there_may_be__then_nothing_is_kept_until_some_expire() -> None:
    hour = 3_600_000
    everything = Rates(usual=ResultRates(passed=1.0), refresh_seconds=1e9)
    offers = Offers(everything, Limits(rows_max=100, hot_seconds=7_200, samples_enough=1_000))
    assert offers.kept("FAIL", 60, 0) == 60
    assert offers.kept("FAIL", 60, hour) == 40
    assert offers.kept("PASS", 10, 2 * hour) == 0
    assert offers.kept("FAIL", 10, 3 * hour) == 10
    assert offers.kept("PASS", 10, 3 * hour + 60_000) == 0
    assert offers.kept("PASS", 10, 4 * hour) == 10


def test_limits__given_a_pass_that_is_due_but_finds_no_room__then_it_is_not_tried_at_every_turn() -> None:
    rates = Rates(usual=ResultRates(passed=0.0), refresh_seconds=0.001)
    offers = Offers(rates, Limits(total_per_minute=2))
    assert offers.kept("PASS", 1, 0) == 1
    assert offers.kept("PASS", 1_000, 10) == 0
    assert offers.stats.shed_pass == 1
    assert offers.kept("PASS", 1, 60_010) == 1


def test_datasets__given_more_than_are_remembered__then_the_oldest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampling, "DATASETS_MAX", 2)
    offers = Offers(Rates(usual=ResultRates(passed=0.0), refresh_seconds=1e9))
    for name in ("a", "b", "c"):
        offers.offer("PASS", urn=f"urn:dp:x:{name}")
    assert offers.offer("FAIL", urn="urn:dp:x:b").last_good == "offer 1"
    assert offers.offer("FAIL", urn="urn:dp:x:a").last_good is None


_KEPT_OF_2000: Final = [
    0,
    313,
    372,
    799,
    833,
    1041,
    1161,
    1251,
    1413,
    1617,
    1825,
    1852,
    1871,
    1898,
    1916,
    1922,
    1944,
    1997,
]
