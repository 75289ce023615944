"""A file of any form as recorded requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from autoglm_throttle.model import Priority
from autoglm_throttle.settings.record_fields import says_who
from autoglm_throttle.traffic.convert.form import Form, recognise
from autoglm_throttle.traffic.convert.found import target_of
from autoglm_throttle.traffic.convert.imported import Imported
from autoglm_throttle.traffic.convert.moment import nanoseconds
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import End, Entry, Heading, Recording, Redaction, open_recording


class Source(Protocol):
    """Recorded requests."""

    heading: Heading
    """What the file says of all of them."""
    whole: bool
    """Whether entries carry bodies that a recording need not keep."""

    @property
    def end(self) -> End | None:
        """Why the recording ended; None where nothing says so. Known after the entries."""
        ...

    def entries(self) -> Iterator[Entry]:
        """All of them; each call reads the file anew."""
        ...

    def told(self) -> list[str]:
        """What could not be read, and what was left out, so far."""
        ...


class Kept:
    """A recording of ours. What may never be recorded is left out however it came into it.

    Args:
        recording: the file.
        redaction: applied once more; None: as it was recorded.
    """

    whole = False

    def __init__(self, recording: Recording, redaction: Redaction | None = None) -> None:
        self._recording = recording
        self._redaction = redaction
        self._fields = self._targets = 0
        self.heading: Heading = recording.heading
        if redaction is not None:
            described = dict(recording.heading.redaction) | redaction.described()
            self.heading = replace(recording.heading, redaction=described)

    @property
    def end(self) -> End | None:
        """The last line of the recording."""
        return self._recording.end

    def entries(self) -> Iterator[Entry]:
        """All entries in order of time."""
        self._fields = self._targets = 0
        for entry in self._recording.entries():
            yield self._sifted(entry)

    def _sifted(self, entry: Entry) -> Entry:
        headers, target = entry.headers, _origin_form(entry.target)
        if self._redaction is not None:
            pairs = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers]
            headers, target = tuple(self._redaction.fields(pairs)), self._redaction.target_of(target)
        headers = tuple(pair for pair in headers if not says_who(pair[0]) or Priority.knows(pair[1]))
        self._fields += len(entry.headers) - len(headers)
        self._targets += target != entry.target
        return (
            entry
            if (headers, target) == (entry.headers, entry.target)
            else replace(entry, headers=headers, target=target)
        )

    def told(self) -> list[str]:
        """What could not be read, and what was left out, so far."""
        faults = self._recording.faults
        more = len(faults) - len(faults.told)
        lines = [*faults.told, *([f"and {more} more"] if more else [])]
        if self._fields:
            lines.append(f"{self._fields} header fields were left out")
        if self._targets:
            lines.append(f"of {self._targets} requests a part of the URL was left out or masked")
        return lines


def open_source(
    path: Path,
    form: Form | None = None,
    redaction: Redaction | None = None,
    times_s: Sequence[float] | None = None,
) -> Source:
    """Open a file of any form.

    Args:
        path: the file.
        form: what it is; None: told by how it begins.
        redaction: what may be kept; None: what was recorded, or what a recorder keeps by default.
        times_s: when the requests are to come, for a form without times.

    Raises:
        TrafficError: it cannot be read, or is of no known form.
    """
    chosen = form or recognise(path)
    if chosen is Form.JSONL:
        return Kept(open_recording(path), redaction)
    return Imported(path, chosen, redaction, times_s)


def _origin_form(target: str) -> str:
    """A target without host, user and fragment; one that is no path, such as ``*``, stays as it is."""
    try:
        return target_of(target)
    except TrafficError:
        return target.partition("#")[0] or "/"


def kept_of(path: Path, form: Form | None = None) -> tuple[list[str], list[str]]:
    """Names of header fields and of query parameters that a recording says it kept.

    Both are empty for a file of another program, and a name that could not be allowed is left out. With
    them a `Redaction` of such a file leaves out no more than is asked for.

    Args:
        path: the file.
        form: what it is; None: told by how it begins.

    Raises:
        TrafficError: it cannot be read, or is of no known form.
    """
    if (form or recognise(path)) is not Form.JSONL:
        return [], []
    said = open_recording(path).heading.redaction
    return [name for name in _names(said, "headers") if _may_be_kept(name)], _names(said, "query")


def _names(said: Mapping[str, object], what: str) -> list[str]:
    names = said.get(what)
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _may_be_kept(name: str) -> bool:
    try:
        Redaction(allow_headers=[name])
    except TrafficError:
        return False
    return True


def start_ns(heading: Heading) -> int:
    """When a recording began, in nanoseconds since 1970; 0 where it does not say, or what cannot be."""
    try:
        moment = datetime.fromisoformat(heading.start)
    except ValueError:
        return 0
    return nanoseconds(moment) or 0
