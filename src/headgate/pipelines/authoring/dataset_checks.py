"""Dataset checks: warnings for rules on datasets that are not registered."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition.problems import Problem, nearest
from headgate.pipelines.rules.compiler import needs_of

_VERSION: Final = re.compile(r":v\d+$")

# Returns those of some datasets that the registry does not have.
Unregistered = Callable[[Sequence[str]], Collection[str]]


def unknown_datasets(
    pipelines: Iterable[Pipeline],
    unregistered: Unregistered,
    written: Callable[[], Iterable[str]],
) -> list[Problem]:
    """Return warnings for datasets of rules that are not registered and that no pipeline writes.

    The first run of a writer registers a dataset. `unregistered` returns those of some datasets that the registry does
    not have, `written` the datasets that other pipelines write; it is called only if needed.
    """
    listed = list(pipelines)
    wanted = {each.id: needs_of((*each.readiness.rules, *each.post_run.rules)).datasets for each in listed}
    own = {name for each in listed for name in each.writes}
    asked = sorted({name for names in wanted.values() for name in names})
    missing = set(unregistered(asked)) if asked else set()
    if not missing:
        return []
    known = own | set(written())
    unversioned = {_unversioned(name) for name in known}
    missing = {name for name in missing if _unversioned(name) not in unversioned}
    return [
        Problem(
            source=each.id,
            fact=f"dataset {name} of a rule is not registered, and no pipeline writes it",
            suggestion=nearest(name, known),
            allowed=f"run 'headgate dataset register {name}'",
            is_warning=True,
        )
        for each in listed
        for name in wanted[each.id]
        if name in missing
    ]


def _unversioned(dataset: str) -> str:
    return _VERSION.sub("", dataset)
