"""Third-party evaluators: functions that installed packages register under the entry point group `headgate.evaluators`.

A definition refers to one as `plugin:NAME`. The function takes a `protocol.Question` and returns a `protocol.Answer`.
It runs in a thread of the server under the time-out of the trait, as built-in evaluators do.
"""

from __future__ import annotations

from typing import Final

from headgate import plugins
from headgate.errors import DefinitionError
from headgate.pipelines.traits.builtin import rendered
from headgate.pipelines.traits.protocol import Answer, Question

GROUP: Final = "headgate.evaluators"
PREFIX: Final = "plugin:"


class PluginEvaluator:
    """Evaluates traits with the functions of installed packages."""

    def evaluate(self, question: Question) -> Answer:
        """Return the answer of the function. Raises `SettingsError` if it cannot be loaded, or what it raises."""
        answer: Answer = plugins.load(GROUP, question.reference.removeprefix(PREFIX))(rendered(question))
        return answer


def check_reference(reference: str) -> None:
    """Raise `DefinitionError` for a name that no installed package registers."""
    names = plugins.registered(GROUP)
    if reference.removeprefix(PREFIX) not in names:
        known = f"installed are {', '.join(sorted(names))}" if names else "no package registers an evaluator"
        raise DefinitionError(f"evaluator {reference[:80]!r} is unknown; {known} (entry point group {GROUP})")
