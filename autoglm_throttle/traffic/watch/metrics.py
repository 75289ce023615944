"""Reads the metrics of a service that uses this library, at ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from autoglm_throttle.gpu.exposition import MalformedExpositionError, Series, parse
from autoglm_throttle.gpu.http_page import Deadline, HttpPage, WrongStatusError, fetch
from autoglm_throttle.settings.gpu_items import ScrapeUrl, parse_items
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.types import ProviderUnavailable

TIMEOUT_S: Final = 2.0
"""A service under load may answer late; an answer after two seconds belongs to another second."""

REDIRECTS: Final = frozenset((301, 302, 307, 308))

PREFIX: Final = "autoglm_throttle_"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


NUMBERS: Final[tuple[tuple[str, str, Callable[[list[float]], float]], ...]] = (
    ("factor_ratio", "factor_ratio", min),
    ("inflight", "active_requests", sum),
    ("inflight", "inflight_requests", sum),
    ("waiting", "queued_requests", sum),
    ("gpu_utilization_ratio", "gpu_utilization_ratio", _mean),
    ("gpu_power_w", "gpu_power_watts", sum),
)
"""Number of the report, name of the metric, and function that aggregates its series.

The last one present counts: policy ``fixed`` has no adaptive limiter, and so no ``inflight_requests``.
"""

_USED: Final = PREFIX + "gpu_memory_used_bytes"
_TOTAL: Final = PREFIX + "gpu_memory_total_bytes"
WANTED: Final = (*(PREFIX + metric for _, metric, _ in NUMBERS), _USED, _TOTAL)


class MetricsProbe:
    """Probes the metrics page of a service.

    Args:
        url: of the page; without a path ``/metrics``.
        clock: monotonic seconds.

    Raises:
        TrafficError: an invalid URL.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = _parse(url)
        self.name: str = f"metrics of {self._url.place}"
        self._clock = clock
        self._path = self._url.path or "/metrics"

    def sample(self, now: float) -> dict[str, float]:  # noqa: ARG002 - the page is of the time of its answer
        """Read the numbers of the page.

        Raises:
            ProviderUnavailable: it cannot be read.
        """
        try:
            series = parse(_wanted_lines(self._page()))
        except MalformedExpositionError as error:
            raise ProviderUnavailable(str(error)) from None
        values = numbers(series)
        if not values:
            raise ProviderUnavailable("has no metrics of this library")
        return values

    def check(self) -> None:
        """Read the page once before a run.

        Raises:
            TrafficError: it cannot be read, so the run would have no samples either.
        """
        try:
            self.sample(0.0)
        except ProviderUnavailable as error:
            raise TrafficError(f"--metrics: {self.name} {error}") from None

    def _page(self) -> HttpPage:
        """Fetch the page; remember a trailing slash that a mounted application requires by a redirect."""
        deadline = Deadline(TIMEOUT_S, self._clock)
        query = f"?{self._url.query}" if self._url.query else ""
        try:
            return fetch(self._url, self._path + query, deadline)
        except WrongStatusError as answer:
            if answer.status not in REDIRECTS or self._path.endswith("/"):
                raise
        page = fetch(self._url, f"{self._path}/{query}", deadline)
        self._path += "/"
        return page


def _parse(url: str) -> ScrapeUrl:
    try:
        (item,) = parse_items([f"dcgm:{url}"])
    except ValueError as error:
        raise TrafficError(str(error).partition(": ")[2]) from None
    if item.url is None:  # pragma: no cover - scraped kinds always have one
        raise TrafficError("not a URL")
    return item.url


def _wanted_lines(page: HttpPage) -> str:
    """Return only the needed lines: there may be thousands of others, and parsing blocks the generator."""
    lines = page.body.decode("utf-8", "replace").split("\n")[:-1]
    return "".join(f"{line}\n" for line in lines if line.startswith(WANTED))


def numbers(series: Iterable[Series]) -> dict[str, float]:
    """Extract the numbers of the report from the series; NaN is left out."""
    found: dict[str, list[float]] = {}
    for one in series:
        # NaN is unequal to itself.
        if one.value == one.value:
            found.setdefault(one.name, []).append(one.value)
    values = {
        name: join(found[PREFIX + metric]) for name, metric, join in NUMBERS if PREFIX + metric in found
    }
    total = sum(found.get(_TOTAL, ()))
    if total > 0.0 and _USED in found:
        values["gpu_memory_ratio"] = sum(found[_USED]) / total
    return values
