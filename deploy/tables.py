"""Writes terraform/tables.json from the catalogue of tables: run it after a change of the catalogue.

python deploy/tables.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from headgate.store.catalogue.tables import ALL_TABLES
from headgate.store.dynamodb.tables import PROVISIONED_UNITS, create_request
from headgate.store.model.schema import Billing, Index, Table

FILE: Final = Path(__file__).parent / "terraform" / "tables.json"


def rendered() -> str:
    """Return the file as the catalogue has it today."""
    return json.dumps({table.name: described(table) for table in ALL_TABLES}, indent=2) + "\n"


def described(table: Table) -> dict[str, Any]:
    """Return the Terraform input of a table: the parameters of CreateTable, and how items expire."""
    request = create_request(table, table.name)
    is_provisioned = table.billing is Billing.PROVISIONED
    return {
        "billing_mode": table.billing.value,
        "read_capacity": PROVISIONED_UNITS["ReadCapacityUnits"] if is_provisioned else None,
        "write_capacity": PROVISIONED_UNITS["WriteCapacityUnits"] if is_provisioned else None,
        "attributes": {each["AttributeName"]: each["AttributeType"] for each in request["AttributeDefinitions"]},
        **_keys(table),
        "indexes": {
            each["IndexName"]: {
                **_keys(table.index(each["IndexName"])),
                "projection_type": each["Projection"]["ProjectionType"],
                "non_key_attributes": each["Projection"].get("NonKeyAttributes"),
            }
            for each in request.get("GlobalSecondaryIndexes", [])
        },
        "ttl_attribute": table.ttl_attribute,
        "stream": table.stream or table.wakes,
    }


def _keys(source: Table | Index) -> dict[str, str | None]:
    return {"hash_key": source.partition.name, "range_key": None if source.sort is None else source.sort.name}


if __name__ == "__main__":
    FILE.write_text(rendered())
