"""The gate as Airflow tasks see it: what holds a task, and what the log says."""

from __future__ import annotations

from typing import Any, Final

import pytest

from headgate_airflow.rulings import HoldOn, Question, Ruling, answer_of

ORDERS: Final = "urn:dp:shop:orders:v1"


def answer(ruling: str, **more: Any) -> dict[str, Any]:
    reason = {"code": "SIGNAL_CRITICAL", "ruling": ruling, "dataset_urn": ORDERS, "message": "JOB_RUN is CRITICAL"}
    dataset = {"dataset_urn": ORDERS, "ruling": ruling, "reasons": [reason], "since": "2026-01-05T06:00:00Z", **more}
    fine = {"dataset_urn": "urn:dp:shop:raw:v1", "ruling": "allow"}
    return {"decision": ruling, "datasets": [fine, dataset], "overridable_by": ["operator", "admin"], "later": 1}


@pytest.mark.parametrize(
    ("ruling", "held_by"),
    [
        ("allow", set()),
        ("warn", {HoldOn.WARN}),
        ("unknown", {HoldOn.WARN, HoldOn.UNKNOWN}),
        ("block", {HoldOn.WARN, HoldOn.UNKNOWN, HoldOn.BLOCK}),
    ],
)
def test_holds__each_ruling__holds_from_its_limit_on(ruling: str, held_by: set[HoldOn]) -> None:
    found = answer_of(answer(ruling))

    assert {each for each in HoldOn if found.holds(each)} == held_by


def test_explanation__block__names_the_dataset_the_reason_and_the_remedy() -> None:
    assert answer_of(answer("block")).explanation(HoldOn.UNKNOWN).splitlines() == [
        f"BLOCK {ORDERS}, since 2026-01-05T06:00:00Z",
        "  block: JOB_RUN is CRITICAL",
        "It ends when the dataset is healthy again.",
        "Override (operator or admin): headgate gate override URN --for-time 2h --reason ...",
    ]


def test_explanation__ruling_with_an_end__names_it() -> None:
    found = answer_of(answer("warn", until="2026-01-05T08:00:00Z")).explanation(HoldOn.WARN)

    assert f"WARN {ORDERS}, since 2026-01-05T06:00:00Z, until 2026-01-05T08:00:00Z" in found
    assert "healthy again" not in found


def test_xcom__answer__is_the_decision_and_each_ruling() -> None:
    found = answer_of(answer("warn")).xcom()

    assert found == {"decision": "warn", "datasets": {"urn:dp:shop:raw:v1": "allow", ORDERS: "warn"}}


@pytest.mark.parametrize("wrong", [{}, {"decision": "maybe", "datasets": []}, {"decision": "allow", "datasets": [{}]}])
def test_answer__of_another_service__is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no answer of a gate|not a valid Ruling"):
        answer_of(wrong)


def test_question__body__leaves_out_what_is_not_given() -> None:
    assert Question((ORDERS,), max_age="2h").body() == {
        "datasets": [ORDERS],
        "verb": "read",
        "on_unknown": "warn",
        "max_age": "2h",
    }
    with pytest.raises(ValueError, match="at least one"):
        Question(())


def test_ruling__order__is_that_of_the_server() -> None:
    from headgate.health.gate import decisions

    assert [each.value for each in Ruling] == [each.value for each in decisions.Ruling]
