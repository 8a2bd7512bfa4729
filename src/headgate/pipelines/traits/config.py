"""Fields of an evaluator's config, read with care: each refusal names the field, what it is and what it may be."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.durable.model import duration
from headgate.errors import DefinitionError, UserError
from headgate.pipelines.definition.model import Json
from headgate.pipelines.field_values import number, shown


def text(config: Mapping[str, Json], name: str) -> str:
    """Return a text that must be there. Raises `DefinitionError`."""
    found = text_or_none(config, name)
    if found is None:
        raise DefinitionError(f"config: {name} is missing; give a text")
    return found


def text_or_none(config: Mapping[str, Json], name: str) -> str | None:
    """Return a text; None: there is none, or it is empty. Raises `DefinitionError` for anything else."""
    found = config.get(name)
    if found is None or found == "":
        return None
    if not isinstance(found, str):
        raise DefinitionError(f"config: {name} is {shown(found)}; give a text")
    return found


def texts_or_none(config: Mapping[str, Json], name: str) -> tuple[str, ...] | None:
    """Return a list of texts, for which numbers are taken too. Raises `DefinitionError` for anything else."""
    found = config.get(name)
    if found is None:
        return None
    if not isinstance(found, list | tuple) or not found or any(isinstance(each, dict | list) for each in found):
        raise DefinitionError(f"config: {name} is {shown(found)}; give a list of texts that is not empty")
    return tuple(str(each) for each in found)


def number_or_none(config: Mapping[str, Json], name: str) -> int | float | None:
    """Return a number, which may be written as text; 0 is one. Raises `DefinitionError` for anything else."""
    found = config.get(name)
    if found is None:
        return None
    read = number(found)
    if read is None:
        raise DefinitionError(f"config: {name} is {shown(found)}; give a number")
    return read


def flag(config: Mapping[str, Json], name: str, *, default: bool) -> bool:
    """Return whether something is so. Raises `DefinitionError` for what is neither true nor false."""
    found = config.get(name, default)
    if not isinstance(found, bool):
        raise DefinitionError(f"config: {name} is {shown(found)}; give true or false")
    return found


def duration_seconds(config: Mapping[str, Json], name: str) -> float:
    """Return a length of time that must be there: "10m", or a number of seconds. Raises `DefinitionError`."""
    found = duration_or_none(config, name)
    if found is None:
        raise DefinitionError(f'config: {name} is missing; give a duration such as "10m"')
    return found


def duration_or_none(config: Mapping[str, Json], name: str) -> float | None:
    """Return a length of time; None: there is none. Raises `DefinitionError` for what is not one."""
    found = config.get(name)
    if found is None:
        return None
    read = number(found)
    try:
        return duration.seconds(found if read is None else read, name=name)
    except UserError as exc:
        raise DefinitionError(f"config: {exc}") from exc
