"""Graph of a state machine: its states and transitions for `<hg-graph>`, with the progress of an execution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from headgate.asl.graph.labels import StateMark, arrows_of, caption
from headgate.serve.pages.api_calls import segment

Definition = Mapping[str, Any]
_TONES: Final[Mapping[StateMark, str]] = {
    StateMark.VISITED: "good",
    StateMark.CURRENT: "busy",
    StateMark.FAILED: "bad",
    StateMark.CAUGHT: "warn",
}


def nested(state: Definition) -> Iterator[Definition]:
    """Yield the machines inside a state: the branches of a Parallel, the processor of a Map."""
    yield from state.get("Branches", [])
    processor = state.get("ItemProcessor", state.get("Iterator"))
    if processor is not None:
        yield processor


def machine_graph(
    definition: Definition,
    marks: Mapping[str, StateMark] | None = None,
    fanouts: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return nodes and edges. `marks` is the progress by state, `fanouts` the fan-out of a distributed Map."""
    nodes: list[dict[str, Any]] = []
    edges: list[tuple[str, str]] = []

    def add(machine: Definition, after: str | None) -> None:
        """Add a machine. `after` is the state that follows the one that the machine is inside of."""
        states = machine["States"]
        edges.extend((arrow.source, arrow.target) for arrow in arrows_of(machine, has_ends=False))
        for name, state in states.items():
            follower = state.get("Next", "")
            nodes.append(_node(name, state, (marks or {}).get(name), (fanouts or {}).get(name)))
            inner = list(nested(state))
            if inner and follower:
                # The path leads through the states inside.
                edges[:] = [each for each in edges if each != (name, follower)]
            for each in inner:
                edges.append((name, each["StartAt"]))
                add(each, follower or after)
            if after and state.get("End"):
                edges.append((name, after))

    add(definition, None)
    # A definition without nested end states keeps its edge; the same edge twice is drawn once.
    return {"nodes": nodes, "edges": list(dict.fromkeys(edges))}


def _node(name: str, state: Definition, mark: StateMark | None, fanout: str | None) -> dict[str, Any]:
    node: dict[str, Any] = {"id": name, "label": name, "kind": caption(state)}
    if mark is not None:
        node |= {"tone": _TONES[mark], "note": mark.value}
    if fanout:
        node["href"] = f"/ui/fanouts/{segment(fanout)}"
    return node
