"""Frames: where a machine stands, as data. A machine goes on from a frame, in another run or after a fix."""

from __future__ import annotations

from msgspec import Struct

from headgate.asl.expressions.scope import Json


class Frame(Struct, omit_defaults=True):
    """A machine, a branch or an iteration: the state it is in, and what that state was given.

    While the state is a Parallel or a Map, `branches` has those of its branches that have begun and not ended, and
    `outputs` what the others ended with, both by their places.
    """

    state: str
    input: Json = None
    variables: dict[str, Json] = {}
    branches: dict[int, Frame] = {}
    outputs: dict[int, Json] = {}
    # The fan-out that a distributed Map has begun.
    map_run: str = ""

    def move_to(self, state: str, input: Json) -> None:
        """Go on to the next state."""
        self.state = state
        self.input = input
        self.forget_branches()

    def forget_branches(self) -> None:
        """Begin the state anew."""
        if self.branches:
            self.branches = {}
        if self.outputs:
            self.outputs = {}
        self.map_run = ""
