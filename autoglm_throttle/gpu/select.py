"""From the setting ``GPU`` to a provider."""

from __future__ import annotations

import importlib.util
import re
import time
from typing import TYPE_CHECKING, Final

from autoglm_throttle.gpu.auto import AutoProvider
from autoglm_throttle.gpu.nvml import EXTRA, NvmlProvider
from autoglm_throttle.gpu.scripted import ScriptedProvider
from autoglm_throttle.settings.installing import how_to_install

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoglm_throttle.model import Clock, GpuProvider

FORMS: Final = "auto, nvml, none or fake:FILE"
"""What the setting may say."""

_DEVICE: Final = re.compile(r"\d+|(GPU|MIG)-[\w/-]+", re.IGNORECASE | re.ASCII)


def select(
    spec: str,
    *,
    devices: Sequence[str] = (),
    clock: Clock = time.monotonic,
    manual: bool = False,
) -> GpuProvider | None:
    """Choose the source of samples. Never calls a driver and never opens a file.

    Args:
        spec: ``auto`` (NVIDIA's driver if there is one), ``nvml`` (there must be one),
            ``none`` or ``fake:FILE`` (a recording or a live state file, CSV or JSONL).
        devices: NVIDIA devices by index or UUID; empty means those that CUDA sees.
        clock: monotonic seconds.
        manual: there is no sampler thread; a hang in a fake file then gives no rows instead of waiting.

    Returns:
        A provider that opens its source at the first ``read``, or None for ``none``.
        With ``auto`` and nothing to be found that ``read`` raises ``NoSource``.

    Raises:
        ValueError: the text has none of the allowed forms, names a malformed device,
            or asks for ``nvml`` without the package it needs.
    """
    kind, colon, rest = (part.strip() for part in spec.partition(":"))
    kind = kind.lower()
    entries = tuple(entry.strip() for entry in devices if entry.strip())
    wrong = [entry for entry in entries if not _DEVICE.fullmatch(entry)]
    if wrong:
        raise ValueError(f"not a GPU: {', '.join(wrong)}; a device is an index, a GPU-<uuid> or a MIG-<uuid>")
    if kind == "fake" and rest:
        return ScriptedProvider(rest, clock=clock, hang=None if manual else time.sleep)
    if colon or kind not in {"auto", "nvml", "none"}:
        raise ValueError(f"GPU is {FORMS}, not {spec!r}")
    if kind == "none":
        return None
    nvml = NvmlProvider(entries, clock=clock)
    if kind == "auto":
        return AutoProvider([nvml])
    if importlib.util.find_spec("pynvml") is None:
        raise ValueError(f"GPU=nvml needs the Python package nvidia-ml-py: {how_to_install(EXTRA)}")
    return nvml
