"""Selects the controller of a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from autoglm_throttle.control.adaptive import AdaptiveController
from autoglm_throttle.control.controller import Controller, ControlRules
from autoglm_throttle.control.nominal import ConcurrencyController, FixedController
from autoglm_throttle.control.tiers import TierController
from autoglm_throttle.types import Policy

_CONTROLLERS: Final[Mapping[Policy, Callable[[ControlRules, float], Controller]]] = {
    Policy.ADAPTIVE: AdaptiveController,
    Policy.TIERS: TierController,
    Policy.CONCURRENCY: ConcurrencyController,
    Policy.FIXED: FixedController,
}


def controller(rules: ControlRules, now: float) -> Controller:
    """Build the controller of ``rules.policy``; telemetry counts as starting at ``now``, in monotonic s."""
    return _CONTROLLERS[rules.policy](rules, now)
