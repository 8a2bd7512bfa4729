"""A proxy that keeps what MiniStack forgets, and adds it to answers as AWS documents: the tracing of a machine."""

from __future__ import annotations

import json
import threading
from typing import Any, Final

from tests.passing_proxy import PassingProxy

_TRACING: Final = "tracingConfiguration"


class RememberingProxy(PassingProxy):
    """Passes requests on to MiniStack, and answers as AWS does what is asked of state machines."""

    def __init__(self, endpoint: str) -> None:
        self._lock = threading.Lock()
        self._tracing: dict[str, Any] = {}
        super().__init__(endpoint)

    def answered(self, target: str, body: bytes, content: bytes) -> bytes:
        service, _, operation = target.partition(".")
        if service != "AWSStepFunctions":
            return content
        given, answer = json.loads(body), json.loads(content)
        with self._lock:
            match operation:
                case "CreateStateMachine" | "UpdateStateMachine" if _TRACING in given:
                    self._tracing[answer.get("stateMachineArn") or given["stateMachineArn"]] = given[_TRACING]
                case "DescribeStateMachine" if given["stateMachineArn"] in self._tracing:
                    answer[_TRACING] = self._tracing[given["stateMachineArn"]]
                case _:
                    return content
        return json.dumps(answer).encode()
