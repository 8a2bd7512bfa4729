"""Machines: definitions that are kept by name and version, so that executions can be started by a name."""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.asl.compile.problems import Problem
from headgate.asl.expressions.scope import Json
from headgate.asl.model.substitution import substitute
from headgate.clock import Clock
from headgate.durable.model.records import instant
from headgate.errors import ConflictError, DefinitionError, InvalidIdError, NotFoundError, VersionConflictError
from headgate.store.catalogue.tables import DEFINITIONS
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

KIND: Final = "STATE-MACHINE"
LATEST: Final = "LATEST"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
_PROBLEMS_TOLD_MAX: Final = 20
# Definitions that a process has at hand, for those who run them.
_KNOWN_MAX: Final = 256


class StoredMachine(Struct, frozen=True, omit_defaults=True):
    """One version of a machine."""

    name: str
    version: int
    # JSON text, with variables filled in as far as they were given.
    definition: str
    digest: str
    created_at: str
    created_by: str = ""
    comment: str = ""


class MachineList(Struct, frozen=True):
    """A page of machines, each in its newest version. `cursor` is None on the last."""

    machines: list[StoredMachine]
    cursor: str | None


def check_machine_name(name: str) -> str:
    """Return the name. Raises `InvalidIdError` for one that no machine can have."""
    if not _NAME.fullmatch(name):
        raise InvalidIdError(
            f"machine {name[:90]!r}: use 1 to 80 letters, digits, '-' and '_', beginning with a letter or digit"
        )
    return name


def checked_definition(text: str, variables: dict[str, str] | None = None, *, what: str = "definition") -> str:
    """Return a definition as compact JSON, variables filled in. Raises `DefinitionError` with everything wrong."""
    filled, _ = substitute(text, variables or {})
    definition, found = _checked(filled)
    if found:
        raise DefinitionError(f"{what}: {told(found)}")
    return definition


# What is put is mostly what was put before, and to check a large machine takes longer than to keep it.
@functools.lru_cache(maxsize=16)
def _checked(filled: str) -> tuple[str, list[Problem]]:
    # As in `requests`: only who puts or runs a machine needs it.
    from headgate.asl.compile.validator import load, problems

    definition = load(filled)
    return msgspec.json.encode(definition).decode(), problems(definition)


def told(found: list[Problem]) -> str:
    """Return problems as one text, each with its place."""
    lines = [
        f"{each.path}: {each.fact}; {each.allowed}" if each.allowed else f"{each.path}: {each.fact}" for each in found
    ]
    rest = len(lines) - _PROBLEMS_TOLD_MAX
    return "; ".join([*lines[:_PROBLEMS_TOLD_MAX], *([f"and {rest} more"] if rest > 0 else [])])


class Machines:
    """The machines of a store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._definitions: dict[tuple[str, int], str] = {}

    def put(
        self,
        name: str,
        text: str,
        *,
        variables: dict[str, str] | None = None,
        created_by: str = "",
        expected_version: int | None = None,
    ) -> StoredMachine:
        """Keep a definition as the newest version of a machine, and return that. The same again changes nothing.

        Raises `DefinitionError`, `InvalidIdError`, and `VersionConflictError` if the newest version is another than
        was expected (0: none).
        """
        check_machine_name(name)
        definition = checked_definition(text, variables, what=f"machine {name}")
        digest = hashlib.sha256(definition.encode()).hexdigest()
        while True:
            newest = self.find(name)
            version = 0 if newest is None else newest.version
            if expected_version is not None and expected_version != version:
                raise VersionConflictError(
                    f"machine {name}: it is at version {version}, not {expected_version}; read it again",
                    current=None if newest is None else {"name": name, "version": version},
                )
            if newest is not None and newest.digest == digest:
                return newest
            comment = msgspec.json.decode(definition).get("Comment", "")
            made = StoredMachine(
                name, version + 1, definition, digest, instant(int(self._clock.seconds() * 1000)), created_by, comment
            )
            try:
                self._store.transact(
                    [
                        Put(DEFINITIONS, _item(made, LATEST), absent() if version == 0 else version_is(version)),
                        Put(DEFINITIONS, _item(made, _sort(made.version)), absent()),
                    ]
                )
            except ConflictError:
                continue  # Someone else has put one at the same moment: look again.
            return made

    def find(self, name: str, version: int | None = None) -> StoredMachine | None:
        """Return a version of a machine, or its newest."""
        sort = LATEST if version is None else _sort(version)
        item = self._store.get(DEFINITIONS, Key(_partition(name), sort), consistent=True)
        return None if item is None else _machine(item)

    def get(self, name: str, version: int | None = None) -> StoredMachine:
        """Return a version of a machine, or its newest. Raises `NotFoundError`."""
        found = self.find(name, version)
        if found is None:
            which = "" if version is None else f" version {version}"
            raise NotFoundError(f"machine {name}{which}: there is none; 'headgate asl ls' lists them")
        return found

    def definition(self, name: str, version: int) -> str:
        """Return the definition of a version, which never changes. Raises `NotFoundError`."""
        known = self._definitions.get((name, version))
        if known is None:
            known = self.get(name, version).definition
            if len(self._definitions) >= _KNOWN_MAX:
                self._definitions.clear()
            self._definitions[name, version] = known
        return known

    def ls(self, *, limit: int = 100, cursor: str | None = None) -> MachineList:
        """Return the machines by name. Raises `CursorError`."""
        query = Query(table=DEFINITIONS, index="kind-index", partition=KIND, limit=limit, cursor=cursor)
        page = self._store.query(query)
        return MachineList([_machine(item) for item in page.items], page.cursor)

    def versions(self, name: str, *, limit: int = 100, cursor: str | None = None) -> MachineList:
        """Return the versions of a machine, the newest first. Raises `CursorError`."""
        newest_first = Sort(Range.BEGINS_WITH, "v")
        page = self._store.query(
            Query(
                table=DEFINITIONS,
                partition=_partition(name),
                sort=newest_first,
                limit=limit,
                cursor=cursor,
                descending=True,
            )
        )
        return MachineList([_machine(item) for item in page.items], page.cursor)


def _partition(name: str) -> str:
    return f"{KIND}#{check_machine_name(name)}"


def _sort(version: int) -> str:
    return f"v{version:06d}"


def _item(machine: StoredMachine, sort: str) -> Item:
    item: Item = {**msgspec.to_builtins(machine), "PK": _partition(machine.name), "SK": sort}
    if sort == LATEST:
        item["latest_kind"] = KIND
    return item


def _machine(item: Item) -> StoredMachine:
    return typed_decode.convert(item, StoredMachine)


def parse(definition: str) -> Json:
    """Return a stored definition as JSON."""
    return msgspec.json.decode(definition)
