"""Apps of ``benchmarks/recorder.py``, bare and recorded; uvicorn runs one of them."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from autoglm_throttle.traffic.record import Recorder, RecorderMiddleware, RecorderSettings

Scope = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

PATH = os.environ.get("BENCHMARK_RECORD_PATH", f"{os.devnull}.jsonl")


async def plain(scope: Scope, receive: Any, send: Any) -> None:
    """Read the body and respond ok; at ``/cpu`` with the processor time of this process.

    It has a lifespan, whose end ends the recording.
    """
    if scope["type"] == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    body = repr(time.process_time()).encode() if scope["path"] == "/cpu" else b"ok"
    fields = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": body})


bare: App = plain
recorded: App = RecorderMiddleware(plain, Recorder(RecorderSettings(path=Path(PATH))))
packed: App = RecorderMiddleware(plain, Recorder(RecorderSettings(path=Path(f"{PATH}.gz"))))
