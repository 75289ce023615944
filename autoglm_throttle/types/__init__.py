"""Shared types: values, enums and protocols.

Nothing here does I/O, reads a clock or knows HTTP. Times ending in ``_s`` are monotonic seconds unless their
name says ``wall``; ratios are floats 0..1, percentages end in ``_pct``.
"""

from autoglm_throttle.types.batches import *
from autoglm_throttle.types.control import *
from autoglm_throttle.types.errors import *
from autoglm_throttle.types.gpu import *
from autoglm_throttle.types.guards import *
from autoglm_throttle.types.requests import *
