"""Automatic choice of a source, made on the sampler's thread, never in the caller.

A driver can be tested only by opening it, and some drivers hang in that call.
So the choice is a provider itself, and the first ``read`` makes it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from autoglm_throttle.gpu.provider_errors import NoSourceError, NotPresentError, PackageMissingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoglm_throttle.types import GpuProvider, GpuSample

_log = logging.getLogger("autoglm_throttle")

DRIVER = Path("/dev/nvidiactl")
"""Exists while NVIDIA's driver is loaded on Linux. A missing package is then logged as a warning."""


class AutoProvider:
    """Uses the first of several providers that finds anything to read.

    A candidate without driver, device or package is skipped. A candidate with a driver that does not work
    is chosen: there is a GPU, and its telemetry is blind. The choice is final once made, so that a lost
    source is not mistaken for a missing one.

    Args:
        candidates: providers in the order of preference.
    """

    def __init__(self, candidates: Sequence[GpuProvider]) -> None:
        self.name: str = "auto"
        self.min_interval_s: float = max((one.min_interval_s for one in candidates), default=0.0)
        self._candidates = tuple(candidates)
        self._selected: GpuProvider | None = None
        self._tried = ""

    def __repr__(self) -> str:
        return f"AutoProvider({self._selected or self._tried or 'not tried yet'})"

    def read(self) -> Sequence[GpuSample]:
        """Read the chosen source; choose one first if there is none yet.

        Raises:
            NoSourceError: no candidate has anything to read.
            ProviderUnavailable: the source is there and cannot be read now.
            ProviderMisconfigured: it is there and can never be read as configured.
        """
        if self._selected is not None:
            return self._selected.read()
        tried = []
        level = logging.INFO
        for candidate in self._candidates:
            try:
                rows = candidate.read()
            except (NotPresentError, PackageMissingError) as error:
                candidate.close()
                if isinstance(error, PackageMissingError) and DRIVER.exists():
                    level = logging.WARNING
                tried.append(f"{candidate.name}: {error}")
            else:
                self._selected, self.name = candidate, candidate.name
                return rows
        text = "; ".join(tried)
        # Log only a changed result: the sampler retries once a minute.
        if text != self._tried:
            self._tried = text
            _log.log(level, "GPU telemetry: no source found (%s)", text)
        raise NoSourceError(f"no GPU found ({text})")

    def close(self) -> None:
        """Close every candidate."""
        for candidate in self._candidates:
            candidate.close()

    def reset_after_fork(self) -> None:
        """Drop the handles of every candidate, without a driver call."""
        for candidate in self._candidates:
            candidate.reset_after_fork()
