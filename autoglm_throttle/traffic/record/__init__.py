"""Records the traffic of a service, without its secrets, and reads recordings."""

from autoglm_throttle.settings.groups.observe import RecorderSettings
from autoglm_throttle.traffic.record.middleware import RecorderMiddleware
from autoglm_throttle.traffic.record.recorded_request import (
    RecordedRequest,
    RecordingHeader,
    RecordingTrailer,
)
from autoglm_throttle.traffic.record.recorder import Recorder, RecorderCounts
from autoglm_throttle.traffic.record.recording_check import check, info, info_lines
from autoglm_throttle.traffic.record.recording_reader import (
    RecordingProblems,
    RecordingReader,
    open_recording,
)
from autoglm_throttle.traffic.record.redaction import Redaction

__all__ = [
    "RecordedRequest",
    "Recorder",
    "RecorderCounts",
    "RecorderMiddleware",
    "RecorderSettings",
    "RecordingHeader",
    "RecordingProblems",
    "RecordingReader",
    "RecordingTrailer",
    "Redaction",
    "check",
    "info",
    "info_lines",
    "open_recording",
]
