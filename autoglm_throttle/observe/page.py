"""The page of the documentation that lists the metrics, made from the table of metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.snapshot import DURATION_BUCKETS_S

_HEAD: Final = """\
# Metrics

<!-- Made by `python -m autoglm_throttle.observe > docs/metrics.md`; change the table METRICS instead. -->

`metrics_app(throttle)` serves them in the formats of Prometheus and OpenMetrics:

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
the path answers 404 and says why; with `AUTOGLM_THROTTLE_METRICS=prometheus` the start fails instead.
To serve them beside metrics of your own, register `collector(throttle)` in your registry.

- Counts are exact: plain integers, read at the scrape. A scrape never waits for a GPU.
- A value that is not known has no series. It is absent, never 0: a lost device has no utilization,
  and once telemetry is blind no device has one.
- In the state sets exactly one series is 1 and the others are 0.
- Each worker process answers for itself, so with several workers give each a port of its own, or scrape one
  worker. The multi-process mode of prometheus-client leaves custom collectors out; a warning says so where
  `PROMETHEUS_MULTIPROC_DIR` is set.
- A charge made by `Depends(limit(...))` counts as a request of its own.

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def _rows() -> Iterator[str]:
    for spec in METRICS:
        name = spec.name + ("_total" if spec.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in spec.labels) or "-"
        yield f"| `{name}` | {spec.kind} | {labels} | {spec.help} |\n"


def metrics_page() -> str:
    """The page, in Markdown."""
    edges = ", ".join(f"{edge:g}" for edge in DURATION_BUCKETS_S)
    return _HEAD + "".join(_rows()) + f"\nBuckets of the histograms, in seconds: {edges}.\n"
