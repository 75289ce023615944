"""The NVML provider on the cards of this machine, where it has any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autoglm_throttle.gpu.none import NotPresent
from autoglm_throttle.gpu.nvml import NvmlProvider

pytestmark = pytest.mark.gpu


@pytest.fixture
def provider() -> Iterator[NvmlProvider]:
    provider = NvmlProvider()
    try:
        provider.read()
    except NotPresent as error:
        pytest.skip(f"no real GPU: {error}")
    yield provider
    provider.close()


def test_every_card_tells_what_can_be_true(provider: NvmlProvider) -> None:
    rows = provider.read()
    assert len({row.device for row in rows}) == len(rows) > 0
    for row in rows:
        assert row.utilization_pct is None or 0.0 <= row.utilization_pct <= 100.0
        if row.memory_used_bytes is not None and row.memory_total_bytes is not None:
            assert 0 <= row.memory_used_bytes <= row.memory_total_bytes
        assert row.power_w is None or 0.0 <= row.power_w < 2000.0
        assert row.temperature_c is None or 0.0 < row.temperature_c < 130.0


def test_a_later_reading_is_of_the_same_cards_and_younger(provider: NvmlProvider) -> None:
    first, second = provider.read(), provider.read()
    assert [row.device for row in first] == [row.device for row in second]
    assert all(later.taken_at_s >= row.taken_at_s for row, later in zip(first, second, strict=True))
