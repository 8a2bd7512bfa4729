"""The evidence cache: what is kept, what is a duplicate, what a failing store leaves, and what is found again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from msgspec.structs import replace

from headgate.errors import AlreadyExistsError, InvalidIdError, InvalidPayloadError, SettingsError, StoreBusyError
from headgate.health.evidence.cache import Decision, EvidenceCache
from headgate.health.evidence.limits import Limits
from headgate.health.evidence.rows import Evidence, Result, Validation, from_outside
from headgate.health.evidence.sampling import SAMPLED_OUT, Rates, ResultRates
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.model.values import canonical_item
from tests.integration.health.evidence_rig import DAY, NOTHING_BUT_FAILURES, REASON, URN, Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.sqlite.close()


def count(rig: Rig) -> int:
    query = Query(table=EVIDENCE_CACHE, index="dataset-time-index", partition=URN, limit=1000)
    return len(rig.sqlite.query(query).items)


def test_put__given_new_evidence__then_it_is_stored_for_a_day_and_then_gone(rig: Rig) -> None:
    evidence = rig.evidence()

    answer = rig.cache.put(evidence)

    assert answer.stored
    assert answer.decision is Decision.STORED
    assert answer.expires_at == "2025-06-16T15:06:40.000Z"
    assert rig.cache.get(evidence.evidence_id) == evidence
    rig.clock.advance(DAY - 1)
    assert rig.cache.get(evidence.evidence_id) == evidence
    rig.clock.advance(1)
    # The row is still there, as DynamoDB leaves it for days, and readers do not see it.
    assert rig.raw(evidence.evidence_id) is not None
    assert rig.cache.get(evidence.evidence_id) is None
    assert rig.cache.of_dataset(URN).evidence == []


def test_put__given_no_id_and_no_moment__then_both_are_made(rig: Rig) -> None:
    answer = rig.cache.put(Evidence(dataset_urn=URN, validation=Validation(result=Result.FAIL)))

    found = rig.cache.get(answer.evidence_id)

    assert found is not None
    assert found.created_at == rig.now()


def test_put__given_the_same_again__then_it_is_a_duplicate_and_nothing_is_written(rig: Rig) -> None:
    evidence = rig.put()
    rig.clock.advance(60)
    before = rig.raw(evidence.evidence_id)

    answer = rig.cache.put(evidence)

    assert answer.decision is Decision.DUPLICATE
    assert answer.stored
    assert rig.raw(evidence.evidence_id) == before
    assert rig.cache.stats.duplicates == 1


def test_put__given_the_same_again_without_a_moment__then_it_is_a_duplicate(rig: Rig) -> None:
    evidence = rig.evidence(created_at="")
    rig.cache.put(evidence)
    rig.clock.advance(60)

    assert rig.cache.put(evidence).decision is Decision.DUPLICATE


def test_put__given_the_id_of_another__then_it_conflicts_and_the_first_stays(rig: Rig) -> None:
    evidence = rig.put()

    with pytest.raises(AlreadyExistsError, match=evidence.evidence_id):
        rig.cache.put(replace(evidence, payload_size_bytes=7))

    assert rig.cache.get(evidence.evidence_id) == evidence
    assert rig.cache.stats.refused == 1


def test_put__given_the_duplicate_of_one_that_is_pinned__then_the_pin_stays(rig: Rig) -> None:
    evidence = rig.put()
    rig.pin([evidence.evidence_id], "INC-1")

    answer = rig.cache.put(evidence)

    assert answer.decision is Decision.DUPLICATE
    assert answer.expires_at is None
    found = rig.cache.get(evidence.evidence_id)
    assert found is not None
    assert found.pinned_by == ("INC-1",)


def test_put__given_what_is_not_valid__then_it_is_refused_and_nothing_written(rig: Rig) -> None:
    with pytest.raises(InvalidIdError):
        rig.cache.put(rig.evidence(evidence_id="evd-7"))
    with pytest.raises(InvalidIdError):
        rig.cache.put(rig.evidence(evidence_id="\ud800"))
    with pytest.raises(InvalidPayloadError, match="created_at"):
        rig.cache.put(rig.evidence(created_at="soon"))
    assert count(rig) == 0


def test_put_many__given_all_kinds_at_once__then_each_has_its_own_answer(rig: Rig) -> None:
    there = rig.put()
    new, bad = rig.evidence(), rig.evidence(payload_size_bytes=-1)
    offered = [there, new, bad, new, replace(new, payload_size_bytes=1), replace(there, payload_size_bytes=1)]

    answers = rig.cache.put_many(offered)

    assert [answer.decision for answer in answers] == [
        Decision.DUPLICATE,
        Decision.STORED,
        Decision.REFUSED,
        Decision.DUPLICATE,
        Decision.REFUSED,
        Decision.REFUSED,
    ]
    assert [type(answer.error) for answer in answers if answer.error] == [
        InvalidPayloadError,
        AlreadyExistsError,
        AlreadyExistsError,
    ]
    assert rig.cache.get(new.evidence_id) == new
    assert count(rig) == 2


def test_put_many__given_one_whose_result_is_none__then_the_others_are_stored(rig: Rig) -> None:
    bad = replace(rig.evidence(), validation=Validation(result="PERHAPS"))  # type: ignore[arg-type]

    answers = rig.cache.put_many([rig.evidence(), bad, rig.evidence()])

    assert [answer.stored for answer in answers] == [True, False, True]
    assert isinstance(answers[1].error, InvalidPayloadError)
    assert (rig.cache.stats.stored, rig.cache.stats.refused) == (2, 1)


def test_limits__given_one_of_zero__then_it_is_refused() -> None:
    with pytest.raises(SettingsError, match="total_per_minute"):
        Limits(total_per_minute=0)


def test_put_many__given_nothing__then_nothing(rig: Rig) -> None:
    assert rig.cache.put_many([]) == []


def test_put_many__given_ten_thousand__then_all_are_stored_and_again_all_are_duplicates(tmp_path: Path) -> None:
    big = 10**9
    limits = Limits(per_signature_per_minute=big, per_dataset_per_minute=big, total_per_minute=big)
    rig = Rig(tmp_path, limits=limits)
    offered = [rig.evidence() for _ in range(10_000)]

    assert {answer.decision for answer in rig.cache.put_many(offered)} == {Decision.STORED}
    assert {answer.decision for answer in rig.cache.put_many(offered[::7])} == {Decision.DUPLICATE}
    assert rig.archive_all() == 10_000
    rig.clock.advance(DAY)
    for evidence in (offered[0], offered[4_999], offered[9_999]):
        assert rig.cache.get(evidence.evidence_id) == replace(evidence, archived=True)
    rig.sqlite.close()


def test_put_many__given_large_evidence__then_it_goes_in_more_transactions(rig: Rig) -> None:
    offered = [rig.evidence(payload_ref=f"{number}".ljust(2_000, "é")) for number in range(200)]

    assert {answer.decision for answer in rig.cache.put_many(offered)} == {Decision.STORED}
    assert rig.archive_all() == 200


@pytest.mark.parametrize("is_applied", [False, True])
def test_put_many__given_the_store_fails__then_offering_again_stores_each_once(rig: Rig, is_applied: bool) -> None:
    offered = [rig.evidence() for _ in range(200)]
    rig.broken.failures, rig.broken.is_applied = 1, is_applied

    with pytest.raises(StoreBusyError):
        rig.cache.put_many(offered)
    again = rig.cache.put_many(offered)

    assert {answer.decision for answer in again} == {Decision.DUPLICATE if is_applied else Decision.STORED}
    assert count(rig) == 200
    assert rig.archive_all() == 200


def test_put_many__given_several_threads__then_nothing_is_lost_or_counted_twice(rig: Rig) -> None:
    batches = [[rig.evidence() for _ in range(50)] for _ in range(8)]
    # Each batch twice, by two threads.
    threads = [Thread(target=rig.cache.put_many, args=(batch,)) for batch in [*batches, *batches]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    stats = rig.cache.stats
    assert (stats.offered, stats.stored, stats.duplicates) == (800, 400, 400)
    assert count(rig) == 400
    assert rig.archive_all() == 400


def test_sampling__given_only_failures_are_kept__then_passes_leave_no_row(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rates=NOTHING_BUT_FAILURES)
    first = rig.put(Result.PASS)  # One of each dataset is always on record.
    for _ in range(10):
        rig.put(Result.PASS)

    assert [each.evidence_id for each in rig.cache.of_dataset(URN).evidence] == [first.evidence_id]
    assert rig.cache.stats.sampled_out == 10
    rig.sqlite.close()


def test_last_good__given_it_was_sampled_out__then_the_first_failure_brings_it_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rates=NOTHING_BUT_FAILURES)
    passed = [rig.put(Result.PASS) for _ in range(5)]
    failed = [rig.put(Result.FAIL) for _ in range(3)]

    contrast = rig.cache.first_bad_and_last_good(URN, since=passed[1].created_at)

    assert contrast.first_bad == failed[0]
    assert contrast.last_good == passed[-1]
    assert contrast.is_complete
    rig.sqlite.close()


@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize("after", [0, 1])
def test_last_good__given_the_store_fails_at_the_first_failure__then_the_retry_brings_it(
    tmp_path: Path, is_applied: bool, after: int
) -> None:
    rig = Rig(tmp_path, rates=NOTHING_BUT_FAILURES)
    passed = [rig.put(Result.PASS) for _ in range(3)]
    rig.clock.advance(1)
    failed = rig.evidence()
    rig.broken.failures, rig.broken.after, rig.broken.is_applied = 1, after, is_applied
    with pytest.raises(StoreBusyError):
        rig.cache.put(failed)

    rig.cache.put(failed)

    contrast = rig.cache.first_bad_and_last_good(URN)
    assert (contrast.first_bad, contrast.last_good) == (failed, passed[-1])
    on_record = rig.sqlite.get(CONTROL, Key(f"LAST-GOOD#{URN}", "EVIDENCE"))
    assert on_record is not None
    assert on_record["evidence_id"] == passed[-1].evidence_id
    rig.sqlite.close()


def test_last_good__given_a_restart_before_the_failure__then_it_is_no_older_than_the_refresh(tmp_path: Path) -> None:
    rates = Rates(usual=ResultRates(passed=0.0), refresh_seconds=300)
    rig = Rig(tmp_path, rates=rates)
    passed = []
    for _ in range(70):
        rig.clock.advance(10)
        passed.append(rig.put(Result.PASS))
    rig.sqlite.close()

    restarted = Rig(tmp_path, rates=rates, clock=rig.clock)
    failed = restarted.put(Result.FAIL)
    contrast = restarted.cache.first_bad_and_last_good(URN)

    assert contrast.first_bad == failed
    assert contrast.last_good in passed[-31:]
    restarted.sqlite.close()


def test_last_good__given_it_expired_long_ago__then_the_archive_still_has_it(rig: Rig, tmp_path: Path) -> None:
    good = rig.put(Result.PASS)
    rig.archive_all()
    rig.clock.advance(3 * DAY)
    restarted = Rig(tmp_path, clock=rig.clock)
    failed = restarted.put(Result.FAIL)

    contrast = restarted.cache.first_bad_and_last_good(URN)

    assert contrast.first_bad == failed
    assert contrast.last_good == replace(good, archived=True)
    restarted.sqlite.close()


def test_last_good__given_it_expired_while_it_was_remembered__then_the_first_failure_brings_it_back(rig: Rig) -> None:
    good = rig.put(Result.PASS)
    rig.clock.advance(3 * DAY)
    rig.put(Result.FAIL)

    assert rig.cache.get(good.evidence_id, include_archived=False) == good


def test_last_good__given_late_evidence_and_one_of_the_future__then_the_record_stays_the_newest(rig: Rig) -> None:
    rig.put(Result.PASS, created_at="2099-01-01T00:00:00Z")
    rig.clock.advance(400)
    newest = rig.put(Result.PASS)
    rig.clock.advance(400)
    rig.put(Result.PASS, created_at="2025-01-01T00:00:00Z")
    rig.archive_all()
    rig.clock.advance(2 * DAY)

    contrast = rig.cache.first_bad_and_last_good(URN)

    assert contrast.last_good is not None
    assert contrast.last_good.evidence_id == newest.evidence_id


def test_first_bad__given_a_signature_and_a_moment__then_only_those_count(rig: Rig) -> None:
    rig.put(Result.FAIL, reason="OTHER")
    middle = rig.put(Result.PASS)
    rig.put(Result.FAIL, reason="OTHER")
    wanted = rig.put(Result.FAIL)
    rig.put(Result.FAIL)

    assert rig.cache.first_bad_and_last_good(URN, signature=REASON).first_bad == wanted
    assert rig.cache.first_bad_and_last_good(URN, since=wanted.created_at).first_bad == wanted
    assert rig.cache.first_bad_and_last_good(URN, since=wanted.created_at).last_good == middle
    none = rig.cache.first_bad_and_last_good(URN, until="2020-01-01T00:00:00Z")
    assert (none.first_bad, none.last_good, none.is_complete) == (None, None, True)


def test_first_bad__given_more_than_is_looked_through__then_it_says_so(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.health.evidence.contrast._PAGE", 2)
    monkeypatch.setattr("headgate.health.evidence.contrast._PAGES_MAX", 2)
    for _ in range(6):
        rig.put(Result.FAIL, reason="OTHER")

    assert rig.cache.first_bad_and_last_good(URN, signature=REASON) == replace(
        rig.cache.first_bad_and_last_good(URN, signature=REASON), first_bad=None, is_complete=False
    )


def test_of_dataset__given_pages_a_range_and_a_result__then_the_newest_come_first(rig: Rig) -> None:
    put = [rig.put(Result.FAIL if number % 3 == 0 else Result.PASS) for number in range(10)]
    rig.put(urn="urn:dp:orders:other")

    pages, cursor = [], None
    while True:
        page = rig.cache.of_dataset(URN, limit=4, cursor=cursor)
        pages.append(page.evidence)
        cursor = page.cursor
        if cursor is None:
            break

    assert [each for page_of in pages for each in page_of] == put[::-1]
    between = rig.cache.of_dataset(URN, put[2].created_at, put[4].created_at)
    assert between.evidence == put[4:1:-1]
    failures = rig.cache.of_dataset(URN, limit=10, result=Result.FAIL)
    assert failures.evidence == [put[9], put[6], put[3], put[0]]
    with pytest.raises(InvalidPayloadError, match="since"):
        rig.cache.of_dataset(URN, put[4].created_at, put[2].created_at)
    with pytest.raises(InvalidIdError):
        rig.cache.of_dataset("orders")


def test_of_dataset__given_some_was_shed__then_the_answer_says_how_much(tmp_path: Path) -> None:
    rig = Rig(tmp_path, limits=Limits(per_signature_per_minute=2))
    answers = rig.cache.put_many([rig.evidence() for _ in range(5)])

    assert [answer.decision for answer in answers] == [Decision.STORED] * 2 + [Decision.SHED] * 3
    page = rig.cache.of_dataset(URN)
    assert (len(page.evidence), page.shed) == (2, 3)
    assert rig.cache.stats.shed == 3
    rig.sqlite.close()


def test_admit__given_messages_not_decoded_yet__then_the_same_is_kept_as_by_put_many(tmp_path: Path) -> None:
    rates = Rates(usual=ResultRates(passed=0.2))
    rig = Rig(tmp_path / "a", rates=rates)
    other = Rig(tmp_path / "b", rates=rates)
    offered = [rig.evidence(Result.FAIL if number == 150 else Result.PASS) for number in range(200)]

    def decoding(evidence: Evidence) -> Callable[[], Evidence]:
        return lambda: evidence

    admitted = []
    for each in offered:
        said = each.validation.result.value
        admission = rig.cache.admit(each.evidence_id, said, URN, offered=decoding(each), signature=each.signature)
        if admission.is_kept:
            admitted.append((each, admission))
    answers = rig.cache.put_admitted(admitted)
    other.cache.put_many(offered)

    assert {answer.decision for answer in answers} <= {Decision.STORED, Decision.DUPLICATE}
    assert stored(rig.cache) == stored(other.cache)
    assert (rig.cache.stats.offered, rig.cache.stats.stored) == (200, other.cache.stats.stored)
    assert offered[149].evidence_id in stored(rig.cache)
    rig.sqlite.close()
    other.sqlite.close()


@pytest.mark.parametrize("is_decoded_first", [True, False])
def test_admit__given_the_other_way_in_brought_the_last_good__then_it_is_stored_all_the_same(
    tmp_path: Path, is_decoded_first: bool
) -> None:
    rig = Rig(tmp_path, rates=NOTHING_BUT_FAILURES)
    rig.put(Result.PASS)
    rig.clock.advance(1)
    good = rig.evidence(Result.PASS)
    if is_decoded_first:
        rig.cache.put(good)
    else:
        assert rig.cache.admit(good.evidence_id, "PASS", URN, offered=lambda: good) is SAMPLED_OUT
    bad = rig.evidence()
    if is_decoded_first:
        rig.cache.put_admitted([(bad, rig.cache.admit(bad.evidence_id, "FAIL", URN))])
    else:
        rig.cache.put(bad)

    assert rig.cache.get(good.evidence_id) == good
    rig.sqlite.close()


def test_admit__given_the_store_fails__then_the_last_good_is_remembered_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rates=NOTHING_BUT_FAILURES)
    rig.put(Result.PASS)
    good, bad = rig.evidence(Result.PASS), rig.evidence()
    rig.cache.admit(good.evidence_id, "PASS", URN, offered=lambda: good)
    rig.broken.failures = 1
    with pytest.raises(StoreBusyError):
        rig.cache.put_admitted([(bad, rig.cache.admit(bad.evidence_id, "FAIL", URN))])

    rig.cache.put_admitted([(bad, rig.cache.admit(bad.evidence_id, "FAIL", URN))])

    assert rig.cache.get(good.evidence_id) == good
    rig.sqlite.close()


def test_admit__given_the_last_good_turns_out_not_to_be_valid__then_the_failure_is_stored_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rates=NOTHING_BUT_FAILURES)
    rig.put(Result.PASS)
    rig.cache.admit(rig.cache.new_id(), "PASS", URN, offered=lambda: from_outside({"validation": 7}))
    bad = rig.evidence()

    assert rig.cache.put(bad).decision is Decision.STORED
    rig.sqlite.close()


def test_admit__given_no_id__then_it_is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidIdError, match="new_id"):
        rig.cache.admit("", "PASS", URN)
    assert rig.cache.admit(rig.cache.new_id(), "SKIP", URN) is not SAMPLED_OUT


def test_wall_clock__given_it_is_set_back__then_sampling_goes_on(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rates=Rates(usual=ResultRates(passed=0.0), refresh_seconds=300))
    rig.put(Result.PASS)
    rig.clock.step(-30 * DAY)
    rig.clock.advance(301)

    rig.put(Result.PASS)

    assert rig.cache.stats.stored == 2
    rig.sqlite.close()


def test_get_many__given_ids_of_all_kinds__then_each_is_accounted_for(rig: Rig) -> None:
    there, unknown = rig.put(), rig.cache.new_id()

    found = rig.cache.get_many([unknown, there.evidence_id, "nonsense", there.evidence_id])

    assert found.evidence == {there.evidence_id: there}
    assert found.missing == (unknown, "nonsense")
    assert found.unreadable == {}
    assert rig.cache.get("nonsense") is None


def stored(cache: EvidenceCache) -> set[str]:
    return {each.evidence_id for each in cache.of_dataset(URN, limit=1000).evidence}


@pytest.mark.parametrize("said", ["MISSING_FIELD:id", "FELD_FEHLT:größe"])
def test_put__given_any_text__then_the_row_is_what_a_store_makes_of_it(rig: Rig, said: str) -> None:
    evidence = rig.evidence(reason=said, payload_ref="s3://lake/$x", payload_size_bytes=2**63 - 1)

    assert rig.cache.put(evidence).stored

    row = rig.raw(evidence.evidence_id)
    assert row is not None
    assert canonical_item(row) == (row, False)
    assert rig.cache.get(evidence.evidence_id) == evidence


def test_put__given_half_a_surrogate_pair__then_it_is_refused_by_name(rig: Rig) -> None:
    with pytest.raises(InvalidPayloadError):
        rig.cache.put(rig.evidence(payload_ref="\ud800"))
