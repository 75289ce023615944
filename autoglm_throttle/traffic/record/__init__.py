"""Records the traffic of a service, without what is secret in it, and reads it back."""

from autoglm_throttle.traffic.record.entry import Entry
from autoglm_throttle.traffic.record.heading import End, Heading
from autoglm_throttle.traffic.record.middleware import RecorderMiddleware
from autoglm_throttle.traffic.record.reading import Faults, Recording, open_recording
from autoglm_throttle.traffic.record.recorder import Counts, Recorder
from autoglm_throttle.traffic.record.redaction import Redaction

__all__ = [
    "Counts",
    "End",
    "Entry",
    "Faults",
    "Heading",
    "Recorder",
    "RecorderMiddleware",
    "Recording",
    "Redaction",
    "open_recording",
]
