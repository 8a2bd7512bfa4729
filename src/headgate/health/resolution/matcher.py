"""Rule matcher: finds the rules of a topic, in the order of evaluation.

Rules without wildcards are indexed by topic. The others are indexed by the longer of the literal prefix and suffix of
their pattern, so that a topic is compared only with patterns that share it. The result for a topic is cached, because
there are many messages and few topics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headgate.errors import UserError
from headgate.health.resolution.rules import WILDCARDS, CompiledRule, Rule, RuleKey, marks

MEMO_MAX: Final = 20_000


class Matcher:
    """The rules of one snapshot. Immutable; safe to use from many threads."""

    def __init__(self, rules: Iterable[Rule], *, version: int, earlier: Matcher | None = None) -> None:
        """Compile rules, reusing unchanged ones of an earlier matcher.

        A row that is invalid, because someone edited the table by hand, is left out and listed in `broken`.
        """
        held = list(rules)
        self.version = version
        self.marks = marks(held)
        self.snapshot = f"{version}-{self.marks:016x}"
        self.broken: dict[RuleKey, str] = {}
        self.compiled: dict[tuple[RuleKey, str], CompiledRule] = {}
        for rule in held:
            self._compile(rule, earlier)
        self._memo: dict[str, tuple[CompiledRule, ...]] = {}
        self._topics: dict[str, list[CompiledRule]] = {}
        self._beginnings: dict[str, list[CompiledRule]] = {}
        self._endings: dict[str, list[CompiledRule]] = {}
        self._others: list[CompiledRule] = []
        for compiled in self.compiled.values():
            self._place(compiled)
        self._beginning_lengths = sorted({len(text) for text in self._beginnings})
        self._ending_lengths = sorted({len(text) for text in self._endings})

    def about(self, topic: str) -> tuple[CompiledRule, ...]:
        """Return the rules whose pattern matches a topic, in the order of evaluation."""
        found = self._memo.get(topic)
        if found is None:
            found = tuple(sorted(self._matching(topic), key=lambda rule: rule.order))
            if len(self._memo) >= MEMO_MAX:
                # Bounded: callers may make up topics, which are matched without the cache.
                self._memo.clear()
            self._memo[topic] = found
        return found

    def __len__(self) -> int:
        return len(self.compiled)

    def _matching(self, topic: str) -> list[CompiledRule]:
        near = list(self._others)
        for length in self._beginning_lengths:
            if length <= len(topic):
                near += self._beginnings.get(topic[:length], ())
        for length in self._ending_lengths:
            if length <= len(topic):
                near += self._endings.get(topic[-length:], ())
        found = list(self._topics.get(topic, ()))
        found += [rule for rule in near if rule.pattern is not None and rule.pattern.fullmatch(topic)]
        return found

    def _compile(self, rule: Rule, earlier: Matcher | None) -> None:
        key = (rule.key, rule.etag)
        compiled = earlier.compiled.get(key) if earlier is not None else None
        try:
            self.compiled[key] = compiled or CompiledRule(rule)
        except (UserError, ValueError) as exc:
            self.broken[rule.key] = str(exc)

    def _place(self, compiled: CompiledRule) -> None:
        pattern = compiled.rule.topic_pattern
        if compiled.pattern is None:
            self._topics.setdefault(pattern, []).append(compiled)
            return
        parts = WILDCARDS.split(pattern)
        beginning, ending = parts[0], parts[-1]
        if beginning and len(beginning) >= len(ending):
            self._beginnings.setdefault(beginning, []).append(compiled)
        elif ending:
            self._endings.setdefault(ending, []).append(compiled)
        else:
            self._others.append(compiled)
