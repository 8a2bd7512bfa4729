"""Machine registry: stores definitions by name and version."""

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
from headgate.asl.model.names import check_not_built_in
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
_PROBLEMS_MAX: Final = 20
# Definitions that a process caches.
_CACHED_MAX: Final = 256


class StoredMachine(Struct, frozen=True, omit_defaults=True):
    """One version of a machine."""

    name: str
    version: int
    # JSON text; a variable without a value stays as written.
    definition: str
    digest: str
    created_at: str
    created_by: str = ""
    comment: str = ""


class MachineList(Struct, frozen=True):
    """A page of machines. `cursor` is None on the last page."""

    machines: list[StoredMachine]
    cursor: str | None


def check_machine_name(name: str) -> str:
    """Return the name. Raises `InvalidIdError` if it is not a valid machine name."""
    if not _NAME.fullmatch(name):
        raise InvalidIdError(
            f"machine {name[:90]!r}: use 1 to 80 letters, digits, '-' and '_', beginning with a letter or digit"
        )
    return name


def checked_definition(text: str, variables: dict[str, str] | None = None, *, what: str = "definition") -> str:
    """Return a definition as compact JSON with variables filled in. Raises `DefinitionError` listing all problems."""
    definition, problems = _validated(text, frozenset((variables or {}).items()))
    if problems:
        raise DefinitionError(f"{what}: {problem_summary(problems)}")
    return definition


# Cached because most definitions are stored again unchanged, and validating a large one is slow.
@functools.lru_cache(maxsize=16)
def _validated(text: str, variables: frozenset[tuple[str, str]]) -> tuple[str, list[Problem]]:
    # Imported on use: most processes never store or run a machine.
    from headgate.asl.compile.validator import problems
    from headgate.asl.documents.definition_text import read_definition

    definition = read_definition(text, dict(variables))
    return msgspec.json.encode(definition).decode(), problems(definition)


def problem_summary(problems: list[Problem]) -> str:
    """Return problems as one text, each with its path."""
    lines = [
        f"{each.path}: {each.fact}; {each.allowed}" if each.allowed else f"{each.path}: {each.fact}"
        for each in problems
    ]
    rest = len(lines) - _PROBLEMS_MAX
    return "; ".join([*lines[:_PROBLEMS_MAX], *([f"and {rest} more"] if rest > 0 else [])])


class MachineRegistry:
    """The machines in a store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._cache: dict[tuple[str, int], str] = {}

    def put(
        self,
        name: str,
        text: str,
        *,
        variables: dict[str, str] | None = None,
        created_by: str = "",
        expected_version: int | None = None,
        is_internal: bool = False,
    ) -> StoredMachine:
        """Store a definition as the newest version of a machine. An unchanged definition makes no new version.

        Only an internal caller may store a built-in machine. Raises `DefinitionError`, `InvalidIdError`, and
        `VersionConflictError` if the newest version is not `expected_version` (0: there must be none).
        """
        check_machine_name(name)
        if not is_internal:
            check_not_built_in(name)
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
            machine = StoredMachine(
                name, version + 1, definition, digest, instant(int(self._clock.seconds() * 1000)), created_by, comment
            )
            try:
                self._store.transact(
                    [
                        Put(DEFINITIONS, _item(machine, LATEST), absent() if version == 0 else version_is(version)),
                        Put(DEFINITIONS, _item(machine, _sort(machine.version)), absent()),
                    ]
                )
            except ConflictError:
                continue  # A concurrent put won: read the newest version again.
            return machine

    def find(self, name: str, version: int | None = None) -> StoredMachine | None:
        """Return a version of a machine, or its newest."""
        sort = LATEST if version is None else _sort(version)
        item = self._store.get(DEFINITIONS, Key(_partition(name), sort), consistent=True)
        return None if item is None else _machine(item)

    def get(self, name: str, version: int | None = None) -> StoredMachine:
        """Return a version of a machine, or its newest. Raises `NotFoundError`."""
        machine = self.find(name, version)
        if machine is None:
            suffix = "" if version is None else f" version {version}"
            raise NotFoundError(f"machine {name}{suffix}: there is none; 'headgate asl ls' lists them")
        return machine

    def definition(self, name: str, version: int) -> str:
        """Return the definition of a version. It never changes and is cached. Raises `NotFoundError`."""
        definition = self._cache.get((name, version))
        if definition is None:
            definition = self.get(name, version).definition
            if len(self._cache) >= _CACHED_MAX:
                self._cache.clear()
            self._cache[name, version] = definition
        return definition

    def ls(self, *, limit: int = 100, cursor: str | None = None) -> MachineList:
        """List the newest version of each machine, by name. Raises `CursorError`."""
        query = Query(table=DEFINITIONS, index="kind-index", partition=KIND, limit=limit, cursor=cursor)
        page = self._store.query(query)
        return MachineList([_machine(item) for item in page.items], page.cursor)

    def versions(self, name: str, *, limit: int = 100, cursor: str | None = None) -> MachineList:
        """List the versions of a machine, newest first. Raises `CursorError`."""
        page = self._store.query(
            Query(
                table=DEFINITIONS,
                partition=_partition(name),
                sort=Sort(Range.BEGINS_WITH, "v"),
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
