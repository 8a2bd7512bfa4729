"""Built-in names: an app cannot declare them, and code of an app cannot start them."""

from __future__ import annotations

import pytest
from msgspec import Raw

import headgate as hg
from headgate.errors import DefinitionError, InvalidPayloadError


async def forged(definition: str) -> str:
    return definition


@pytest.mark.parametrize("name", ["headgate.machine", "headgate.new", "Headgate.machine"])
def test_app__declares_a_reserved_name__is_refused(name: str) -> None:
    app = hg.App("shop")

    with pytest.raises(DefinitionError, match="reserved for Headgate"):
        app.workflow(name=name)(forged)
    with pytest.raises(DefinitionError, match="reserved for Headgate"):
        app.activity(name=name)(lambda: None)
    assert (app.workflows, app.activities) == ({}, {})


def test_app__starts_a_built_in_workflow__is_refused() -> None:
    with hg.testing.Environment(hg.App("shop")) as env:
        client = env.service.client

        with pytest.raises(InvalidPayloadError, match="reserved for Headgate"):
            client.start("headgate.machine", Raw(b"{}"))
        with pytest.raises(InvalidPayloadError, match="reserved for Headgate"):
            client.signal_with_start("headgate.machine", Raw(b"{}"), "go", Raw(b"1"), execution_id="e")
