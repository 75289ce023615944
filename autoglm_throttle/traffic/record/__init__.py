"""Records the traffic of a service, without its secrets, and reads recordings."""

from autoglm_throttle.traffic.record.checking import Findings, check
from autoglm_throttle.traffic.record.entry import Entry
from autoglm_throttle.traffic.record.heading import End, Heading
from autoglm_throttle.traffic.record.info import Info, info
from autoglm_throttle.traffic.record.middleware import RecorderMiddleware
from autoglm_throttle.traffic.record.reading import Faults, Recording, open_recording
from autoglm_throttle.traffic.record.recorder import Counts, Recorder
from autoglm_throttle.traffic.record.redaction import Redaction

__all__ = [
    "Counts",
    "End",
    "Entry",
    "Faults",
    "Findings",
    "Heading",
    "Info",
    "Recorder",
    "RecorderMiddleware",
    "Recording",
    "Redaction",
    "check",
    "info",
    "open_recording",
]
