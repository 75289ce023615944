"""Converts recordings to and from the files of vegeta, GoReplay and HAR."""

from autoglm_throttle.traffic.convert.conversion import Account, Bodies, Options, convert, write
from autoglm_throttle.traffic.convert.fill import Fill
from autoglm_throttle.traffic.convert.form import Form, recognise
from autoglm_throttle.traffic.convert.imported import Imported
from autoglm_throttle.traffic.convert.source import Kept, Source, open_source

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
    "open_source",
    "recognise",
    "write",
]
