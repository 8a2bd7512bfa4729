"""PromQL: the series that a query reads, each with the labels that the query uses of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import promql_parser

# Prometheus adds them to every series that it scrapes.
OF_PROMETHEUS = frozenset({"job", "instance"})


class Used(NamedTuple):
    """A series, the labels that a query uses of it, and the values that it asks for."""

    name: str
    labels: frozenset[str]
    values: frozenset[tuple[str, str]] = frozenset()


def used(expr: str) -> list[Used]:
    """Return the series of a query. Raises `ValueError` for invalid PromQL."""
    return list(_used(promql_parser.parse(expr.replace("$__rate_interval", "5m")), frozenset()))


def _used(node: Any, grouped_by: frozenset[str]) -> Iterator[Used]:
    match node:
        case promql_parser.VectorSelector():
            matchers = [each for each in node.matchers.matchers if each.name not in OF_PROMETHEUS]
            values = {(each.name, each.value) for each in matchers if each.op == promql_parser.MatchOp.Equal}
            labels = grouped_by.union(each.name for each in matchers) - OF_PROMETHEUS
            yield Used(node.name or "", labels, frozenset(values))
        case promql_parser.MatrixSelector():
            yield from _used(node.vector_selector, grouped_by)
        case promql_parser.AggregateExpr():
            modifier = node.modifier
            is_by = modifier is not None and modifier.type == promql_parser.AggModifierType.By
            yield from _used(node.expr, grouped_by.union(modifier.labels if modifier is not None and is_by else ()))
        case promql_parser.Call():
            for each in node.args:
                yield from _used(each, grouped_by)
        case promql_parser.BinaryExpr():
            yield from _used(node.lhs, grouped_by)
            yield from _used(node.rhs, grouped_by)
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            yield from _used(node.expr, grouped_by)
        case promql_parser.NumberLiteral() | promql_parser.StringLiteral():
            return
        case _:
            raise ValueError(f"not known: {type(node).__name__}")
