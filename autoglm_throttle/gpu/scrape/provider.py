"""Provides samples read over HTTP: dcgm-exporter, a Prometheus server, vLLM, SGLang."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.gpu.scrape import dcgm, engines, prometheus
from autoglm_throttle.gpu.scrape.exposition import MalformedExpositionError, Series, parse
from autoglm_throttle.gpu.scrape.freshness import RefreshDetector, RefreshInfo
from autoglm_throttle.gpu.scrape.http import Deadline, HttpPage, WrongStatusError, fetch
from autoglm_throttle.settings.groups.gpu import ScrapeUrl
from autoglm_throttle.types import Clock, GpuSample, ProviderMisconfigured, ProviderUnavailable

# Limit of one reading, all queries together: a hang is reported before its numbers expire, after 3 s.
TIMEOUT_S: Final = 2.0

DEFAULT_PATH: Final = "/metrics"

NAMES_SHOWN: Final = 10

# Maximum devices of one address; more is a fault or an attack, and joining them would hold up requests.
MOST_DEVICES: Final = 1024


@dataclass(frozen=True, slots=True)
class Scrape:
    """Source to read, and its options."""

    kind: str  # ``dcgm``, ``prometheus``, ``vllm`` or ``sglang``
    url: ScrapeUrl
    selector: str = ""  # PromQL label matchers; for ``prometheus``
    timeout_s: float = TIMEOUT_S


class ScrapeProvider:
    """Reads one address. Each reading is a connection of its own.

    The name, by default kind, host and port, never shows a login, path or query. ``wall`` returns Unix
    seconds, for numbers that come with a time.
    """

    def __init__(
        self,
        scrape: Scrape,
        *,
        name: str | None = None,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        self.name: str = name or f"{scrape.kind}:{scrape.url.place}"
        self.min_interval_s: float
        self._read, self.min_interval_s = _KINDS[scrape.kind]
        self._scrape = scrape
        self._clock = clock
        self._wall = wall
        self._refresh_detector = RefreshDetector()

    def __repr__(self) -> str:
        return f"ScrapeProvider({self.name})"

    def read(self) -> Sequence[GpuSample]:
        """Read all devices of the address; misconfigured: the server rejects ``GPU_SELECTOR``."""
        run = _ScrapeRun(self._scrape, self.name, self._clock, self._wall)
        try:
            infos, wall_s = self._read(run)
        except ProviderMisconfigured as error:
            raise ProviderMisconfigured(f"{self.name}: {error}") from error
        except (ProviderUnavailable, MalformedExpositionError) as error:
            raise ProviderUnavailable(f"{self.name} {error}") from error
        if self._scrape.kind in engines.PRESETS:
            return [row.sample for row in infos]
        infos = list(infos)
        if len(infos) > MOST_DEVICES:
            many = f"{self.name} reports {len(infos)} devices; at most {MOST_DEVICES} are read"
            raise ProviderUnavailable(many)
        return self._refresh_detector.date(infos, run.ended_s, wall_s)

    def close(self) -> None:
        """Do nothing: no connection stays open, and the learned period stays valid."""

    def reset_after_fork(self) -> None:
        """Do nothing, as above."""


class _ScrapeRun:
    """State of one reading."""

    def __init__(self, scrape: Scrape, name: str, clock: Clock, wall: Clock) -> None:
        self.scrape = scrape
        self.name = name
        self.wall = wall
        self.ended_s = 0.0
        self._clock = clock
        self._deadline = Deadline(scrape.timeout_s, clock)

    def get(self, target: str) -> HttpPage:
        page = fetch(self.scrape.url, target, self._deadline)
        self.ended_s = self._clock()
        if page.body[:64].lstrip().lower().startswith((b"<!doctype html", b"<html")):
            raise MalformedExpositionError("answers with a web page, not with metrics")
        return page

    def series(self) -> list[Series]:
        """Fetch and parse the page of metrics."""
        url = self.scrape.url
        path = DEFAULT_PATH if url.path in {"", "/"} else url.path
        page = self.get(f"{path}?{url.query}" if url.query else path)
        try:
            return parse(page.body.decode("utf-8"), openmetrics=page.openmetrics)
        except UnicodeDecodeError:
            raise MalformedExpositionError("returns no text in UTF-8") from None
        except MalformedExpositionError as error:
            raise MalformedExpositionError(f"returns no metrics: {error}") from None


_ScrapeResult = tuple[Iterable[RefreshInfo], float]


def _read_dcgm(run: _ScrapeRun) -> _ScrapeResult:
    series = run.series()
    host = "" if engines.is_reachable(run.scrape.url.place) else run.scrape.url.place
    infos = dcgm.parse_devices(series, source=run.name, now=run.ended_s, host=host)
    if infos is None:
        raise _no_known_metric("dcgm-exporter", series)
    return infos, run.wall()


def _read_engine(run: _ScrapeRun) -> _ScrapeResult:
    series = run.series()
    preset, place = engines.PRESETS[run.scrape.kind], run.name.partition(":")[2]
    info = engines.parse_engine(series, preset, source=run.name, now=run.ended_s, place=place)
    if info is None:
        raise _no_known_metric(preset.name, series)
    return [info], run.wall()


def _read_prometheus(run: _ScrapeRun) -> _ScrapeResult:
    scrape = run.scrape
    try:
        values = run.get(prometheus.target(scrape.url.path, prometheus.values_query(scrape.selector)))
        times = run.get(prometheus.target(scrape.url.path, prometheus.times_query(scrape.selector)))
    except WrongStatusError as error:
        kind, text = prometheus.server_error(error.start)
        if kind == "bad_data":
            raise ProviderMisconfigured(f"GPU_SELECTOR is rejected: {text!a:.200}") from error
        raise
    try:
        series, wall_s = prometheus.read(values.body, times.body)
    except MalformedExpositionError as error:
        raise MalformedExpositionError(f"returns no metrics: {error}") from None
    infos = dcgm.parse_devices(series, source=run.name, now=run.ended_s)
    if infos is None:
        chosen = f" with {scrape.selector}" if scrape.selector else ""
        raise ProviderUnavailable(f"knows no series of dcgm-exporter{chosen}")
    return infos, wall_s


def _no_known_metric(producer: str, series: Sequence[Series]) -> ProviderUnavailable:
    names = list(dict.fromkeys(one.name for one in series))
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    listed = ", ".join(ascii(name)[1:-1][:60] for name in names[:NAMES_SHOWN]) + more
    present = f"it has {listed}" if names else "it has no metrics"
    return ProviderUnavailable(f"has no metric of {producer}; {present}")


# Kind -> reader, and the shortest interval: new numbers of an exporter appear within a second.
_KINDS: Final[Mapping[str, tuple[Callable[[_ScrapeRun], _ScrapeResult], float]]] = {
    "dcgm": (_read_dcgm, 1.0),
    "prometheus": (_read_prometheus, 1.0),
    "vllm": (_read_engine, 0.2),
    "sglang": (_read_engine, 0.2),
}
