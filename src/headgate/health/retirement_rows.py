"""The row that has someone look at a dataset that was deleted or restored."""

from __future__ import annotations

from typing import Final

from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key

DUE: Final = "RETIREMENT"
# When every process has read the dataset anew.
LOOK_AGAIN_MS: Final = 60_000


def retirement_key(dataset_urn: str) -> Key:
    """Return where the row of a dataset is."""
    return Key(f"RETIREMENT#{dataset_urn}", "STATE")


def retirement_put(dataset_urn: str, now_ms: int) -> Put:
    """Return the write that has a dataset looked at once all know that it was deleted or restored."""
    return Put(
        CONTROL,
        {
            **CONTROL.key_attributes(retirement_key(dataset_urn)),
            "due_pk": DUE,
            "due_at_ms": now_ms + LOOK_AGAIN_MS,
            "dataset_urn": dataset_urn,
        },
    )
