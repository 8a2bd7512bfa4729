"""Offline validation of pipeline triggers: type, configuration and template references."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from headgate.triggers.kinds import check_config, kind_named
from headgate.triggers.secret_sources import SecretSources

# References to secrets are checked for their form; only the server can resolve them.
_SECRETS: Final = SecretSources({}, folder=Path())


def check_trigger(type: str, config: dict[str, Any], *, date_example: str | None = None) -> None:
    """Raise `DefinitionError` for an invalid trigger, with the field and its allowed values.

    `date_example` is a period of the pipeline.
    """
    check_config(kind_named(type), config, _SECRETS, date_example=date_example)
