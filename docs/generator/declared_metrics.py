"""Declared metrics: those that modules declare where they count, found in the source.

Some metrics of a server appear only in some installations (DynamoDB, a cache, several processes), so a running server
would not show them all.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import headgate
from headgate.metric_series import Series

_ROOT: Final = Path(headgate.__file__).parent
_KINDS: Final[Mapping[str, str]] = {
    "counter": "counter",
    "gauge": "gauge",
    "histogram": "histogram",
    "countermetricfamily": "counter",
    "gaugemetricfamily": "gauge",
    "histogrammetricfamily": "histogram",
    # A helper of `health.metrics`.
    "_latencies": "histogram",
}
_LATENCY_LABELS: Final = ("table", "operation")


@functools.cache
def declared_metrics() -> Mapping[str, tuple[Series, ...]]:
    """Return the metrics by the module that declares them, such as `health/metrics.py`."""
    found = {}
    for path in sorted(_ROOT.rglob("*.py")):
        text = path.read_text()
        if "prometheus_client" in text:
            series = sorted(dict.fromkeys(_declared(ast.parse(text))))
            if series:
                found[str(path.relative_to(_ROOT))] = tuple(series)
    return found


def _declared(tree: ast.Module) -> Iterator[Series]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from _declared_in(node)


def _declared_in(scope: ast.AST) -> Iterator[Series]:
    texts = {
        node.targets[0].id: node.value.value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    for node in ast.walk(scope):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        called = node.func.id
        kind = _KINDS.get(called.lower())
        if kind is None or len(node.args) < 2:
            continue
        name, about = (_text(each, texts) for each in node.args[:2])
        if name and about:
            labels = _LATENCY_LABELS if called == "_latencies" else tuple(_labels(node))
            yield Series(name.removesuffix("_total"), kind, labels, about)  # type: ignore[arg-type]


def _text(node: ast.expr, texts: Mapping[str, str]) -> str:
    """Return a text, or that of a variable; empty for anything else."""
    if isinstance(node, ast.Name):
        return texts.get(node.id, "")
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _labels(call: ast.Call) -> Iterator[str]:
    """Give the labels: in a list or tuple, or as further arguments."""
    values = [*call.args[2:], *(each.value for each in call.keywords if each.arg in ("labels", "labelnames"))]
    for value in values:
        for each in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value
