"""Config fields: typed access to an evaluator's config; each error names the field and the allowed values."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.durable.model import duration
from headgate.errors import DefinitionError, UserError
from headgate.pipelines.definition.model import Json
from headgate.pipelines.field_values import number, shown


def text(config: Mapping[str, Json], name: str) -> str:
    """Return a required text. Raises `DefinitionError`."""
    found = text_or_none(config, name)
    if found is None:
        raise DefinitionError(f"config: {name} is missing; give a text")
    return found


def text_or_none(config: Mapping[str, Json], name: str) -> str | None:
    """Return a text; None: it is missing or empty. Raises `DefinitionError` for anything else."""
    found = config.get(name)
    if found is None or found == "":
        return None
    if not isinstance(found, str):
        raise DefinitionError(f"config: {name} is {shown(found)}; give a text")
    return found


def texts_or_none(config: Mapping[str, Json], name: str) -> tuple[str, ...] | None:
    """Return a list of texts; numbers are accepted. Raises `DefinitionError` for anything else."""
    found = config.get(name)
    if found is None:
        return None
    if not isinstance(found, list | tuple) or not found or any(isinstance(each, dict | list) for each in found):
        raise DefinitionError(f"config: {name} is {shown(found)}; give a list of texts that is not empty")
    return tuple(str(each) for each in found)


def number_or_none(config: Mapping[str, Json], name: str) -> int | float | None:
    """Return a number, also from text. Raises `DefinitionError` for anything else."""
    found = config.get(name)
    if found is None:
        return None
    read = number(found)
    if read is None:
        raise DefinitionError(f"config: {name} is {shown(found)}; give a number")
    return read


def flag(config: Mapping[str, Json], name: str, *, default: bool) -> bool:
    """Return a boolean. Raises `DefinitionError` for anything else."""
    found = config.get(name, default)
    if not isinstance(found, bool):
        raise DefinitionError(f"config: {name} is {shown(found)}; give true or false")
    return found


def duration_seconds(config: Mapping[str, Json], name: str) -> float:
    """Return a required duration: "10m", or a number of seconds. Raises `DefinitionError`."""
    found = duration_or_none(config, name)
    if found is None:
        raise DefinitionError(f'config: {name} is missing; give a duration such as "10m"')
    return found


def duration_or_none(config: Mapping[str, Json], name: str) -> float | None:
    """Return a duration; None: it is missing. Raises `DefinitionError` for an invalid one."""
    found = config.get(name)
    if found is None:
        return None
    read = number(found)
    try:
        return duration.seconds(found if read is None else read, name=name)
    except UserError as exc:
        raise DefinitionError(f"config: {exc}") from exc
