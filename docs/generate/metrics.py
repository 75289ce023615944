"""Generates the page of the documentation that lists the metrics, from the table of metrics."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from autoglm_throttle.admission.counters import DURATION_BUCKETS_S
from autoglm_throttle.observe.metrics import METRICS

_HEAD: Final = """\
# Metrics

<!-- Made by `python -m docs.generate.metrics > docs/metrics.md`; edit the table METRICS instead. -->

Which metrics does a throttle export? `metrics_app(throttle)` serves them for Prometheus and OpenMetrics:

```python
from autoglm_throttle import Throttle, ThrottleMiddleware
from autoglm_throttle.observe import metrics_app
from fastapi import FastAPI

throttle = Throttle.from_env()
app = FastAPI()
app.add_middleware(ThrottleMiddleware, throttle=throttle)
app.mount("/metrics", metrics_app(throttle))
```

They need the package of the extra `[prometheus]`. Without it, and with `AUTOGLM_THROTTLE_METRICS=off`,
the path responds with 404 and the reason. With `AUTOGLM_THROTTLE_METRICS=prometheus` the start fails instead.
To serve them with your own metrics, register `collector(throttle)` in your registry.

A mount redirects `/metrics` with a 307 to `/metrics/`. Prometheus follows it. For other scrapers use the path
with the slash, or a route instead of the mount, with `Route` from `starlette.routing`:
`app.router.routes.append(Route("/metrics", metrics_app(throttle)))`.

- Counts are exact: plain integers, read at the scrape. A scrape never waits for a GPU.
- An unknown value has no series. It is absent, never 0: a lost device has no utilization,
  and a device has no series once its measurement is older than `gpu_blind_after_s`.
- In a state set exactly one series is 1 and the others are 0. In `gpu_throttle` several may be 1, or none.
- The label `gpu` is the device index, on another host with the name of that host (`node-7/0`). A MIG
  instance has 100 x (device + 1) + slot. `engine` is host and port. `gpu_info` maps each index to its device.
- With several workers, counts and loads are their totals: see the next section.
- A charge made by `Depends(limit(...))` counts as a request of its own.

## Several workers

Behind one port a scrape reaches one of the workers, not always the same. With `AUTOGLM_THROTTLE_WORKERS`
above 1, or in a fleet, the workers of one host share their counts once in 5 s, through files in a folder of
the system's temporary files that only their user may enter. `metrics_app` then answers with totals:

- Counters and histograms are the sums over all workers, as of at most 5 s ago. Those of ended workers stay.
- So are the gauges of requests: `active_requests`, `queued_requests`, `inflight_requests`, `inflight_limit`,
  `paused_requests`, `service_rate` and those of work classes. A worker silent for 15 s has no load.
- All other metrics are those of the worker that answers. Of GPUs and engines all workers read the same.

Workers belong together if they have the same parent process, user and `SERVICE`, as those of uvicorn,
gunicorn, hypercorn and granian have. Where no folder can be made, each reports itself, and the log says so.

For the figures of each worker, or where they do not share a host, give each its own port, and scrape all:

```python
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from autoglm_throttle import Throttle, ThrottleMiddleware
from autoglm_throttle.observe import collector
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, start_http_server

PORTS = range(9100, 9104)  # one for each worker
throttle = Throttle.from_env()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    registry = CollectorRegistry()
    registry.register(collector(throttle))
    for port in PORTS:
        try:
            server, thread = start_http_server(port, "127.0.0.1", registry)
            break
        except OSError:  # another worker has it
            continue
    else:
        raise RuntimeError("more workers than ports")
    yield
    server.shutdown()
    server.server_close()
    thread.join()


app = FastAPI(lifespan=lifespan)
app.add_middleware(ThrottleMiddleware, throttle=throttle)
```

Queries then add up the workers: `sum by (priority) (autoglm_throttle_active_requests)`.
A worker that replaces another takes its port, and its counters start at 0, as after a restart.

The multi-process mode of prometheus-client (`PROMETHEUS_MULTIPROC_DIR`) does not work: it adds only its own
kinds of metrics and omits collectors. If the variable is set, a warning reports it.

## All metrics

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def _rows() -> Iterator[str]:
    for spec in METRICS:
        name = spec.name + ("_total" if spec.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in spec.labels) or "-"
        yield f"| `{name}` | {spec.kind} | {labels} | {spec.help} |\n"


def metrics_page() -> str:
    """Return the page, in Markdown."""
    edges = ", ".join(f"{edge:g}" for edge in DURATION_BUCKETS_S)
    return _HEAD + "".join(_rows()) + f"\nBuckets of the histograms, in seconds: {edges}.\n"


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
