"""Pages of jobs of other tools, and the tests and fields on the page of a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.serve.health_rig import done
from tests.integration.serve.pages.test_routes import ORIGIN, Document, Site, text_of

TABLE = "urn:dp:duckdb+shop.duckdb:shop.main.orders"
JOB = "job:dbt.shop.orders"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("jobs") / "home")
    try:
        assertions = [{"assertion": "not_null", "column": "id", "success": False, "expected": "0", "actual": "3"}]
        facets: dict[str, Any] = {
            "schema": {"fields": [{"name": "id", "type": "INT", "description": "The key."}]},
            "documentation": {"description": "Orders of the shop."},
            "dataQualityAssertions": {"assertions": assertions},
            "columnLineage": {
                "fields": {"id": {"inputFields": [{"namespace": "pg", "name": "raw", "field": "order_id"}]}}
            },
        }
        error = {"message": "no such column: id", "programmingLanguage": "SQL"}
        event = {
            "eventType": "FAIL", "eventTime": made.clock.now().isoformat(),
            "job": {"namespace": "dbt", "name": "shop.orders"},
            "run": {"runId": "r-1", "facets": {"errorMessage": error}},
            "outputs": [{"namespace": "duckdb://shop.duckdb", "name": "shop.main.orders", "facets": facets}],
        }  # fmt: skip
        done(made.post(f"{ORIGIN}/api/v1/lineage", event), 201)
        made.health.drain()
        yield made
    finally:
        made.is_stopping = True
        made.close()


def test_jobs__listed__link_to_their_pages_and_show_the_message(site: Site) -> None:
    page = site.page("/ui/jobs")

    assert f"/ui/jobs/{JOB.replace(':', '%3A')}" in Document.read(page).links
    assert "no such column: id" in text_of(page)
    assert "No jobs" in text_of(site.page("/ui/jobs?state=COMPLETED"))


def test_job__one__shows_its_runs_and_datasets(site: Site) -> None:
    page = site.page(f"/ui/jobs/{JOB}")

    assert "r-1" in text_of(page)
    assert any("shop.main.orders" in link for link in Document.read(page).links)


def test_dataset__with_results_and_fields__shows_them_with_their_source(site: Site) -> None:
    text = text_of(site.page(f"/ui/datasets/{TABLE}"))

    for shown in (
        "NOT_NULL:id",
        "expected 0, actual 3",
        "no such column: id",
        "The key.",
        "order_id",
        "from openlineage",
    ):
        assert shown in text, shown
