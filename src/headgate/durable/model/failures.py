"""Failures of user code as data: described where they happen, and raised again where they matter.

Failure                 an error that happened elsewhere; `.type`, `.message` and `.data` say what it was
├── ActivityFailure         an activity failed for good
│   └── ActivityTimeout         … because it took too long; also a TimeoutError
├── ChildFailure            a child execution did not succeed
└── ExecutionFailure        the execution whose result was asked for did not succeed
    └── UpdateFailure           … or goes on, and has refused an update
NonRetryable            raised by user code: there is no point in another attempt
Cancelled               raised in an activity by its heartbeat: nobody waits for the result any more

None of them is a HeadgateError: they pass on what user code did.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from types import MemberDescriptorType
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import force_setattr

from headgate.durable.model import payload
from headgate.errors import WorkflowViolationError

MESSAGE_BYTES_MAX: Final = 8_192
TRACE_BYTES_MAX: Final = 4_096
DATA_BYTES_MAX: Final = 65_536
# A cause is told in less room, so that the whole chain stays well below the size of an item.
CAUSE_DATA_BYTES_MAX: Final = 4_096
CHAIN_MAX: Final = 10

NOTHING: Final = msgspec.Raw()

_TRACE_FRAMES: Final = 25
# How much of the members of a group its message tells.
_GROUPS_MAX, _MEMBERS_MAX, _MEMBER_MAX = 3, 5, 500
_HEAP_TYPE: Final = 1 << 9
# Raised into a coroutine, the first two would end it or be replaced; a group cannot be made without its members; and
# the others trust the interpreter to have checked the types of their attributes, which only their `__init__` does.
_NOT_REVIVED: Final = (
    # In a workflow it would say that the workflow itself did wrong.
    WorkflowViolationError,
    *(StopIteration, StopAsyncIteration, BaseExceptionGroup),
    *(UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError),
)
_ROOTS: Final = (Exception, BaseException, object)

# Taken from the root, because a class may put something of its own in their place.
_ARGS: Final = vars(BaseException)["args"]
_CAUSE: Final = vars(BaseException)["__cause__"]
_CONTEXT: Final = vars(BaseException)["__context__"]
_SUPPRESS_CONTEXT: Final = vars(BaseException)["__suppress_context__"]
_TRACEBACK: Final = vars(BaseException)["__traceback__"]

_T = TypeVar("_T")

# Histories hold the modules of error classes. A module that moves keeps the name that it was first recorded under, so
# that old histories still replay and a worker of the previous release understands what a newer one writes.
_RECORDED_AS: Final = {
    "headgate.asl.errors": "headgate.asl.failures",
    "headgate.asl.expressions.payload_templates": "headgate.asl.templates",
    "headgate.asl.runtime.execution_request": "headgate.asl.requests",
    "headgate.durable.http.messages": "headgate.durable.http_messages",
    "headgate.durable.model.failures": "headgate.durable.failures",
    "headgate.fanout.hg_map": "headgate.fanout.mapping",
    "headgate.pipelines.definition.problems": "headgate.pipelines.problems",
}
_MODULE_OF: Final = {recorded: module for module, recorded in _RECORDED_AS.items()}


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it is kept and sent: enough to tell a person, and to make the error again."""

    type: str
    """The bare name of the class."""
    message: str
    module: str = ""
    qualname: str = ""
    data: msgspec.Raw = NOTHING
    """The attributes that have a JSON form, as an object; empty: none."""
    args: msgspec.Raw = NOTHING
    """The arguments of the exception as a list; what has no JSON form is there as text. Empty: none."""
    cause: ErrorInfo | None = None
    trace: str = ""
    """The last lines of the traceback."""
    retryable: bool = True
    bases: tuple[str, ...] = ()
    """The classes it derives from, the nearest first, without `Exception` and above."""

    def __post_init__(self) -> None:
        # The encoder leaves a default out only if it is the very same object; an empty `Raw` is not JSON.
        if not len(self.data):
            force_setattr(self, "data", NOTHING)
        if not len(self.args):
            force_setattr(self, "args", NOTHING)

    def class_names(self) -> tuple[str, ...]:
        """Return the names of its class and of the classes that one derives from, as `class_name` gives them."""
        own = f"{self.module}.{self.qualname}" if self.module and self.qualname else self.type
        return own, *self.bases

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class Failure(Exception):
    """An error that happened elsewhere, and that cannot be raised here as what it was."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info)
        self.info = info

    @property
    def type(self) -> str:
        """The bare name of the class of the error."""
        return self.info.type

    @property
    def message(self) -> str:
        return self.info.message

    @property
    def data(self) -> Any:  # noqa: ANN401 - whatever the error carried
        """The attributes of the error by name, or, if `data` is the only one, what that one holds. None: none."""
        if not len(self.info.data):
            return None
        attributes = payload.decode(self.info.data, Any, what="error data")
        return attributes["data"] if isinstance(attributes, dict) and list(attributes) == ["data"] else attributes

    def __str__(self) -> str:
        return str(self.info)


class ActivityFailure(Failure):
    """An activity failed, and there is no further attempt."""

    def __init__(self, info: ErrorInfo, *, activity: str = "", attempts: int = 1) -> None:
        super().__init__(info)
        self.activity = activity
        self.attempts = attempts

    def __str__(self) -> str:
        return f"activity {self.activity!r} failed after {_counted(self.attempts)}: {self.info}"


class ActivityTimeout(ActivityFailure, TimeoutError):
    """An activity took too long, and there is no further attempt.

    `kind` is the limit that was passed: start_to_close, schedule_to_start, schedule_to_close or heartbeat.
    """

    def __init__(self, info: ErrorInfo, *, activity: str = "", attempts: int = 1, kind: str = "start_to_close") -> None:
        super().__init__(info, activity=activity, attempts=attempts)
        self.kind = kind

    def __str__(self) -> str:
        message = f": {self.info.message}" if self.info.message else ""
        return f"activity {self.activity!r} timed out ({self.kind}) after {_counted(self.attempts)}{message}"


class _OfExecution(Failure):
    noun = "execution"

    def __init__(self, info: ErrorInfo, *, execution_id: str = "", status: str = "FAILED") -> None:
        super().__init__(info)
        self.execution_id = execution_id
        self.status = str(status)

    def __str__(self) -> str:
        return f"{self.noun} {self.execution_id!r} ended {self.status}: {self.info}"


class ChildFailure(_OfExecution):
    """A child execution ended without a result; `status` says how."""

    noun = "child execution"


class ExecutionFailure(_OfExecution):
    """The execution whose result was asked for ended without one; `status` says how."""


class UpdateFailure(ExecutionFailure):
    """An update was refused, or its handler failed. The execution goes on; `is_refused` says that nothing changed."""

    def __init__(
        self,
        info: ErrorInfo,
        *,
        execution_id: str = "",
        status: str = "RUNNING",
        update: str = "",
        is_refused: bool = False,
    ) -> None:
        super().__init__(info, execution_id=execution_id, status=status)
        self.update = update
        self.is_refused = is_refused

    def __str__(self) -> str:
        verdict = "was refused" if self.is_refused else "failed"
        return f"execution {self.execution_id!r}: update {self.update!r} {verdict}: {self.info}"


class NonRetryable(Exception):
    """Raise it where another attempt is pointless; `data` reaches whoever catches it."""

    def __init__(self, message: str = "", *, data: object = None) -> None:
        super().__init__(message)
        self.data = data


class Cancelled(Exception):
    """Raised in an activity by its heartbeat: it was cancelled. Clean up, and let it pass."""

    def __init__(self, message: str = "the activity was cancelled") -> None:
        super().__init__(message)


_F = TypeVar("_F", bound=Failure)


def describe(error: BaseException) -> ErrorInfo:
    """Return an error, and what caused it, as data. Never raises, whatever the error's own methods do."""
    chain: list[ErrorInfo] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(chain) < CHAIN_MAX:
        seen.add(id(link))
        chain.append(_described(link, CAUSE_DATA_BYTES_MAX if chain else DATA_BYTES_MAX))
        if _is_failure(link):
            # The error that it passes on is its cause, and has been described before.
            chain += _links(vars(link).get("info"))
            break
        link = _cause(link)
    info: ErrorInfo | None = None
    for each in reversed(chain[:CHAIN_MAX]):
        info = msgspec.structs.replace(each, cause=info)
    assert info is not None
    return info


def revive(info: ErrorInfo, *, otherwise: type[Failure], **facts: Any) -> BaseException:  # noqa: ANN401
    """Return an exception to raise for a described error: of its own class if that is loaded here.

    It is made without running the class's `__init__`, and nothing is imported. Its `__cause__` is an `otherwise`
    with the `facts` (which is returned itself if the class cannot be had), and the cause of that is what
    caused the error.
    """
    failure = with_cause(otherwise(info, **facts))
    revived = _remade(info)
    if revived is None:
        return failure
    revived.__cause__ = failure
    return revived


def with_cause(failure: _F) -> _F:
    """Return a failure with what caused the error that it passes on, as exceptions that tracebacks show."""
    failure.__cause__ = _revived_cause(failure.info)
    return failure


def class_name(kind: type) -> str:
    """Return `module.Qualname` as histories record it; of a built-in class the bare name."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{recorded_module(kind)}.{kind.__qualname__}"


def recorded_module(kind: type) -> str:
    """Return the module under which histories record a class: the first one that it had."""
    return _RECORDED_AS.get(kind.__module__, kind.__module__)


def _counted(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def _attempted(action: Callable[[], _T], fallback: _T) -> _T:
    """Return what `action` returns, or `fallback` if it raises anything.

    It runs methods of a class we know nothing of, while an error is being reported that must not be lost.
    """
    try:
        return action()
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - user code may raise anything, SystemExit included
        return fallback


def _described(error: BaseException, room_bytes: int) -> ErrorInfo:
    kind = type(error)
    name = _attempted(lambda: _text(kind.__name__, 200), "Exception")
    message = _attempted(lambda: _text(_message(error, 0), MESSAGE_BYTES_MAX), f"<{name} cannot be shown as text>")
    return ErrorInfo(
        type=name,
        message=message,
        module=_attempted(lambda: _text(recorded_module(kind), 500), ""),
        qualname=_attempted(lambda: _text(kind.__qualname__, 500), ""),
        data=_attempted(lambda: _data(error, room_bytes), NOTHING),
        args=_attempted(lambda: _args(error, message, room_bytes), NOTHING),
        trace=_attempted(lambda: _trace(error), ""),
        retryable=_attempted(lambda: not _is_final(error), True),  # noqa: FBT003 - the fallback, not a flag
        bases=_attempted(lambda: _base_names(kind), ()),
    )


def _message(error: BaseException, depth: int) -> str:
    """Return the text of an error, of a group with that of its members: what went wrong is not in its own."""
    text = _attempted(lambda: str(error), "<cannot be shown as text>") if depth else str(error)
    if not issubclass(type(error), BaseExceptionGroup) or depth == _GROUPS_MAX:
        return text
    members: tuple[BaseException, ...] = BaseExceptionGroup.exceptions.__get__(error)
    told = [f"{type(each).__name__}: {_message(each, depth + 1)[:_MEMBER_MAX]}" for each in members[:_MEMBERS_MAX]]
    told += [f"and {len(members) - _MEMBERS_MAX} more"] if len(members) > _MEMBERS_MAX else []
    return f"{text}: {'; '.join(told)}"


def _base_names(kind: type) -> tuple[str, ...]:
    return tuple(_text(class_name(base), 500) for base in kind.__mro__[1:] if base not in _ROOTS)[:CHAIN_MAX]


def _text(given: str, bytes_max: int) -> str:
    """Return text that fits and has a JSON form."""
    data = str.encode(given, errors="backslashreplace")
    if len(data) <= bytes_max:
        return data.decode()
    return data[: bytes_max - 3].decode(errors="ignore") + "…"


def _data(error: BaseException, room_bytes: int) -> msgspec.Raw:
    """Return the attributes that have a JSON form, as long as there is room for them."""
    kept: dict[str, msgspec.Raw] = {}
    for name, value in _attributes(error).items():
        written = _written(value)
        size = len(written) + len(name) + 4
        if len(written) and size <= room_bytes:
            kept[name] = written
            room_bytes -= size
    return payload.encode(kept, what="attributes") if kept else NOTHING


def _attributes(error: BaseException) -> dict[str, object]:
    outside = {name: member.__get__(error) for name, member in _members(type(error)).items() if hasattr(error, name)}
    attributes = {name: value for name, value in outside.items() if value is not None}
    attributes |= {str(name): value for name, value in error.__dict__.items()}
    if _is_failure(error):
        del attributes["info"]
    return attributes


def _args(error: BaseException, message: str, room_bytes: int) -> msgspec.Raw:
    args = () if _is_failure(error) else _ARGS.__get__(error)
    written = [found if len(found := _written(value)) else _shown(value) for value in args]
    if sum(map(len, written)) > room_bytes:
        return payload.encode([message], what="arguments")
    return payload.encode(written, what="arguments") if written else NOTHING


def _written(value: object) -> msgspec.Raw:
    """Return the JSON form of a value; empty: it has none."""
    return _attempted(lambda: payload.encode(value, what="value"), NOTHING)


def _shown(value: object) -> msgspec.Raw:
    text = _attempted(lambda: _text(repr(value), 500), "<cannot be shown as text>")
    return payload.encode(text, what="argument")


def _trace(error: BaseException) -> str:
    lines = traceback.format_tb(_TRACEBACK.__get__(error), limit=-_TRACE_FRAMES)
    whole = _text("".join(lines), sys.maxsize).encode()
    if len(whole) <= TRACE_BYTES_MAX:
        return whole.decode()
    # The end matters most; it starts at a line.
    return whole[-TRACE_BYTES_MAX:].partition(b"\n")[2].decode(errors="ignore")


def _is_failure(error: BaseException) -> bool:
    # Not `isinstance`, which asks the error for its `__class__`.
    return issubclass(type(error), Failure)


def _is_final(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(NonRetryable) is not None
    return isinstance(error, NonRetryable)


def _cause(error: BaseException) -> BaseException | None:
    """Return what caused an error; of a group without a cause, its first member."""
    cause: BaseException | None = _CAUSE.__get__(error)
    if cause is None and issubclass(type(error), BaseExceptionGroup):
        cause = _attempted(lambda: BaseExceptionGroup.exceptions.__get__(error)[0], None)
    if cause is None and not _SUPPRESS_CONTEXT.__get__(error):
        cause = _CONTEXT.__get__(error)
    return cause


def _links(info: object) -> list[ErrorInfo]:
    links: list[ErrorInfo] = []
    while isinstance(info, ErrorInfo) and len(links) < CHAIN_MAX:
        links.append(info)
        info = info.cause
    return links


def _revived_cause(info: ErrorInfo) -> BaseException | None:
    """Return the cause of an error as exceptions, each the cause of the one before it."""
    if info.cause is None:
        return None
    error = _remade(info.cause) or Failure(info.cause)
    error.__cause__ = _revived_cause(info.cause)
    return error


def _remade(info: ErrorInfo) -> Exception | None:
    """Return an exception of the class that is described; None: it is not loaded, or cannot be made."""
    kind = _loaded_class(info)
    made = None if kind is None else _attempted(lambda: _made(kind, info), None)
    # One that cannot be shown lacks something that it needs, and would break whoever reports it.
    return None if made is None or _attempted(lambda: str(made), None) is None else made


def _loaded_class(info: ErrorInfo) -> type[Exception] | None:
    found: object = sys.modules.get(_MODULE_OF.get(info.module, info.module))
    for part in info.qualname.split("."):
        # Not `getattr`, which a module may answer by importing something.
        found = getattr(found, "__dict__", {}).get(part)
    if not isinstance(found, type) or not issubclass(found, Exception) or issubclass(found, _NOT_REVIVED):
        return None
    return found


def _made(kind: type[Exception], info: ErrorInfo) -> Exception:
    data: dict[str, Any] = payload.decode(info.data, dict[str, Any], what="error data") if len(info.data) else {}
    args: list[Any] = payload.decode(info.args, list[Any], what="error arguments") if len(info.args) else []
    if issubclass(kind, Failure):
        data["info"] = info.cause or info
        args = [data["info"]]
    # The nearest built-in class allocates it, so that no code of the class runs.
    builtin: Any = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    made: Exception = builtin.__new__(kind, *args)
    made.args = tuple(args)
    members = _members(kind)
    for name, value in data.items():
        if name in members:
            members[name].__set__(made, value)
        else:
            made.__dict__[name] = value
    return made


def _members(kind: type) -> Mapping[str, MemberDescriptorType]:
    """Return the attributes that an error class keeps outside `__dict__`, such as `OSError.errno` or slots."""
    return {
        name: member
        for base in reversed(kind.__mro__)
        if base not in _ROOTS
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    }
