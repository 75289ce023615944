"""The benchmark of the second tier: a short run on a real nginx, and its bars."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import nginx
from tests.servers.nginx_server import needs_nginx


@pytest.mark.parametrize(
    ("tier_us", "limited_us", "most_rps", "verdicts"),
    [
        (11.0, 5.0, 104.0, ["met", "met", "met", "met"]),
        (12.0, 7.0, 106.0, ["MISSED", "MISSED", "met", "MISSED"]),
    ],
)
def test_bars_compare_with_the_plain_proxy(
    tier_us: float, limited_us: float, most_rps: float, verdicts: list[str]
) -> None:
    found: dict[str, Any] = {
        "least_us": {"plain": 10.0, "tier": tier_us, "limited": limited_us, "closed": 4.0},
        "rates": [{"rate_rps": 100.0, "least_rps": 100.0, "most_rps": most_rps}],
    }
    assert [bar.verdict for bar in nginx.bars(found)] == verdicts


@needs_nginx
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.untraced
@pytest.mark.xdist_group("load")
def test_short_run_measures_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"REQUESTS": 50, "WARM_UP": 5, "SECONDS": 0.2}.items():
        monkeypatch.setattr(nginx, name, value)
    seen = nginx.measure_cost(1)
    assert set(seen) == set(nginx.ROWS)
    assert all(us > 0.0 for (us,) in seen.values())
    rates = nginx.measure_rates()
    assert [row["rate_rps"] for row in rates] == [100.0, 70.0, 40.0]
    assert all(row["least_rps"] > 0.0 for row in rates)
