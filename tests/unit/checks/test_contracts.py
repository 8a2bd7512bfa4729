"""Data contracts in ODCS v3.1: schema, SLAs, quality rules and owners are mapped, and the rest is listed."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from headgate.checks.contracts import ImportedContract, import_contract
from headgate.checks.definitions import load_check_text
from headgate.errors import DefinitionError

CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: orders-contract
name: Orders
version: 2.1.0
status: active
domain: sales
tenant: shop
tags: [finance]
description: {purpose: Orders of the shop., usage: For reports., limitations: No test orders.}
schema:
  - name: orders
    physicalName: orders_v2
    physicalType: table
    businessName: Orders
    properties:
      - name: order_id
        logicalType: integer
        physicalType: bigint
        required: true
        primaryKey: true
        primaryKeyPosition: 1
      - name: email
        logicalType: string
        physicalType: varchar(200)
        required: true
        unique: true
        classification: restricted
        logicalTypeOptions: {pattern: '^.+@.+$', maxLength: 200}
        quality:
          - {metric: nullValues, mustBeLessThan: 1, unit: percent, severity: warning}
          - {metric: missingValues, mustBe: 0, arguments: {missingValues: [null, '', 'N/A']}}
      - name: status
        logicalType: string
        quality:
          - {metric: invalidValues, mustBe: 0, arguments: {validValues: [open, "it's done"]}}
      - name: updated_at
        logicalType: timestamp
    quality:
      - {metric: rowCount, mustBeBetween: [10, 1000000]}
      - {type: library, metric: duplicateValues, mustBe: 0, arguments: {properties: [order_id, status]}}
      - {type: sql, name: Totals, query: 'SELECT count(*) FROM ${object} WHERE total < 0', mustBe: 0}
      - {type: text, description: Orders are real.}
      - {type: custom, engine: soda, implementation: x}
      - {metric: rowCount, mustNotBeBetween: [1, 2]}
      - {metric: rowCount, mustBeGreaterThan: 0, schedule: '0 20 * * *', scheduler: cron}
servers:
  - {server: prod, type: postgres, host: db.internal, port: 5432, database: shop, schema: sales}
  - {server: lake, type: s3, location: 's3://x'}
slaDefaultElement: orders.updated_at
slaProperties:
  - {property: latency, value: 4, unit: h}
  - {property: retention, value: 3, unit: y, element: orders}
  - {property: frequency, value: 1, unit: d}
  - {property: timeToDetect, value: 1, unit: d}
  - {property: latency, value: 1, unit: h, element: nothing.at}
team:
  name: order-platform
  members:
    - {username: jane@example.org, role: Data Owner}
    - {username: joe, role: Engineer}
support:
  - {channel: "#orders", url: 'https://chat.example.org', tool: slack}
price: {priceAmount: 9}
"""


def imported(text: str = CONTRACT, **options: Any) -> ImportedContract:
    return import_contract(yaml.safe_load(text), **options)


def test_contract__owners_slas_and_schema__become_config() -> None:
    [found] = imported().datasets

    assert found.dataset_urn == "urn:dp:sales:orders"
    assert found.config == {
        "display_name": "Orders",
        "description": "Orders of the shop. For reports. No test orders.",
        "owner_team": "order-platform",
        "owner_email": "jane@example.org",
        "oncall_rotation": "#orders",
        "tags": {"odcs_domain": "sales", "odcs_tenant": "shop", "odcs_status": "active", "tag_finance": "true"},
        "contract_binding": {
            "contract_id": "orders-contract:2.1.0",
            "required_fields": ["order_id", "email"],
            "field_constraints": {
                "order_id": {"type": "integer"},
                "email": {"type": "string", "pattern": "^.+@.+$", "maxLength": 200},
                "status": {"type": "string"},
            },
        },
        "slos": {"freshness": {"max_delay_seconds": 14_400}},
        "retention_days": 1095,
    }


def test_contract__quality_rules__become_valid_checks() -> None:
    [found] = imported().datasets
    text = yaml.safe_dump(found.checks)

    loaded = load_check_text(text, "checks/orders.yaml")

    assert not loaded.problems, [each.text() for each in loaded.problems]
    checks = {each.id: each for each in loaded.files[0].file.checks}
    assert set(checks) == {
        "schema", "primary-key", "unique-email", "null-values-email", "missing-values-email", "invalid-values-status",
        "row-count", "duplicate-values", "totals", "row-count-2", "latency",
    }  # fmt: skip
    queries = {name: each.sql.query for name, each in checks.items() if each.sql is not None}
    table = "sales.orders_v2"
    assert queries["null-values-email"] == (
        f"SELECT 100.0 * avg(CASE WHEN email IS NULL THEN 1.0 ELSE 0.0 END) FROM {table}"
    )
    assert (
        queries["missing-values-email"] == f"SELECT count(*) FROM {table} WHERE email IS NULL OR email IN ('', 'N/A')"
    )
    assert queries["invalid-values-status"].endswith("status NOT IN ('open', 'it''s done')")
    assert queries["totals"] == f"SELECT count(*) FROM {table} WHERE total < 0"
    assert checks["null-values-email"].severity == "warning"
    latency = checks["latency"].freshness
    assert latency is not None
    assert (latency.column, float(latency.max_age)) == ("updated_at", 14_400.0)
    source = loaded.files[0].file.source
    assert source is not None
    assert source.sql is not None
    assert source.sql.url == "postgresql+psycopg://db.internal:5432/shop"


def test_contract__what_has_no_counterpart__is_listed_with_the_reason() -> None:
    unmapped = {each.path: each.reason for each in imported().unmapped}

    assert set(unmapped) == {
        "price",
        "servers[1]",
        "team.members[1]",
        "support[0].url", "support[0].tool",
        "schema[0].businessName",
        "schema[0].properties[0].primaryKeyPosition",
        "schema[0].properties[1].classification",
        "schema[0].quality[3]", "schema[0].quality[4]", "schema[0].quality[5]",
        "schema[0].quality[6].schedule", "schema[0].quality[6].scheduler",
        "slaProperties[2]", "slaProperties[3]", "slaProperties[4]",
    }  # fmt: skip


def test_contract__without_a_server_that_checks_can_read__lists_every_check() -> None:
    text = CONTRACT.replace("type: postgres, host: db.internal, port: 5432, database: shop", "type: kafka")

    found = imported(text)

    assert found.datasets[0].checks["checks"] == []
    assert sum("its check is left out" in each.reason for each in found.unmapped) == 11


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("kind: DataContract", "kind: Other", "kind"),
        ("apiVersion: v3.1.0", "apiVersion: v2.0.0", "apiVersion 'v2.0.0' is not read"),
        ("status: active\n", "", "status is missing"),
        ("schema:\n", "schemas:\n", "schema: it has no object"),
    ],
)
def test_contract__invalid__is_refused_with_the_field(old: str, new: str, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        imported(CONTRACT.replace(old, new, 1))


def test_contract__server_that_is_missing__is_refused() -> None:
    with pytest.raises(DefinitionError, match="there is no 'test', but prod, lake"):
        imported(server="test")
