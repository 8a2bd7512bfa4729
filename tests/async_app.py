"""An app whose activity is a Lambda function of its own: it dies, or fails, in the attempts that its input names."""

from __future__ import annotations

import os

import headgate as hg

app = hg.App("scales")


@app.activity(
    retry=hg.Retry(attempts=3, first="1s", most="1s", deaths=0), timeout="2m", invocation=hg.AsyncInvocation()
)
def weigh(parcel: str, dies: int = 0) -> str:
    """Weigh a parcel; the process dies in the first attempts."""
    context = hg.activity()
    if context.attempt <= dies:
        os._exit(3)
    return f"{parcel} weighed in attempt {context.attempt}"


@app.workflow
async def dispatch(parcel: str, dies: int = 0) -> str:
    """Weigh a parcel."""
    return await weigh(parcel, dies)
