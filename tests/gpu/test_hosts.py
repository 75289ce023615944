"""Devices of several hosts through one Prometheus server: a vanished host is lost, and never idle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from autoglm_throttle import TelemetryState
from autoglm_throttle.gpu.scrape.exposition import Series
from tests.gpu.metrics_server import BadServer, served
from tests.gpu.prometheus_server import PrometheusServer
from tests.gpu.throttled_service import START_S, WALL_S, Service, of_settings

SCRAPED_EVERY_S = 5
FORGET_S = 60


class Fleet:
    """Two hosts with two devices each, scraped by one server every five seconds."""

    def __init__(self, server: BadServer, **settings: Any) -> None:
        self.utilization_pct = {"one": 80.0, "two": 80.0}
        self.prometheus = PrometheusServer()
        server.answer = self.prometheus
        self.service: Service = of_settings(f"prometheus:{server.url()}", gpu_forget_s=FORGET_S, **settings)
        self._second = 0

    def seconds(self, number: int, *hosts: str) -> list[float]:
        """Scrape these hosts for some seconds; returns the factor at each."""
        factors = []
        for _ in range(number):
            self.prometheus.now = WALL_S + self.service.clock() - START_S + 1.0
            if self._second % SCRAPED_EVERY_S == 0:
                self._scrape(hosts)
            self._second += 1
            factors.append(self.service.tick().factor)
        return factors

    def _scrape(self, hosts: tuple[str, ...]) -> None:
        self.prometheus.series.clear()
        for host in hosts:
            for device in range(2):
                labels = {"UUID": f"GPU-{host}-{device}", "gpu": str(device), "Hostname": host}
                util = Series("DCGM_FI_DEV_GPU_UTIL", labels, self.utilization_pct[host], None)
                energy = Series("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", labels, self._second * 3e5, None)
                self.prometheus.scraped([util, energy])

    @property
    def health(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for row in self.service.throttle.snapshot().devices:
            found.setdefault(row.host, set()).add(row.health)
        return found


@pytest.fixture
def server() -> Iterator[BadServer]:
    with served() as one:
        yield one


def test_all_hosts_are_one_view(server: BadServer) -> None:
    fleet = Fleet(server)
    fleet.seconds(30, "one", "two")
    assert fleet.health == {"one": {"ok"}, "two": {"ok"}}
    assert fleet.service.throttle.control_state().telemetry is TelemetryState.FRESH
    fleet.utilization_pct = {"one": 100.0, "two": 76.0}
    assert fleet.seconds(20, "one", "two")[-1] == 0.7, "the mean is 88 %"


def test_vanished_host_is_lost_then_removed(server: BadServer) -> None:
    fleet = Fleet(server)
    fleet.seconds(30, "one", "two")
    factors = fleet.seconds(FORGET_S, "one")
    assert fleet.health == {"one": {"ok"}, "two": {"lost"}}
    assert factors == [0.5] * FORGET_S
    view = fleet.service.throttle.snapshot().view
    assert view is not None
    assert view.utilization_pct == 80.0, "not a mean with 0 %"
    factors = fleet.seconds(3 * SCRAPED_EVERY_S, "one")
    assert fleet.health == {"one": {"ok"}}
    assert factors[-1] == 1.0


def test_a_hot_host_that_vanishes_releases_nothing(server: BadServer) -> None:
    fleet = Fleet(server)
    fleet.utilization_pct = {"one": 80.0, "two": 100.0}
    assert fleet.seconds(40, "one", "two")[-1] == 0.7
    assert max(fleet.seconds(FORGET_S, "one")) <= 0.5


def test_a_host_that_is_back_counts_again(server: BadServer) -> None:
    fleet = Fleet(server)
    fleet.seconds(30, "one", "two")
    fleet.seconds(20, "one")
    factors = fleet.seconds(4 * SCRAPED_EVERY_S, "one", "two")
    assert set(factors[: 2 * SCRAPED_EVERY_S]) == {0.5}, "each second a view, but no new sample"
    assert factors[-1] == 1.0
    assert fleet.health == {"one": {"ok"}, "two": {"ok"}}


def test_the_last_host_that_vanishes_is_an_outage_for_as_long(server: BadServer) -> None:
    """No series at all is a failure of the source, not a loss of the devices."""
    fleet = Fleet(server, gpu_unknown="last")
    fleet.seconds(30, "one", "two")
    fleet.seconds(40)
    assert fleet.service.throttle.control_state().telemetry in {TelemetryState.STALE, TelemetryState.BLIND}
    assert fleet.service.throttle.control_state().factor == 1.0
    assert fleet.service.throttle.snapshot().ready


def test_dead_host_still_listed_by_server_is_stale(server: BadServer) -> None:
    """A server returns an ended series for five minutes; its timestamp shows the age."""
    fleet = Fleet(server)
    fleet.seconds(30, "one", "two")
    old = [one for one in fleet.prometheus.series if one.labels["Hostname"] == "two"]
    fleet.utilization_pct["one"] = 99.0
    for _ in range(6):
        fleet.seconds(1, "one")
        fleet.prometheus.series += old
        fleet.seconds(4, "one")
    view = fleet.service.throttle.snapshot().view
    assert view is not None
    assert view.utilization_pct == 99.0, "what is old leaves the mean"
    assert view.capacity == 1.0, "and not the capacity: nobody says that it is gone"
