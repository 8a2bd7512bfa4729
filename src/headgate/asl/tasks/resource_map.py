"""Resource map: what a project's file puts in the place of the resources that Tasks name.

An entry names a resource by its text, by a pattern with `*`, or by the name of an integration such as
`glue:startJobRun`, and optionally the parameters of the call. It replaces it by a function of the app, an HTTP call, a
command, a fan-out, or a recorded answer. The first entry that matches decides.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from headgate.asl.errors import StateError
from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.mock_config import MockConfig
from headgate.asl.tasks.resources import WaitMode
from headgate.durable.model.duration import Seconds
from headgate.durable.model.names import is_built_in
from headgate.errors import DefinitionError

_INTEGRATION: Final = re.compile(r"arn:aws[a-z-]*:states:::")
_WAITS: Final = tuple(sorted((wait.value for wait in WaitMode if wait.value), key=len, reverse=True))
TARGETS: Final = ("function", "http", "command", "fanout", "answer", "error")


class HttpTarget(Struct, frozen=True, forbid_unknown_fields=True):
    """An HTTP call. The input of the Task is its JSON body, and the JSON of the response the result."""

    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    timeout: Seconds = Seconds(30)


class CommandTarget(Struct, frozen=True, forbid_unknown_fields=True):
    """A program and its arguments, run without a shell, with the options of a `command` trigger."""

    run: str | list[str]
    folder: str | None = None
    environment: dict[str, str] = {}
    inherit: list[str] = []
    timeout: Seconds = Seconds(3_600)
    grace: Seconds = Seconds(5)
    memory_max: int | str | None = None


class FanoutTarget(Struct, frozen=True, forbid_unknown_fields=True):
    """A fan-out: its handler, where its items are in the input of the Task, and how it is split."""

    # As in `fanout:module.function`.
    handler: str
    # JSONPath to the items.
    items: str = "$"
    chunk_size: int | None = None
    each: bool = True
    collect: bool = False


class MappedResource(Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of a resource map. It has one of the `TARGETS`."""

    resource: str
    # Parameters that the call must have; texts may have `*`.
    parameters: dict[str, Json] = {}
    function: str | None = None
    http: HttpTarget | str | None = None
    command: CommandTarget | list[str] | str | None = None
    fanout: FanoutTarget | str | None = None
    answer: Json | UnsetType = UNSET
    error: str | None = None
    # Of `error`.
    cause: str = ""

    def __post_init__(self) -> None:
        # A recorded answer may be null.
        given = [name for name in TARGETS if getattr(self, name) is not (UNSET if name == "answer" else None)]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"an entry has one of {', '.join(TARGETS)}; this one has {found}")
        if not self.resource.strip():
            raise ValueError("resource: it is empty; write the Resource of a Task, or a pattern with *")
        if self.cause and self.error is None:
            raise ValueError(f"cause: only for an entry with error; this one has {given[0]}")
        http, command = self.http_target, self.command_target
        if http is not None and not http.url.startswith(("https://", "http://")):
            raise ValueError(f"http {http.url[:80]!r}: write an address that begins with https:// or http://")
        if command is not None and not command.run:
            raise ValueError("command: it is empty; name a program")
        if self.function is not None and is_built_in(self.function):
            raise ValueError(f"function {self.function[:80]!r}: functions of Headgate itself cannot be named")

    @property
    def http_target(self) -> HttpTarget | None:
        """The HTTP call, also if only its URL is given."""
        return HttpTarget(self.http) if isinstance(self.http, str) else self.http

    @property
    def command_target(self) -> CommandTarget | None:
        """The command, also if only its arguments are given."""
        return CommandTarget(self.command) if isinstance(self.command, str | list) else self.command

    @property
    def fanout_target(self) -> FanoutTarget | None:
        """The fan-out, also if only its handler is given."""
        return FanoutTarget(self.fanout) if isinstance(self.fanout, str) else self.fanout

    @property
    def is_recorded(self) -> bool:
        """Whether it is a recorded answer or error: nothing is called."""
        return self.answer is not UNSET or self.error is not None

    def recorded(self) -> Json:
        """Return the recorded answer. Raises `StateError` if it is an error."""
        if self.error is not None:
            raise StateError(self.error, self.cause)
        return None if self.answer is UNSET else self.answer

    def fits(self, resource: str, parameters: Json) -> bool:
        """Whether it replaces a call of a resource with these parameters."""
        return self._names(resource) and (not self.parameters or _is_part(self.parameters, parameters))

    def may_fit(self, resource: str, constants: Mapping[str, Json]) -> bool:
        """Whether it may replace a call of which only some parameters are known before it runs."""
        known = {name: value for name, value in self.parameters.items() if name in constants}
        return self._names(resource) and _is_part(known, constants)

    def _names(self, resource: str) -> bool:
        pattern = _compiled(self.resource)
        return any(pattern.fullmatch(name) for name in _names_of(resource))


class ResourceMap(Struct, frozen=True):
    """The entries of a file in their order, and its mocked test cases."""

    entries: tuple[MappedResource, ...] = ()
    mocks: MockConfig = MockConfig()
    # The file, for messages.
    source: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.entries and not self.mocks.cases

    def find(self, resource: str, parameters: Json) -> MappedResource | None:
        """Return the entry that replaces a call, if any."""
        return next((each for each in self.entries if each.fits(resource, parameters)), None)

    def may_have(self, resource: str, constants: Mapping[str, Json]) -> bool:
        """Whether an entry may replace a call of which only some parameters are known before it runs."""
        return any(each.may_fit(resource, constants) for each in self.entries)

    def check_functions(self, known: set[str]) -> None:
        """Raise `DefinitionError` for a function that the app does not have."""
        for each in self.entries:
            if each.function is not None and each.function not in known:
                there = ", ".join(sorted(name for name in known if not is_built_in(name))) or "none"
                raise DefinitionError(
                    f"{self.source}: resource {each.resource!r}: no worker has the function {each.function}; register "
                    f"it with @app.activity; there is {there}"
                )


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


@functools.lru_cache(maxsize=1024)
def _names_of(resource: str) -> tuple[str, ...]:
    """Return a resource as written and as an integration, each also without its suffix."""
    names = (resource, _INTEGRATION.sub("", resource, count=1))
    plain = (next((name.removesuffix(wait) for wait in _WAITS if name.endswith(wait)), name) for name in names)
    return tuple(dict.fromkeys((*names, *plain)))


def _is_part(expected: Json, found: Json) -> bool:
    """Whether every member of `expected` is in `found`; a text may have `*`."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            name in found and _is_part(value, found[name]) for name, value in expected.items()
        )
    if isinstance(expected, str):
        return isinstance(found, str) and _compiled(expected).fullmatch(found) is not None
    return type(expected) is type(found) and bool(expected == found)
