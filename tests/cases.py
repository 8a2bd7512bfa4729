"""Many cases in one test: for checks that leave nothing behind, a store a case would cost more than the check."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def each(name: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once for each case, with the same fixtures. An error says which case it is from.

    As `pytest.mark.parametrize`, but on one store: only for cases that do not see what another has left.
    """
    chosen = list(cases)
    assert chosen, f"no case for {name}"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        others = [parameter for parameter in signature.parameters.values() if parameter.name != name]

        @wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            for case in chosen:
                try:
                    test(*args, **{name: case}, **kwargs)
                except BaseException as error:
                    error.add_note(f"case {name}={case!r}")
                    raise

        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
