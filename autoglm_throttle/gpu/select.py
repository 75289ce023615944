"""Builds providers from the setting ``GPU``."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.gpu.nvml.provider import EXTRA, NvmlProvider
from autoglm_throttle.settings.groups.gpu import GpuSettings, ScrapeUrl, parse_items
from autoglm_throttle.types import Clock, GpuProvider, GpuSample
from autoglm_throttle.types.errors import NoSourceError, NotPresentError, PackageMissingError

_log = logging.getLogger("autoglm_throttle")
# Exists while NVIDIA's driver is loaded on Linux. A missing package is then logged as a warning.
DRIVER = Path("/dev/nvidiactl")


def providers(
    settings: GpuSettings, *, clock: Clock = time.monotonic, wall: Clock = time.time, manual: bool = False
) -> tuple[GpuProvider, ...]:
    """Make the sources of samples; calls no driver or server and opens no file.

    With ``manual`` a hang in a fake file gives no rows instead of waiting. Raises ``ValueError`` if ``nvml``
    lacks its package.
    """
    names: dict[str, int] = {}

    def made(kind: str, url: ScrapeUrl | None, file: str) -> GpuProvider:
        name = kind if url is None else f"{kind}:{url.place}"
        # Two engines may share a host and a port: from the second of its kind on a name has a number.
        names[name] = names.get(name, 0) + 1
        if names[name] > 1:
            name = f"{name}#{names[name]}"
        if url is not None:
            from autoglm_throttle.gpu.scrape.provider import ScrapeProvider

            selector = settings.gpu_selector
            return ScrapeProvider(kind, url, selector=selector, name=name, clock=clock, wall=wall)
        if kind == "fake":
            from autoglm_throttle.gpu.recorded import RecordedProvider

            hang: Callable[[float], object] | None = None if manual else time.sleep
            return RecordedProvider(file, clock=clock, name=name, hang=hang)
        nvml = NvmlProvider(settings.gpu_devices, clock=clock)
        if kind == "auto":
            return AutoProvider(nvml)
        if importlib.util.find_spec("pynvml") is None:
            raise ValueError(f"GPU=nvml needs the Python package nvidia-ml-py: {how_to_install(EXTRA)}")
        return nvml

    return tuple(made(*item) for item in parse_items(settings.gpu) if item[0] != "none")


class AutoProvider:
    """Uses NVML if it finds anything to read.

    Some drivers hang while they are opened, so this is found out at ``read``, on the sampler's thread. Once
    samples were read the choice is final, so that a lost source is not mistaken for a missing one.
    """

    def __init__(self, candidate: GpuProvider) -> None:
        self.name: str = "auto"
        self.min_interval_s: float = candidate.min_interval_s
        self._candidate = candidate
        self._is_chosen = False
        self._tried = ""

    def __repr__(self) -> str:
        return f"AutoProvider({self._candidate if self._is_chosen else self._tried or 'not tried yet'})"

    def read(self) -> Sequence[GpuSample]:
        """Read NVML; raise ``NoSourceError`` if it never found anything to read."""
        try:
            rows = self._candidate.read()
        except (NotPresentError, PackageMissingError) as error:
            if self._is_chosen:
                raise
            self._candidate.close()
            text = f"{self._candidate.name}: {error}"
            # Log only a changed result: the sampler retries once a minute.
            if text != self._tried:
                self._tried = text
                is_needed = isinstance(error, PackageMissingError) and DRIVER.exists()
                level = logging.WARNING if is_needed else logging.INFO
                _log.log(level, "GPU telemetry: no source found (%s)", text)
            raise NoSourceError(f"no GPU found ({text})") from error
        self._is_chosen, self.name = True, self._candidate.name
        return rows

    def close(self) -> None:
        """Close NVML."""
        self._candidate.close()

    def reset_after_fork(self) -> None:
        """Drop the handles, without a driver call."""
        self._candidate.reset_after_fork()
