"""Commands of operators to one breaker."""

from __future__ import annotations


class OperatorOverride:
    """The part of an operator's command that lasts until the next one.

    Args:
        metrics_only: whether calls are admitted and rejections only counted.
        is_local: whether an operator has opened or disabled the breaker in this process, which only a command
            of an operator ends.
    """

    __slots__ = ("is_local", "metrics_only")

    def __init__(self, *, metrics_only: bool, is_local: bool = False) -> None:
        self.metrics_only: bool = metrics_only
        self.is_local: bool = is_local
