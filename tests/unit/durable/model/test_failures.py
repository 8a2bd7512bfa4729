"""Failures of user code as data, and raised again from it."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.durable.model.failures import (
    CHAIN_MAX,
    DATA_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    TRACE_BYTES_MAX,
    ActivityFailure,
    ActivityTimeout,
    Cancelled,
    ChildFailure,
    ErrorInfo,
    ExecutionFailure,
    Failure,
    NonRetryable,
    describe,
    revive,
)
from headgate.errors import HeadgateError

FACTS: dict[str, Any] = {"activity": "charge", "attempts": 3}


class CardDeclined(Exception):
    """An error whose `__init__` would do harm if it ran again."""

    made = 0

    def __init__(self, code: int, gateway: object) -> None:
        super().__init__(f"declined with code {code}")
        self.code = code
        self.gateway = gateway
        CardDeclined.made += 1

    @property
    def is_final(self) -> bool:
        return self.code > 100

    class Stolen(Exception):
        """A class inside a class."""


class Slotted(Exception):
    __slots__ = ("code", "unset")

    def __init__(self, code: int) -> None:
        self.code = code


class NeedsHelp(Exception):
    def __init__(self, helper: object) -> None:
        super().__init__("x")
        self.helper = helper

    def __str__(self) -> str:
        return f"help from {self.helper.name}"  # type: ignore[attr-defined]


class OwnNew(Exception):
    made = 0

    def __new__(cls, *args: object) -> OwnNew:
        cls.made += 1
        return super().__new__(cls, *args)


class Refused(OSError):
    def __init__(self, where: str) -> None:
        super().__init__(111, "refused")
        self.where = where


class OtherRoot(BaseException):
    pass


def _raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        if cause is None:
            raise error
        raise error from cause
    except BaseException as exc:
        return exc


def _sent(info: ErrorInfo) -> ErrorInfo:
    """Return what is left after a journey as JSON."""
    return msgspec.json.decode(msgspec.json.encode(info), type=ErrorInfo)


def _back(error: BaseException) -> BaseException:
    return revive(_sent(describe(error)), otherwise=ActivityFailure, **FACTS)


def test_describe__ordinary_error__reports_all() -> None:
    info = describe(_raised(CardDeclined(51, object())))
    assert (info.type, info.message) == ("CardDeclined", "declined with code 51")
    assert (info.module, info.qualname) == (__name__, "CardDeclined")
    assert bytes(info.data) == b'{"code":51}'
    assert bytes(info.args) == b'["declined with code 51"]'
    assert "raise error" in info.trace
    assert info.retryable
    assert info.cause is None
    assert info.bases == ()
    assert _sent(info) == info


def test_describe__class_tree__is_named_without_the_roots() -> None:
    assert describe(FileNotFoundError(2, "gone")).class_names() == ("builtins.FileNotFoundError", "OSError")
    assert describe(ValueError()).bases == ()
    assert describe(CardDeclined.Stolen()).class_names() == (f"{__name__}.CardDeclined.Stolen",)


def test_describe__nothing_to_report__is_small() -> None:
    assert msgspec.json.encode(describe(ValueError())) == (
        b'{"type":"ValueError","message":"","module":"builtins","qualname":"ValueError"}'
    )


def test_describe__argument_without_json_form__is_there_as_text() -> None:
    info = describe(ValueError("a", 1, len, float("nan")))
    assert bytes(info.args) == b'["a",1,"<built-in function len>","nan"]'


def test_describe__cause_and_context__are_followed_unless_suppressed() -> None:
    def fail(*, suppressed: bool) -> NoReturn:
        try:
            raise KeyError("inner")
        except KeyError:
            if suppressed:
                raise ValueError("outer") from None
            raise ValueError("outer")  # noqa: B904 - the context is what this is about

    with pytest.raises(ValueError, match="outer") as caught:
        fail(suppressed=False)
    info = describe(caught.value)
    assert info.cause is not None
    assert (info.cause.type, info.cause.message) == ("KeyError", "'inner'")
    with pytest.raises(ValueError, match="outer") as caught:
        fail(suppressed=True)
    assert describe(caught.value).cause is None
    explicit = describe(_raised(ValueError("a"), LookupError("b")))
    assert explicit.cause is not None
    assert explicit.cause.type == "LookupError"


def _depth(info: ErrorInfo | None) -> int:
    return 0 if info is None else 1 + _depth(info.cause)


def test_describe__circle_of_causes__ends() -> None:
    left, right = ValueError("left"), ValueError("right")
    left.__cause__, right.__cause__ = right, left
    assert _depth(describe(left)) == 2


def test_describe__long_chain__is_cut() -> None:
    error: BaseException = ValueError("0")
    for number in range(30):
        error = _raised(ValueError(str(number)), error)
    assert _depth(describe(error)) == CHAIN_MAX


def test_describe__group__is_caused_by_its_first_member_and_final_if_one_is() -> None:
    group = ExceptionGroup("two failed", [KeyError("a"), NonRetryable("b")])
    info = describe(group)
    assert info.cause is not None
    assert info.cause.type == "KeyError"
    assert not info.retryable
    assert describe(ExceptionGroup("one", [KeyError("a")])).retryable


class Wordless(Exception):
    """One that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_describe__group__says_what_is_in_it_within_bounds() -> None:
    inner = ExceptionGroup("inner", [OSError("disk"), Wordless()])
    info = describe(ExceptionGroup("outer", [ValueError("boom"), inner]))
    assert info.message == (
        "outer (2 sub-exceptions): ValueError: boom; ExceptionGroup: inner (2 sub-exceptions): OSError: disk; "
        "Wordless: <cannot be shown as text>"
    )
    many = describe(ExceptionGroup("many", [ValueError("x" * 5_000) for _ in range(30)]))
    assert len(many.message) < 4_000
    assert many.message.endswith("; and 25 more")
    deep: Exception = ValueError("bottom")
    for _ in range(300):
        deep = ExceptionGroup("deep", [deep])
    assert describe(deep).message.startswith("deep (1 sub-exception): ExceptionGroup: deep")


def test_describe__non_retryable__says_so_and_carries_its_data() -> None:
    info = describe(NonRetryable("card declined", data={"code": 51}))
    assert not info.retryable
    assert Failure(info).data == {"code": 51}
    assert str(Failure(info)) == "NonRetryable: card declined"


def test_describe__sizes__are_bounded() -> None:
    def deep(levels: int) -> NoReturn:
        if levels:
            deep(levels - 1)
        error = ValueError("é" * 100_000, "y" * 100_000)
        error.large = "x" * DATA_BYTES_MAX  # type: ignore[attr-defined]
        error.small = 1  # type: ignore[attr-defined]
        raise error

    with pytest.raises(ValueError, match="é") as caught:
        deep(100)
    info = describe(caught.value)
    assert len(info.message.encode()) <= MESSAGE_BYTES_MAX
    assert info.message.endswith("…")
    assert 0 < len(info.trace.encode()) <= TRACE_BYTES_MAX
    assert info.trace.startswith("  ")
    assert info.trace.rstrip().endswith("raise error")
    assert bytes(info.data) == b'{"small":1}'
    assert len(info.args) <= MESSAGE_BYTES_MAX + 10


def test_describe__longest_chain_of_large_errors__stays_below_an_item() -> None:
    error: BaseException = ValueError("x" * 300_000)
    for _ in range(CHAIN_MAX):
        error = _raised(ValueError("x" * 300_000), error)
        error.data = ["y" * 3_000]  # type: ignore[attr-defined]
    assert len(msgspec.json.encode(describe(error))) < 350_000


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    def __repr__(self) -> str:
        raise RuntimeError("no")

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        raise ValueError("no")

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise KeyError("no")

    @property
    def args(self) -> tuple[object, ...]:  # type: ignore[override]
        raise ValueError("no")

    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise ValueError("no")

    @property
    def __context__(self) -> BaseException | None:  # type: ignore[override]
        return 3  # type: ignore[return-value]

    @property
    def __traceback__(self) -> object:  # type: ignore[override]
        raise ValueError("no")


class OddName(type):
    @property
    def __name__(cls) -> Any:  # type: ignore[override]
        raise ValueError("no")

    @property
    def __mro__(cls) -> Any:
        raise ValueError("no")


def _unnamed() -> Exception:
    # Not a class of the module: pytest itself would ask for its name.
    class Unnamed(Exception, metaclass=OddName):
        def __str__(self) -> Any:
            return 5

    return Unnamed()


class OfText(str):
    def encode(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError("no")


class OddText(Exception):
    def __str__(self) -> str:
        return OfText("half a pair: \ud800")


class Deep(Exception):
    def __str__(self) -> str:
        return str(self)


@pytest.mark.parametrize("make", [lambda: Hostile("x"), _unnamed, OddText, Deep])
def test_describe__hostile_error__never_raises_and_can_be_sent(make: Callable[[], Exception]) -> None:
    info = describe(make())
    assert _sent(info) == info
    assert isinstance(revive(info, otherwise=ActivityFailure, **FACTS), Exception)


def test_describe__hostile_error__reports_what_it_can() -> None:
    assert describe(Hostile("x")).message == "<Hostile cannot be shown as text>"
    assert bytes(describe(Hostile("x")).args) == b'["x"]'
    assert describe(OddText()).message == "half a pair: \\ud800"
    assert describe(_unnamed()).type == "Exception"


def test_describe__interrupt_from_the_keyboard__is_not_swallowed() -> None:
    class Interrupted(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        describe(Interrupted())


def test_revive__loaded_class__is_that_class_without_its_init() -> None:
    error = _raised(CardDeclined(151, object()), KeyError("token"))
    made = CardDeclined.made
    revived = _back(error)
    assert type(revived) is CardDeclined
    assert CardDeclined.made == made
    assert str(revived) == "declined with code 151"
    assert (revived.code, revived.is_final) == (151, True)
    failure = revived.__cause__
    assert type(failure) is ActivityFailure
    assert (failure.activity, failure.attempts) == ("charge", 3)
    assert (failure.type, failure.message, failure.data) == ("CardDeclined", "declined with code 151", {"code": 151})
    assert str(failure) == "activity 'charge' failed after 3 attempts: CardDeclined: declined with code 151"
    assert type(failure.__cause__) is KeyError
    assert failure.__cause__.args == ("token",)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        ValueError(""),
        ValueError("a", 1, [2, {"b": None}]),
        KeyError("x"),
        FileNotFoundError(2, "No such file or directory", "/tmp/x"),
        OSError("plain"),
        Refused("here"),
        ZeroDivisionError("division by zero"),
        CardDeclined.Stolen("x"),
        Slotted(7),
        NonRetryable("declined", data={"code": 51}),
        Cancelled(),
        TimeoutError("slow"),
        ImportError("gone", name="shop"),
        AssertionError(),
        RecursionError("deep"),
    ],
)
def test_revive__loaded_class__is_equal_in_class_arguments_and_text(error: Exception) -> None:
    revived = _back(error)
    assert type(revived) is type(error)
    assert revived.args == error.args
    assert str(revived) == str(error)
    assert isinstance(revived.__cause__, ActivityFailure)
    assert vars(revived) == vars(error)


def test_revive__attributes_outside_the_dict__are_kept() -> None:
    gone = _back(FileNotFoundError(2, "No such file or directory", "/tmp/x"))
    assert isinstance(gone, FileNotFoundError)
    assert (gone.errno, gone.strerror, gone.filename) == (2, "No such file or directory", "/tmp/x")
    slotted = _back(Slotted(7))
    assert isinstance(slotted, Slotted)
    assert slotted.code == 7
    refused = _back(Refused("here"))
    assert isinstance(refused, Refused)
    assert (refused.errno, refused.where) == (111, "here")


def test_revive__notes__are_kept() -> None:
    error = ValueError("x")
    error.add_note("for order 7")
    assert _back(error).__notes__ == ["for order 7"]


def test_revive__class_with_its_own_new__is_made_without_running_it() -> None:
    error = OwnNew("x")
    made = OwnNew.made
    assert type(_back(error)) is OwnNew
    assert OwnNew.made == made


def _info(module: str, qualname: str) -> ErrorInfo:
    return ErrorInfo(type=qualname.rpartition(".")[2], message="m", module=module, qualname=qualname)


@pytest.mark.parametrize(
    "info",
    [
        _info("module.not.loaded", "Declined"),
        _info(__name__, "Missing"),
        _info(__name__, "CardDeclined.Missing"),
        _info(__name__, "describe"),
        _info(__name__, "FACTS"),
        _info(__name__, "OtherRoot"),
        _info("builtins", "KeyboardInterrupt"),
        _info("builtins", "SystemExit"),
        _info("builtins", "GeneratorExit"),
        _info("builtins", "BaseException"),
        _info("builtins", "StopIteration"),
        _info("builtins", "StopAsyncIteration"),
        _info("builtins", "ExceptionGroup"),
        _info("builtins", "int"),
        _info("asyncio.exceptions", "CancelledError"),
        _info("", ""),
        _info("builtins", ""),
        ErrorInfo(type="X", message="m"),
        ErrorInfo(type="X", message="m", module="builtins", qualname="ValueError", data=msgspec.Raw(b"[1]")),
        ErrorInfo(type="X", message="m", module="builtins", qualname="ValueError", args=msgspec.Raw(b"{}")),
        ErrorInfo(type="X", message="m", module="builtins", qualname="OSError", data=msgspec.Raw(b'{"errno":')),
    ],
)
def test_revive__class_that_cannot_be_had__is_the_failure_itself(info: ErrorInfo) -> None:
    revived = revive(info, otherwise=ChildFailure, execution_id="e1", status="FAILED")
    assert type(revived) is ChildFailure
    assert (revived.info, revived.execution_id, revived.status) == (info, "e1", "FAILED")
    assert str(revived) == f"child execution 'e1' ended FAILED: {info.type}: m"


def test_revive__module_not_loaded__imports_nothing() -> None:
    assert "this" not in sys.modules
    revive(_info("this", "Declined"), otherwise=Failure)
    assert "this" not in sys.modules


def test_revive__class_that_cannot_be_shown__is_the_failure_itself() -> None:
    class Helper:
        name = "x"

    revived = _back(NeedsHelp(Helper()))
    assert type(revived) is ActivityFailure
    assert revived.message == "help from x"


@pytest.mark.parametrize(
    "error",
    [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), UnicodeEncodeError("ascii", "é", 0, 1, "invalid")],
)
def test_revive__error_that_trusts_its_init__is_the_failure_itself(error: Exception) -> None:
    revived = _back(error)
    assert type(revived) is ActivityFailure
    assert revived.message == str(error)


def test_revive__chain_of_causes__is_whole() -> None:
    error = _raised(
        CardDeclined.Stolen("a"), _raised(CardDeclined(1, None), _raised(OtherRoot("c"), FileNotFoundError(2, "d")))
    )
    stolen = _back(error)
    failure = stolen.__cause__
    assert failure is not None
    declined = failure.__cause__
    assert type(declined) is CardDeclined
    unknown = declined.__cause__
    assert type(unknown) is Failure
    assert str(unknown) == "OtherRoot: c"
    assert type(unknown.__cause__) is FileNotFoundError
    assert unknown.__cause__.__cause__ is None


def test_revive__into_a_future__is_raised_as_it_is() -> None:
    async def run() -> str:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(_back(StopIteration(3)))
        try:
            await future
        except ActivityFailure as exc:
            return exc.type
        return "nothing"

    assert asyncio.run(run()) == "StopIteration"


def test_revive__twice__is_the_same() -> None:
    info = _sent(describe(_raised(CardDeclined(1, None), KeyError("x"))))

    def messages_of(error: BaseException | None) -> list[object]:
        return [] if error is None else [(type(error), str(error), vars(error)), *messages_of(error.__cause__)]

    assert messages_of(revive(info, otherwise=ActivityFailure)) == messages_of(revive(info, otherwise=ActivityFailure))


def test_failure__that_passes_through_another_execution__keeps_facts_and_origin() -> None:
    class Local(Exception):
        pass

    inner = _back(_raised(Local("no funds"), KeyError("k")))
    assert type(inner) is ActivityFailure
    info = _sent(describe(_raised(inner)))
    assert info.type == "ActivityFailure"
    assert bytes(info.data) == b'{"activity":"charge","attempts":3}'
    assert info.cause is not None
    assert info.cause.message == "no funds"
    outer = revive(info, otherwise=ChildFailure, execution_id="e1", status="FAILED")
    assert type(outer) is ActivityFailure
    assert (outer.activity, outer.attempts, outer.type, outer.message) == ("charge", 3, "Local", "no funds")
    assert str(outer) == str(inner)
    assert type(outer.__cause__) is ChildFailure
    origin = outer.__cause__.__cause__
    assert type(origin) is Failure
    assert origin.type == "Local"
    assert type(origin.__cause__) is KeyError


def test_failure__revived_error_that_passes_on__keeps_the_activity() -> None:
    info = _sent(describe(_raised(_back(CardDeclined(1, None)))))
    assert info.type == "CardDeclined"
    assert info.cause is not None
    assert info.cause.type == "ActivityFailure"
    revived = revive(info, otherwise=ExecutionFailure, execution_id="e1", status="FAILED")
    assert type(revived) is CardDeclined
    activity = revived.__cause__.__cause__ if revived.__cause__ else None
    assert type(activity) is ActivityFailure
    assert activity.activity == "charge"


def test_failure__handed_up_many_times__stays_bounded() -> None:
    error: BaseException = ValueError("x")
    for level in range(20):
        info = _sent(describe(_raised(error)))
        error = revive(info, otherwise=ChildFailure, execution_id=f"e{level}", status="FAILED")
    assert _depth(describe(error)) == CHAIN_MAX


def _every_failure() -> list[Exception]:
    info = describe(_raised(CardDeclined(51, None), KeyError("x")))
    return [
        Failure(info),
        ActivityFailure(info, activity="charge", attempts=1),
        ActivityTimeout(ErrorInfo(type="x", message=""), activity="charge", attempts=2, kind="heartbeat"),
        ChildFailure(info, execution_id="e1", status="TERMINATED"),
        ExecutionFailure(info, execution_id="e1", status="TIMED_OUT"),
        NonRetryable("declined", data={"code": 51}),
        Cancelled("stop"),
    ]


@pytest.mark.parametrize("error", _every_failure(), ids=lambda error: type(error).__name__)
def test_failures__pickled__come_back_the_same(error: Exception) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)
    assert msgspec.json.encode(describe(back)) == msgspec.json.encode(describe(error))
    assert not isinstance(error, HeadgateError)


def test_failures__as_text__are_clear() -> None:
    assert [str(error) for error in _every_failure()] == [
        "CardDeclined: declined with code 51",
        "activity 'charge' failed after 1 attempt: CardDeclined: declined with code 51",
        "activity 'charge' timed out (heartbeat) after 2 attempts",
        "child execution 'e1' ended TERMINATED: CardDeclined: declined with code 51",
        "execution 'e1' ended TIMED_OUT: CardDeclined: declined with code 51",
        "declined",
        "stop",
    ]
    assert str(Cancelled()) == "the activity was cancelled"


def test_activity_timeout__caught_as_timeout_error__has_its_facts() -> None:
    info = ErrorInfo(type="ActivityTimeout", message="no heartbeat for 30s")
    with pytest.raises(TimeoutError) as caught:
        raise ActivityTimeout(info, **FACTS, kind="heartbeat")
    error = caught.value
    assert isinstance(error, ActivityFailure)
    assert str(error) == "activity 'charge' timed out (heartbeat) after 3 attempts: no heartbeat for 30s"
    back = revive(_sent(describe(error)), otherwise=ChildFailure, execution_id="e", status="FAILED")
    assert type(back) is ActivityTimeout
    assert (back.kind, back.activity, back.attempts, str(back)) == ("heartbeat", "charge", 3, str(error))


def test_failure_data__several_attributes__are_by_name() -> None:
    error = ValueError("x")
    error.data, error.code = {"a": 1}, 5  # type: ignore[attr-defined]
    assert Failure(describe(error)).data == {"data": {"a": 1}, "code": 5}
    assert Failure(describe(ValueError("x"))).data is None


@given(st.text(st.characters()), st.lists(st.integers() | st.text() | st.none() | st.binary(), max_size=3))
def test_describe__any_message_and_arguments__can_be_sent_and_raised(message: str, args: list[object]) -> None:
    info = describe(ValueError(message, *args))
    assert _sent(info) == info
    assert type(revive(info, otherwise=ActivityFailure)) is ValueError
