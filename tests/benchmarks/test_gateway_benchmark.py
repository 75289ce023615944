"""The benchmark of the gateway: a short run over real processes, and its bars."""

from __future__ import annotations

import pytest

from benchmarks import gateway


def seen(ratio: float, left_ms: float, *, spread: float = 1.0) -> dict[str, list[float]]:
    control = [100.0, 100.0 * spread]
    throughput = {f"bare {column}": control for column in ("requests/s", "events/s")}
    throughput |= {
        f"gateway {column}": [ratio * value for value in control] for column in ("requests/s", "events/s")
    }
    return {**throughput, "bare left ms": [3.0], "gateway left ms": [left_ms, 2.0]}


@pytest.mark.parametrize(
    ("ratio", "left_ms", "spread", "verdicts"),
    [
        (0.95, 20.0, 1.0, ["met", "met", "met"]),
        (0.85, 120.0, 1.0, ["MISSED", "MISSED", "MISSED"]),
        (0.85, 20.0, 2.0, ["not judged, noisy machine", "not judged, noisy machine", "met"]),
    ],
)
def test_bars_compare_with_the_bare_proxy(
    ratio: float, left_ms: float, spread: float, verdicts: list[str]
) -> None:
    assert [bar.verdict for bar in gateway.bars(seen(ratio, left_ms, spread=spread))] == verdicts


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.untraced
@pytest.mark.xdist_group("load")
def test_short_run_measures_both_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SECONDS": 0.2, "WARM_UP_S": 0.1, "STREAMS": 1, "LEFT": 2, "CONNECTIONS": 4}.items():
        monkeypatch.setattr(gateway, name, value)
    found = gateway.measure_all(1)
    assert set(found) == {f"{name} {column}" for name in gateway.PROXIES for column in gateway.COLUMNS}
    assert all(len(values) == 1 and values[0] >= 0.0 for values in found.values())
    assert all(found[f"{name} events/s"][0] > 0.0 for name in gateway.PROXIES)
