"""Rules: conditions before and after a run, compiled once and evaluated often.

Logic is three-valued: UNKNOWN stays unknown through `all`, `any`, `n_of` and `not`, unless the rule says how to treat
it. A rule that only warns is reported and never counted. Each evaluation has one `now`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from headgate.errors import DefinitionError
from headgate.pipelines.definition.model import PostRun, Readiness, Rule, SensorTrigger
from headgate.pipelines.enums import OnUnknown, Severity, Verdict
from headgate.pipelines.rules.compiler import RuleKind, RuleNode, compile_node, needs_of
from headgate.pipelines.rules.facts import Facts, Memory, Needs, RuleMemory
from headgate.pipelines.rules.operators import FAIL, PASS, UNKNOWN, OperatorResult

ALL: Final = "ALL"
ANY: Final = "ANY"


class RuleResult(Struct, frozen=True, omit_defaults=True):
    """The verdict of one rule, and its reason."""

    # Its path among the rules: "0", "1.2".
    path: str
    name: str
    kind: RuleKind
    verdict: Verdict
    reason: str
    # Since when the verdict has been the same.
    since_ms: int
    # The sensor, pipeline, dataset or trait that it reads.
    subject: str = ""
    severity: Severity = Severity.BLOCK
    # Consecutive passes, and when the last was counted, for rules with `stable_for`.
    passes: int = 0
    counted_at_ms: int = 0
    children: tuple[RuleResult, ...] = ()
    # Whether a verdict UNKNOWN is about to be known.
    is_pending: bool = False

    def walk(self) -> Iterator[RuleResult]:
        """Yield it and all nested results."""
        yield self
        for child in self.children:
            yield from child.walk()


class Evaluation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The results of all rules at one time."""

    verdict: Verdict
    at_ms: int
    mode: str
    fingerprint: str
    results: tuple[RuleResult, ...] = ()

    @property
    def counted(self) -> tuple[RuleResult, ...]:
        """The rules that the verdict is made of."""
        return tuple(result for result in self.results if result.severity is Severity.BLOCK)

    @property
    def passed_count(self) -> int:
        """How many of those hold."""
        return sum(result.verdict is PASS for result in self.counted)

    @property
    def memory(self) -> Memory:
        """The memory for the next evaluation."""
        walked = (each for result in self.results for each in result.walk())
        rules = {each.path: RuleMemory(each.verdict, each.since_ms, each.passes, each.counted_at_ms) for each in walked}
        return Memory(fingerprint=self.fingerprint, rules=rules)


class CompiledRules(Struct, frozen=True, kw_only=True):
    """Compiled rules, their inputs, and a fingerprint that changes with them."""

    mode: str
    nodes: tuple[RuleNode, ...]
    needs: Needs
    fingerprint: str


def compile_rules(rules: Sequence[Rule], mode: str = ALL) -> CompiledRules:
    """Compile rules. Raises `DefinitionError` that names the path of the rule."""
    combined = mode.strip().upper()
    if combined not in (ALL, ANY):
        raise DefinitionError(f"mode {mode!r} is not known; use {ALL} or {ANY}")
    nodes = tuple(compile_node(rule, str(index)) for index, rule in enumerate(rules))
    text = msgspec.json.encode([combined, list(rules)], enc_hook=float)
    return CompiledRules(
        mode=combined,
        nodes=nodes,
        needs=needs_of(rules),
        fingerprint=hashlib.blake2b(text, digest_size=12).hexdigest(),
    )


def compile_readiness(readiness: Readiness) -> CompiledRules:
    """Compile the readiness rules. Raises `DefinitionError`."""
    return compile_rules(readiness.rules, readiness.mode)


def compile_post_run(post_run: PostRun) -> CompiledRules:
    """Compile the post-run rules, all of which have to hold. Raises `DefinitionError`."""
    return compile_rules(post_run.rules, ALL)


def compile_trigger(sensor: SensorTrigger) -> CompiledRules:
    """Compile the condition under which a sensor starts a run. Raises `DefinitionError`."""
    return compile_rules([Rule(key=sensor.key, check=sensor.check, field=sensor.field, value=sensor.value)])


def evaluate(compiled: CompiledRules, facts: Facts, now: datetime) -> Evaluation:
    """Evaluate rules on facts at a time."""
    at_ms = int(now.timestamp() * 1000)
    memory = facts.memory
    remembered = memory.rules if memory is not None and memory.fingerprint == compiled.fingerprint else {}
    spacing_ms = memory.spacing_ms if memory is not None else 0
    results = tuple([_result(node, facts, at_ms, remembered.get, spacing_ms) for node in compiled.nodes])
    counted = [result.verdict for result in results if result.severity is Severity.BLOCK]
    # With warnings only there is nothing to wait for; without any rule, ANY never holds.
    verdict = PASS if results and not counted else _COMBINED[compiled.mode](counted)
    return Evaluation(
        verdict=verdict, at_ms=at_ms, mode=compiled.mode, fingerprint=compiled.fingerprint, results=results
    )


_Previous = Callable[[str], RuleMemory | None]


def _result(node: RuleNode, facts: Facts, at_ms: int, remembered: _Previous, spacing_ms: int) -> RuleResult:
    children: tuple[RuleResult, ...] = ()
    if node.find is not None:
        verdict, reason = node.find(facts, at_ms)
    else:
        children = tuple([_result(child, facts, at_ms, remembered, spacing_ms) for child in node.children])
        verdict, reason = _combination(node, children)
    is_pending = verdict is UNKNOWN and _is_pending(node, facts)
    if verdict is UNKNOWN and not is_pending and node.on_unknown is not OnUnknown.WAIT:
        verdict = PASS if node.on_unknown is OnUnknown.PASS else FAIL
        reason = f"{reason} (taken for {verdict.lower()})"
    before = remembered(node.path)
    passes, counted_at_ms = 0, 0
    if node.stable_for > 1 and verdict is PASS:
        passes, counted_at_ms = _counted(before, at_ms, spacing_ms)
        if passes < node.stable_for:
            verdict, reason = UNKNOWN, f"{reason}, {passes} of {node.stable_for} times in a row"
    since_ms = before.since_ms if before is not None and before.verdict is verdict else at_ms
    return RuleResult(
        node.path, node.name, node.kind, verdict, reason, since_ms,
        node.subject, node.severity, passes, counted_at_ms, children, is_pending,
    )  # fmt: skip


def _is_pending(node: RuleNode, facts: Facts) -> bool:
    fact = facts.datasets.get(node.subject) if node.kind is RuleKind.DATASET else None
    return fact is not None and fact.is_pending


def _counted(before: RuleMemory | None, at_ms: int, spacing_ms: int) -> tuple[int, int]:
    """Return the number of consecutive passes. Evaluations in quick succession count once."""
    if before is None or not before.passes:
        return 1, at_ms
    if at_ms - before.counted_at_ms < spacing_ms:
        return before.passes, before.counted_at_ms
    return before.passes + 1, at_ms


def _combination(node: RuleNode, children: Sequence[RuleResult]) -> OperatorResult:
    verdicts = [child.verdict for child in children if child.severity is Severity.BLOCK]
    passed = verdicts.count(PASS)
    match node.kind:
        case RuleKind.ALL:
            return _all_of(verdicts), f"{passed} of {len(verdicts)} hold, all are needed"
        case RuleKind.ANY:
            return _any_of(verdicts), f"{passed} of {len(verdicts)} hold, one is needed"
        case RuleKind.NOT:
            return _INVERTED[children[0].verdict], f"not: {children[0].reason}"
    return _n_of(verdicts, node.needed), f"{passed} of {len(verdicts)} hold, {node.needed} are needed"


def _all_of(verdicts: Sequence[Verdict]) -> Verdict:
    if FAIL in verdicts:
        return FAIL
    return UNKNOWN if UNKNOWN in verdicts else PASS


def _any_of(verdicts: Sequence[Verdict]) -> Verdict:
    if PASS in verdicts:
        return PASS
    return UNKNOWN if UNKNOWN in verdicts else FAIL


def _n_of(verdicts: Sequence[Verdict], needed: int) -> Verdict:
    passed = verdicts.count(PASS)
    if passed >= needed:
        return PASS
    return UNKNOWN if passed + verdicts.count(UNKNOWN) >= needed else FAIL


_COMBINED: Final[dict[str, Callable[[Sequence[Verdict]], Verdict]]] = {ALL: _all_of, ANY: _any_of}
_INVERTED: Final = {PASS: FAIL, FAIL: PASS, UNKNOWN: UNKNOWN}
