"""Records the traffic of a service, without its secrets, and reads recordings."""

from autoglm_throttle.traffic.record.checking import CheckResult, check
from autoglm_throttle.traffic.record.entry import RecordedRequest
from autoglm_throttle.traffic.record.heading import RecordingHeader, RecordingTrailer
from autoglm_throttle.traffic.record.info import Info, info
from autoglm_throttle.traffic.record.middleware import RecorderMiddleware
from autoglm_throttle.traffic.record.reading import RecordingProblems, RecordingReader, open_recording
from autoglm_throttle.traffic.record.recorder import Recorder, RecorderCounts
from autoglm_throttle.traffic.record.redaction import Redaction

__all__ = [
    "RecorderCounts",
    "RecordingTrailer",
    "RecordedRequest",
    "RecordingProblems",
    "CheckResult",
    "RecordingHeader",
    "Info",
    "Recorder",
    "RecorderMiddleware",
    "RecordingReader",
    "Redaction",
    "check",
    "info",
    "open_recording",
]
