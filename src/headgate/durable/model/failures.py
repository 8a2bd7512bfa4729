"""Failures: errors of user code as data, described where they are raised and raised again where they are awaited.

Failure                 an error from another process or place; has `.type`, `.message` and `.data`
├── ActivityFailure         an activity failed, without another attempt
│   └── ActivityTimeout         … because it took too long; also a TimeoutError
├── ChildFailure            a child execution did not succeed
└── ExecutionFailure        the awaited execution did not succeed
    └── UpdateFailure           … or continues, and has rejected an update
NonRetryable            raised by user code: the error is permanent
Cancelled               raised in an activity by its heartbeat: the activity was cancelled

None of them is a HeadgateError: they pass on errors of user code.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import force_setattr

from headgate.durable.model import payload
from headgate.errors import WorkflowViolationError

MESSAGE_BYTES_MAX: Final = 8_192
TRACE_BYTES_MAX: Final = 8_192
DATA_BYTES_MAX: Final = 65_536
# A cause has a smaller limit, so that the whole chain stays well below the size of an item.
CAUSE_DATA_BYTES_MAX: Final = 4_096
CHAIN_MAX: Final = 10

NOTHING: Final = msgspec.Raw()

_TRACE_FRAMES: Final = 25
# How much of the members of a group its message includes.
_GROUPS_MAX, _MEMBERS_MAX, _MEMBER_MAX = 3, 5, 500
_HEAP_TYPE: Final = 1 << 9
# Raised into a coroutine, the first two would end it or be replaced; a group cannot be created without its members; and
# the others rely on type checks of their attributes that only their `__init__` makes.
_NOT_REVIVED: Final = (
    # In a workflow it would mean that the workflow itself violated a rule.
    WorkflowViolationError,
    *(StopIteration, StopAsyncIteration, BaseExceptionGroup),
    *(UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError),
)
_ROOTS: Final = (Exception, BaseException, object)

# Read from the root class, because a subclass may override them.
_ARGS: Final = vars(BaseException)["args"]
_CAUSE: Final = vars(BaseException)["__cause__"]
_CONTEXT: Final = vars(BaseException)["__context__"]
_SUPPRESS_CONTEXT: Final = vars(BaseException)["__suppress_context__"]
_TRACEBACK: Final = vars(BaseException)["__traceback__"]

_T = TypeVar("_T")

# Histories record the modules of error classes. A module that moves keeps its first recorded name, so that old
# histories still replay and a worker of the previous release understands those of a newer one.
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
    """An error as stored and sent: enough to display it and to raise it again."""

    type: str
    """The bare name of the class."""
    message: str
    module: str = ""
    qualname: str = ""
    data: msgspec.Raw = NOTHING
    """The attributes with a JSON form, as an object; empty if there are none."""
    args: msgspec.Raw = NOTHING
    """The arguments of the exception as a list, as text where they have no JSON form; empty if there are none."""
    cause: ErrorInfo | None = None
    trace: str = ""
    """The last lines of the traceback."""
    retryable: bool = True
    bases: tuple[str, ...] = ()
    """Its base classes, the nearest first, without `Exception` and above."""

    def __post_init__(self) -> None:
        # The encoder omits a default only if it is the same object; an empty `Raw` is not JSON.
        if not len(self.data):
            force_setattr(self, "data", NOTHING)
        if not len(self.args):
            force_setattr(self, "args", NOTHING)

    def class_names(self) -> tuple[str, ...]:
        """Return the names of its class and of the base classes, in the form of `class_name`."""
        own = f"{self.module}.{self.qualname}" if self.module and self.qualname else self.type
        return own, *self.bases

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class Failure(Exception):
    """An error from another process or place that cannot be raised here as its own class."""

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
    def data(self) -> Any:  # noqa: ANN401 - any data of the error
        """The attributes of the error by name, or the value of `data` if it is the only one. None if there is none."""
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
    """A child execution ended with this `status` and no result."""

    noun = "child execution"


class ExecutionFailure(_OfExecution):
    """The awaited execution ended with this `status` and no result."""


class UpdateFailure(ExecutionFailure):
    """An update was rejected (`is_refused`: nothing changed), or its handler failed. The execution continues."""

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
    """Raised by user code for a permanent error: there is no retry. `data` reaches the code that catches it."""

    def __init__(self, message: str = "", *, data: object = None) -> None:
        super().__init__(message)
        self.data = data


class Cancelled(Exception):
    """Raised in an activity by its heartbeat once it was cancelled. Clean up, and let it propagate."""

    def __init__(self, message: str = "the activity was cancelled") -> None:
        super().__init__(message)


_F = TypeVar("_F", bound=Failure)
# The end of an activity that was cancelled and did not end itself.
CANCELLED: Final = ErrorInfo(type="Cancelled", message="the activity was cancelled")


def describe(error: BaseException) -> ErrorInfo:
    """Return an error and its causes as data. Never raises, whatever the error's own methods do."""
    chain: list[ErrorInfo] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(chain) < CHAIN_MAX:
        seen.add(id(link))
        chain.append(_described(link, CAUSE_DATA_BYTES_MAX if chain else DATA_BYTES_MAX))
        if _is_failure(link):
            # The error that it passes on is its cause, and is described already.
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

    It is created without running the class's `__init__`, and nothing is imported. Its `__cause__` is an `otherwise`
    with the `facts`, whose cause is the cause of the error. Without the class, that `otherwise` is returned.
    """
    failure = with_cause(otherwise(info, **facts))
    revived = _remade(info)
    if revived is None:
        return failure
    revived.__cause__ = failure
    return revived


def with_cause(failure: _F) -> _F:
    """Return a failure with the causes of its error as exceptions, which tracebacks show."""
    failure.__cause__ = _revived_cause(failure.info)
    return failure


def class_name(kind: type) -> str:
    """Return `module.Qualname` as histories record it; for a built-in class the bare name."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{recorded_module(kind)}.{kind.__qualname__}"


def is_cancellation(error: ErrorInfo) -> bool:
    """Whether an attempt ended by its cancellation. A client reports it by the bare name of the class."""
    return not _cancellations().isdisjoint(error.class_names())


@lru_cache(maxsize=1)
def _cancellations() -> frozenset[str]:
    kinds = (Cancelled, asyncio.CancelledError)
    return frozenset({*(class_name(each) for each in kinds), *(each.__name__ for each in kinds)})


def recorded_module(kind: type) -> str:
    """Return the module under which histories record a class: the first one that it had."""
    return _RECORDED_AS.get(kind.__module__, kind.__module__)


def _counted(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def _attempted(action: Callable[[], _T], fallback: _T) -> _T:
    """Return the result of `action`, or `fallback` if it raises anything.

    It calls methods of unknown classes while an error is reported, and that error must not be lost.
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
    """Return the text of an error; a group includes the texts of its members."""
    text = _attempted(lambda: str(error), "<cannot be shown as text>") if depth else str(error)
    if not issubclass(type(error), BaseExceptionGroup) or depth == _GROUPS_MAX:
        return text
    members: tuple[BaseException, ...] = BaseExceptionGroup.exceptions.__get__(error)
    texts = [f"{type(each).__name__}: {_message(each, depth + 1)[:_MEMBER_MAX]}" for each in members[:_MEMBERS_MAX]]
    texts += [f"and {len(members) - _MEMBERS_MAX} more"] if len(members) > _MEMBERS_MAX else []
    return f"{text}: {'; '.join(texts)}"


def _base_names(kind: type) -> tuple[str, ...]:
    return tuple(_text(class_name(base), 500) for base in kind.__mro__[1:] if base not in _ROOTS)[:CHAIN_MAX]


def _text(value: str, bytes_max: int) -> str:
    """Return text that fits and has a JSON form."""
    data = str.encode(value, errors="backslashreplace")
    if len(data) <= bytes_max:
        return data.decode()
    return data[: bytes_max - 3].decode(errors="ignore") + "…"


def _data(error: BaseException, room_bytes: int) -> msgspec.Raw:
    """Return the attributes that have a JSON form, while there is room for them."""
    attributes: dict[str, msgspec.Raw] = {}
    for name, value in _attributes(error).items():
        written = _written(value)
        size = len(written) + len(name) + 4
        if len(written) and size <= room_bytes:
            attributes[name] = written
            room_bytes -= size
    return payload.encode(attributes, what="attributes") if attributes else NOTHING


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
    """Return the JSON form of a value; empty if it has none."""
    return _attempted(lambda: payload.encode(value, what="value"), NOTHING)


def _shown(value: object) -> msgspec.Raw:
    text = _attempted(lambda: _text(repr(value), 500), "<cannot be shown as text>")
    return payload.encode(text, what="argument")


def _trace(error: BaseException) -> str:
    lines = traceback.format_tb(_TRACEBACK.__get__(error), limit=-_TRACE_FRAMES)
    whole = _text("".join(lines), sys.maxsize).encode()
    if len(whole) <= TRACE_BYTES_MAX:
        return whole.decode()
    # Keep the end of the trace, from the start of a line.
    return whole[-TRACE_BYTES_MAX:].partition(b"\n")[2].decode(errors="ignore")


def _is_failure(error: BaseException) -> bool:
    # Not `isinstance`, which reads the error's own `__class__`.
    return issubclass(type(error), Failure)


def _is_final(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(NonRetryable) is not None
    return isinstance(error, NonRetryable)


def _cause(error: BaseException) -> BaseException | None:
    """Return the cause of an error; for a group without a cause, its first member."""
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
    """Return the cause of an error as a chain of exceptions."""
    if info.cause is None:
        return None
    error = _remade(info.cause) or Failure(info.cause)
    error.__cause__ = _revived_cause(info.cause)
    return error


def _remade(info: ErrorInfo) -> Exception | None:
    """Return an exception of the described class; None if the class is not loaded or cannot be instantiated."""
    kind = _loaded_class(info)
    error = None if kind is None else _attempted(lambda: _instance(kind, info), None)
    # One without a text lacks a field that it needs, and would raise again in every error report.
    return None if error is None or _attempted(lambda: str(error), None) is None else error


def _loaded_class(info: ErrorInfo) -> type[Exception] | None:
    member: object = sys.modules.get(_MODULE_OF.get(info.module, info.module))
    for part in info.qualname.split("."):
        # Not `getattr`, which may import something in a module.
        member = getattr(member, "__dict__", {}).get(part)
    if not isinstance(member, type) or not issubclass(member, Exception) or issubclass(member, _NOT_REVIVED):
        return None
    return member


def _instance(kind: type[Exception], info: ErrorInfo) -> Exception:
    data: dict[str, Any] = payload.decode(info.data, dict[str, Any], what="error data") if len(info.data) else {}
    args: list[Any] = payload.decode(info.args, list[Any], what="error arguments") if len(info.args) else []
    if issubclass(kind, Failure):
        data["info"] = info.cause or info
        args = [data["info"]]
    # The nearest built-in base allocates it, so that no code of the class runs.
    builtin: Any = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    error: Exception = builtin.__new__(kind, *args)
    error.args = tuple(args)
    members = _members(kind)
    for name, value in data.items():
        if name in members:
            members[name].__set__(error, value)
        else:
            error.__dict__[name] = value
    return error


def _members(kind: type) -> Mapping[str, MemberDescriptorType]:
    """Return the attributes of an error class outside `__dict__`, such as `OSError.errno` or slots."""
    return {
        name: member
        for base in reversed(kind.__mro__)
        if base not in _ROOTS
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    }
