"""Converts recordings to and from the files of vegeta, GoReplay and HAR."""

from autoglm_throttle.traffic.convert.conversion import Bodies, ConvertOptions, ImportSummary, convert, write
from autoglm_throttle.traffic.convert.file_format import FileFormat, detect_format
from autoglm_throttle.traffic.convert.fill import Fill
from autoglm_throttle.traffic.convert.imported import ImportedFile
from autoglm_throttle.traffic.convert.source import ImportSource, RecordingSource, open_source, recorded_names

__all__ = [
    "Bodies",
    "ConvertOptions",
    "FileFormat",
    "Fill",
    "ImportSource",
    "ImportSummary",
    "ImportedFile",
    "RecordingSource",
    "convert",
    "detect_format",
    "open_source",
    "recorded_names",
    "write",
]
