"""A process that records, forks, and records on in both: ``python -m ...forking_process PATH``."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from autoglm_throttle.traffic.record import Recorder, RecorderMiddleware, RecorderSettings
from tests.traffic.record.recorded import ask, hello, scope

recorder = Recorder(RecorderSettings(path=Path(sys.argv[1])))
app = RecorderMiddleware(hello, recorder)


async def serve(name: str) -> None:
    """Answer a few requests."""
    for n in range(5):
        await ask(app, scope(f"/{name}/{n}"))


asyncio.run(serve("before"))
child = os.fork()
asyncio.run(serve("after" if child else "child"))
if child:
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
