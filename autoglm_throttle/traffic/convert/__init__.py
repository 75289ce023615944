"""Converts recordings to and from the files of vegeta, GoReplay and HAR."""

from autoglm_throttle.traffic.convert.conversion import Account, Bodies, Options, convert, write
from autoglm_throttle.traffic.convert.fill import Fill
from autoglm_throttle.traffic.convert.form import Form, recognise
from autoglm_throttle.traffic.convert.imported import Imported
from autoglm_throttle.traffic.convert.source import Kept, Source, kept_of, open_source

__all__ = [
    "Account",
    "Bodies",
    "Fill",
    "Form",
    "Imported",
    "Kept",
    "Options",
    "Source",
    "convert",
    "kept_of",
    "open_source",
    "recognise",
    "write",
]
