"""A process that records without end: ``python -m tests.traffic.record.recording_process PATH [BYTES]``.

Prints a line when 3000 requests are on the disk. With BYTES no file may become larger than that, and what is
asked afterwards is counted in the last line.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from autoglm_throttle.traffic.record import Recorder, RecorderMiddleware, RecorderSettings
from tests.traffic.record.recorded import ask, hello, scope

ENOUGH = 3000


async def main(path: Path, most: int | None) -> None:
    """Record until killed, or until the disk is full."""
    if most is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    recorder = Recorder(RecorderSettings(path=path))
    app = RecorderMiddleware(hello, recorder)
    asked = 0
    told = False
    while True:
        await ask(app, scope(f"/v1/{asked}"))
        asked += 1
        if asked % 50 == 0:
            await asyncio.sleep(0.002)
        if recorder.counts.written >= ENOUGH and not told:
            told = True
            print("recording", flush=True)
        if recorder.counts.ended:
            for _ in range(100):
                await ask(app, scope())
            print(f"answered {asked + 100}, {recorder.counts.ended}", flush=True)
            return


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None))
