"""Provides samples read over HTTP: dcgm-exporter, a Prometheus server, vLLM, SGLang."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autoglm_throttle.gpu import dcgm, engines, prometheus
from autoglm_throttle.gpu.exposition import Malformed, Series, parse
from autoglm_throttle.gpu.fetch import Deadline, Page, WrongStatus, fetch
from autoglm_throttle.gpu.renewal import Renewal, Told
from autoglm_throttle.model import ProviderMisconfigured, ProviderUnavailable

if TYPE_CHECKING:
    from autoglm_throttle.model import Clock, GpuSample
    from autoglm_throttle.settings.gpu_items import ScrapeUrl

TIMEOUT_S: Final = 2.0
"""Limit of one reading, all queries together. It is shorter than the 3 s after which a sample is stale, so
that a hung server is reported before its numbers expire.
"""

DEFAULT_PATH: Final = "/metrics"

NAMES_SHOWN: Final = 10

MOST_DEVICES: Final = 1024
"""Maximum devices of one address; more is a fault or an attack, and joining them would hold up requests."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """Source to read, and its options.

    Args:
        kind: ``dcgm``, ``prometheus``, ``vllm`` or ``sglang``.
        url: address of the server.
        selector: PromQL label matchers; for ``prometheus``.
        timeout_s: for one reading.
    """

    kind: str
    url: ScrapeUrl
    selector: str = ""
    timeout_s: float = TIMEOUT_S


class ScrapeProvider:
    """Reads one address. Each reading is a connection of its own.

    Args:
        scrape: the source.
        name: source of the samples; None: kind, host and port. Never shows a login, path or query.
        clock: monotonic seconds.
        wall: Unix seconds, for numbers that come with a time.
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
        read, min_interval_s = _KINDS[scrape.kind]
        self._read = read
        self.min_interval_s: float = min_interval_s
        self._scrape = scrape
        self._clock = clock
        self._wall = wall
        self._renewal = Renewal()

    def __repr__(self) -> str:
        return f"ScrapeProvider({self.name})"

    def read(self) -> Sequence[GpuSample]:
        """Read all devices of the address.

        Raises:
            ProviderUnavailable: no answer in time, or an unexpected one.
            ProviderMisconfigured: the server reports that the query, and so ``GPU_SELECTOR``, is wrong.
        """
        visit = _Visit(self._scrape, self.name, self._clock, self._wall)
        try:
            told, wall_s = self._read(visit)
        except ProviderMisconfigured as error:
            raise ProviderMisconfigured(f"{self.name}: {error}") from error
        except (ProviderUnavailable, Malformed) as error:
            raise ProviderUnavailable(f"{self.name} {error}") from error
        if self._scrape.kind in engines.PRESETS:
            return [row.sample for row in told]
        told = list(told)
        if len(told) > MOST_DEVICES:
            raise ProviderUnavailable(
                f"{self.name} tells of {len(told)} cards; at most {MOST_DEVICES} are read"
            )
        return self._renewal.date(told, visit.ended_s, wall_s)

    def close(self) -> None:
        """Do nothing: no connection stays open, and the learned period stays valid."""

    def forget(self) -> None:
        """Do nothing, as above."""


class _Visit:
    """State of one reading."""

    def __init__(self, scrape: Scrape, name: str, clock: Clock, wall: Clock) -> None:
        self.scrape = scrape
        self.name = name
        self.wall = wall
        self.ended_s = 0.0
        self._clock = clock
        self._deadline = Deadline(scrape.timeout_s, clock)

    def get(self, target: str) -> Page:
        page = fetch(self.scrape.url, target, self._deadline)
        self.ended_s = self._clock()
        if page.body[:64].lstrip().lower().startswith((b"<!doctype html", b"<html")):
            raise Malformed("answers with a web page, not with metrics")
        return page

    def series(self) -> list[Series]:
        """Fetch and parse the page of metrics."""
        url = self.scrape.url
        path = DEFAULT_PATH if url.path in {"", "/"} else url.path
        page = self.get(f"{path}?{url.query}" if url.query else path)
        try:
            return parse(page.body.decode("utf-8"), openmetrics=page.openmetrics)
        except UnicodeDecodeError:
            raise Malformed("tells no text in UTF-8") from None
        except Malformed as error:
            raise Malformed(f"tells no metrics: {error}") from None


_Reading = tuple[Iterable[Told], float]
"""Rows, and the time of the reading by the clock of their stamps."""


def _cards(visit: _Visit) -> _Reading:
    series = visit.series()
    host = "" if engines.is_here(visit.scrape.url.place) else visit.scrape.url.place
    told = dcgm.cards(series, source=visit.name, now=visit.ended_s, host=host)
    if told is None:
        raise _nothing_known("dcgm-exporter", series)
    return told, visit.wall()


def _engine(visit: _Visit) -> _Reading:
    series = visit.series()
    preset = engines.PRESETS[visit.scrape.kind]
    told = engines.engine(
        series, preset, source=visit.name, now=visit.ended_s, place=visit.name.partition(":")[2]
    )
    if told is None:
        raise _nothing_known(preset.name, series)
    return [told], visit.wall()


def _fleet(visit: _Visit) -> _Reading:
    scrape = visit.scrape
    try:
        values = visit.get(prometheus.target(scrape.url.path, prometheus.values_query(scrape.selector)))
        times = visit.get(prometheus.target(scrape.url.path, prometheus.times_query(scrape.selector)))
    except WrongStatus as error:
        kind, text = prometheus.complaint(error.start)
        if kind == "bad_data":
            raise ProviderMisconfigured(f"GPU_SELECTOR is refused: {text!a:.200}") from error
        raise
    try:
        series, wall_s = prometheus.read(values.body, times.body)
    except Malformed as error:
        raise Malformed(f"tells no metrics: {error}") from None
    told = dcgm.cards(series, source=visit.name, now=visit.ended_s)
    if told is None:
        chosen = f" with {scrape.selector}" if scrape.selector else ""
        raise ProviderUnavailable(f"knows no series of dcgm-exporter{chosen}")
    return told, wall_s


def _nothing_known(whose: str, series: Sequence[Series]) -> ProviderUnavailable:
    names = list(dict.fromkeys(one.name for one in series))
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    there = ", ".join(ascii(name)[1:-1][:60] for name in names[:NAMES_SHOWN]) + more
    return ProviderUnavailable(
        f"tells no name of {whose}; {f'it tells {there}' if names else 'it tells nothing'}"
    )


_KINDS: Final[Mapping[str, tuple[Callable[[_Visit], _Reading], float]]] = {
    "dcgm": (_cards, 1.0),
    "prometheus": (_fleet, 1.0),
    "vllm": (_engine, 0.2),
    "sglang": (_engine, 0.2),
}
"""Kind -> reader, and the shortest interval. An exporter collects every 30 s by default. It is still read
each
second: a new measurement then appears within a second, and costs the exporter one page.
"""
