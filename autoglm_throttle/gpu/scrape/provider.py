"""Provides samples read over HTTP: dcgm-exporter, a Prometheus server, inference engines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from autoglm_throttle.gpu.scrape import dcgm, engines, prometheus
from autoglm_throttle.gpu.scrape.exposition import MalformedExpositionError, Series, parse
from autoglm_throttle.gpu.scrape.freshness import DatedRow, RefreshDetector
from autoglm_throttle.gpu.scrape.http import Deadline, WrongStatusError, fetch
from autoglm_throttle.settings.groups.gpu import ScrapeUrl
from autoglm_throttle.types import Clock, GpuSample, ProviderMisconfigured, ProviderUnavailable

# Limit of one reading, all queries together: a hang is reported before its numbers expire, after 3 s.
TIMEOUT_S: Final = 2.0
DEFAULT_PATH: Final = "/metrics"
TRTLLM_PATH: Final = "/prometheus/metrics"  # trtllm-serve returns JSON at /metrics
NAMES_SHOWN: Final = 10
# Maximum devices of one address; more is a fault or an attack, and joining them would hold up requests.
MOST_DEVICES: Final = 1024


class ScrapeProvider:
    """Reads one address: of a ``dcgm`` exporter, a ``prometheus`` server, an engine such as ``vllm``.

    The name, by default kind, host and port, never shows a login, path or query. ``selector`` are PromQL
    label matchers; ``wall`` returns Unix seconds.
    """

    def __init__(
        self,
        kind: str,
        url: ScrapeUrl,
        *,
        selector: str = "",
        name: str | None = None,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        self.name: str = name or f"{kind}:{url.place}"
        # New numbers of an exporter appear within a second.
        self.min_interval_s: float = 0.2 if kind in engines.PRESETS else 1.0
        self._kind = kind
        self._url = url
        self._selector = selector
        self._clock = clock
        self._wall = wall
        self._ended_s = 0.0  # When the newest page was complete
        self._refresh_detector = RefreshDetector()

    def read(self) -> Sequence[GpuSample]:
        """Read all devices of the address; misconfigured: the server rejects ``GPU_SELECTOR``."""
        deadline = Deadline(TIMEOUT_S, self._clock)
        try:
            if self._kind in engines.PRESETS:
                return [self._read_engine(deadline)]
            read = self._read_prometheus if self._kind == "prometheus" else self._read_dcgm
            rows, wall_s = read(deadline)
        except ProviderMisconfigured as error:
            raise ProviderMisconfigured(f"{self.name}: {error}") from error
        except ProviderUnavailable as error:
            raise ProviderUnavailable(f"{self.name} {error}") from error
        except MalformedExpositionError as error:
            raise ProviderUnavailable(f"{self.name} returns no metrics: {error}") from error
        if len(rows) > MOST_DEVICES:
            many = f"{self.name} reports {len(rows)} devices; at most {MOST_DEVICES} are read"
            raise ProviderUnavailable(many)
        return self._refresh_detector.date(rows, self._ended_s, wall_s)

    def close(self) -> None:
        """Do nothing: no connection stays open, and the learned period stays valid."""

    def reset_after_fork(self) -> None:
        """Do nothing, as above."""

    def _read_engine(self, deadline: Deadline) -> GpuSample:
        series, place = self._series(deadline), self.name.partition(":")[2]
        row = engines.parse_engine(series, self._kind, source=self.name, now=self._ended_s, place=place)
        if row is None:
            raise _no_known_metric(self._kind, series)
        return row

    def _read_dcgm(self, deadline: Deadline) -> tuple[list[DatedRow], float]:
        series, place = self._series(deadline), self._url.place
        host = "" if engines.is_reachable(place) else place
        rows = dcgm.parse_devices(series, source=self.name, now=self._ended_s, host=host)
        if rows is None:
            raise _no_known_metric("dcgm-exporter", series)
        return rows, self._wall()

    def _read_prometheus(self, deadline: Deadline) -> tuple[list[DatedRow], float]:
        values, times = prometheus.targets(self._url.path, self._selector)
        try:
            pages = self._get(values, deadline)[0], self._get(times, deadline)[0]
        except WrongStatusError as error:
            kind, text = prometheus.server_error(error.start)
            if kind == "bad_data":
                raise ProviderMisconfigured(f"GPU_SELECTOR is rejected: {text!a:.200}") from error
            raise
        series, wall_s = prometheus.read(*pages)
        rows = dcgm.parse_devices(series, source=self.name, now=self._ended_s)
        found = engines.parse_instances(series, source=self.name, now=self._ended_s)
        if rows is None and not found:
            chosen = f" with {self._selector}" if self._selector else ""
            raise ProviderUnavailable(f"knows no series of dcgm-exporter or of an engine{chosen}")
        return [*(rows or ()), *found], wall_s

    def _get(self, target: str, deadline: Deadline) -> tuple[bytes, bool]:
        body, openmetrics = fetch(self._url, target, deadline)
        self._ended_s = self._clock()
        if body[:64].lstrip().lower().startswith((b"<!doctype html", b"<html")):
            raise ProviderUnavailable("answers with a web page, not with metrics")
        return body, openmetrics

    def _series(self, deadline: Deadline) -> list[Series]:
        url = self._url
        usual = TRTLLM_PATH if self._kind == "trtllm" else DEFAULT_PATH
        path = usual if url.path in {"", "/"} else url.path
        body, openmetrics = self._get(f"{path}?{url.query}" if url.query else path, deadline)
        try:
            return parse(body.decode("utf-8"), openmetrics=openmetrics)
        except UnicodeDecodeError:
            raise ProviderUnavailable("returns no text in UTF-8") from None


def _no_known_metric(producer: str, series: Sequence[Series]) -> ProviderUnavailable:
    names = list(dict.fromkeys(one.name for one in series))
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    listed = ", ".join(ascii(name)[1:-1][:60] for name in names[:NAMES_SHOWN]) + more
    present = f"it has {listed}" if names else "it has no metrics"
    return ProviderUnavailable(f"has no metric of {producer}; {present}")
