"""Frame: the position of a machine as data. An execution resumes from it after continue-as-new or a redrive."""

from __future__ import annotations

from msgspec import Struct

from headgate.asl.expressions.scope import Json


class Frame(Struct, omit_defaults=True):
    """The current state of a machine, branch or iteration, and the input of that state.

    In a Parallel or Map, `branches` holds the frame of each unfinished branch and `outputs` the output of each finished
    one, both by index.
    """

    state: str
    input: Json = None
    variables: dict[str, Json] = {}
    branches: dict[int, Frame] = {}
    outputs: dict[int, Json] = {}
    # The fan-out of a distributed Map that has started.
    map_run: str = ""

    def move_to(self, state: str, input: Json) -> None:
        """Enter the next state."""
        self.state = state
        self.input = input
        self.clear_branches()

    def clear_branches(self) -> None:
        """Restart the current state: drop its branches, outputs and map run."""
        if self.branches:
            self.branches = {}
        if self.outputs:
            self.outputs = {}
        self.map_run = ""
