from __future__ import annotations

import pytest

from autoglm_throttle.limiting.shared.limits_window import LimitsWindow
from tests.shared.storages import PATIENT_S, Hands, OwnStorage


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(OwnStorage, "hands", hands, raising=False)
    return hands


@pytest.fixture
def window(hands: Hands) -> LimitsWindow:
    return LimitsWindow("async+own://", PATIENT_S)
