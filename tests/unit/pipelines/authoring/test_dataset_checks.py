"""Warnings for rules on datasets that are not registered."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.pipelines.authoring.dataset_checks import unknown_datasets
from headgate.pipelines.definition.model import Pipeline, PostRun, Readiness, Rule


def reader(*datasets: str, **more: object) -> Pipeline:
    rules = tuple(Rule(dataset=each) for each in datasets)
    return Pipeline(id="reader", readiness=Readiness(rules=rules), **more)  # type: ignore[arg-type]


def none_is_registered(datasets: Sequence[str]) -> Sequence[str]:
    return datasets


def test_unknown_datasets__not_registered__is_a_warning_with_suggestion_and_remedy() -> None:
    (found,) = unknown_datasets(
        [reader("urn:dp:shop:ordres")], none_is_registered, lambda: ["urn:dp:shop:orders", "urn:dp:hr:people"]
    )

    assert found.is_warning
    assert found.text() == (
        "reader: warning: dataset urn:dp:shop:ordres of a rule is not registered, and no pipeline writes it; "
        "did you mean urn:dp:shop:orders? Run 'headgate dataset register urn:dp:shop:ordres'"
    )


def test_unknown_datasets__of_a_post_run_rule__is_a_warning() -> None:
    pipeline = Pipeline(id="reader", post_run=PostRun(rules=(Rule(dataset="urn:dp:a:b"),)))

    assert len(unknown_datasets([pipeline], none_is_registered, list)) == 1


def test_unknown_datasets__written_by_a_pipeline__is_no_warning() -> None:
    writer = Pipeline(id="writer", writes=("urn:dp:shop:orders:v1",))

    assert unknown_datasets([reader("urn:dp:shop:orders"), writer], none_is_registered, list) == []
    assert unknown_datasets([reader("urn:dp:a:b:v2")], none_is_registered, lambda: ["urn:dp:a:b"]) == []


def test_unknown_datasets__all_registered_or_none_named__asks_for_no_writers() -> None:
    def refused() -> list[str]:
        raise AssertionError("the stored definitions were read")

    assert unknown_datasets([reader("urn:dp:a:b")], lambda _: (), refused) == []
    assert unknown_datasets([reader()], none_is_registered, refused) == []
