"""Call shapes: the static types of calls that pass options beside the arguments of a workflow.

`ParamSpec` has no place for keyword options after the arguments. A workflow is therefore also seen as a callable of
up to five positional arguments, which is enough for a type checker to compare each argument and each option.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol, TypedDict, TypeVar

from headgate.durable.model.duration import Duration
from headgate.durable.model.history import Cancellation, ParentClose
from headgate.durable.model.retry import Retry
from headgate.durable.model.starts import Reuse

R_co = TypeVar("R_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)
B_contra = TypeVar("B_contra", contravariant=True)
C_contra = TypeVar("C_contra", contravariant=True)
D_contra = TypeVar("D_contra", contravariant=True)
E_contra = TypeVar("E_contra", contravariant=True)


class StartOptions(TypedDict, total=False):
    """The options of `Workflow.start`."""

    id: str | None
    reuse: Reuse | str
    tags: Mapping[str, str] | None
    memo: Any
    timeout: Duration | None
    delay: Duration | None
    retry: Retry | None


class SignalWithStartOptions(TypedDict, total=False):
    """The options of `Workflow.signal_with_start`."""

    id: str | None
    signal_id: str | None
    reuse: Reuse | str
    tags: Mapping[str, str] | None
    memo: Any
    timeout: Duration | None
    retry: Retry | None


class ActivityCallOptions(TypedDict, total=False):
    """The options of `hg.call_activity`."""

    retry: Retry
    timeout: Duration
    schedule_to_start: Duration
    schedule_to_close: Duration
    heartbeat: Duration
    queue: str
    cancellation: Cancellation | str


class ChildCallOptions(TypedDict, total=False):
    """The options of `hg.start_child`."""

    id: str
    parent_close: ParentClose | str
    cancellation: Cancellation | str
    timeout: Duration
    tags: Mapping[str, str]
    retry: Retry


class Takes0(Protocol[R_co]):
    """A workflow that can be called without arguments."""

    name: str

    def __call__(self) -> Awaitable[R_co]: ...


class Takes1(Protocol[A_contra, R_co]):
    """A workflow that can be called with one argument."""

    name: str

    def __call__(self, a: A_contra, /) -> Awaitable[R_co]: ...


class Takes2(Protocol[A_contra, B_contra, R_co]):
    """A workflow that can be called with two arguments."""

    name: str

    def __call__(self, a: A_contra, b: B_contra, /) -> Awaitable[R_co]: ...


class Takes3(Protocol[A_contra, B_contra, C_contra, R_co]):
    """A workflow that can be called with three arguments."""

    name: str

    def __call__(self, a: A_contra, b: B_contra, c: C_contra, /) -> Awaitable[R_co]: ...


class Takes4(Protocol[A_contra, B_contra, C_contra, D_contra, R_co]):
    """A workflow that can be called with four arguments."""

    name: str

    def __call__(self, a: A_contra, b: B_contra, c: C_contra, d: D_contra, /) -> Awaitable[R_co]: ...


class Takes5(Protocol[A_contra, B_contra, C_contra, D_contra, E_contra, R_co]):
    """A workflow that can be called with five arguments."""

    name: str

    def __call__(self, a: A_contra, b: B_contra, c: C_contra, d: D_contra, e: E_contra, /) -> Awaitable[R_co]: ...
