"""The file of a recording: new, private to its owner, bounded, and readable at any point of writing."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import Final

MAX_SAME_NAME: Final = 100
"""Files of one base name side by side; a service that fails at every start creates one each time."""

RESERVE: Final = 512
"""Bytes reserved for the last line and for the overhead of gzip."""

GZIP: Final = 31
"""``wbits`` of zlib for the gzip format."""


class RecordingFile:
    """A new file of lines.

    If a file or link of the name exists, the next free one of ``name-2``, ``name-3`` and so on is created.
    Several workers, or a restart, must not write into an existing recording.

    Args:
        path: the file; a name that ends in ``.gz`` is compressed.
        max_bytes: maximum size of the file.

    Raises:
        OSError: no file could be created.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._fd, made = _create(path)
        self.path: Path = made
        """The actual path."""
        self._max_bytes = max_bytes
        self._packer = zlib.compressobj(6, zlib.DEFLATED, GZIP) if path.suffix == ".gz" else None
        self._pending: list[bytes] = []
        self._size = 0
        self._added = 0

    def fileno(self) -> int:
        """Return the descriptor; -1 once the file is closed."""
        return self._fd

    def add(self, line: str) -> bool:
        """Add a line and its end; False if the file would become too large."""
        raw = line.encode() + b"\n"
        if self._min_bytes_left() < len(raw):
            self.flush()  # packed it is shorter than it was reckoned
            if self._min_bytes_left() < len(raw):
                return False
        self._put(raw)
        return True

    def flush(self) -> None:
        """Write everything to the operating system, so that it survives this process.

        Raises:
            OSError: the disk is full, or another error of the file system.
        """
        if self._packer is not None and self._added:
            self._pending.append(self._packer.flush(zlib.Z_SYNC_FLUSH))
        self._write()

    def close(self, line: str) -> None:
        """Add the last line, from the reserved space, and close the file, also after an error."""
        try:
            self._put(line.encode() + b"\n")
            if self._packer is not None:
                self._pending.append(self._packer.flush(zlib.Z_FINISH))
            self._write()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file without flushing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _min_bytes_left(self) -> int:
        # Worst case of zlib: stored blocks add far less than 1/256 of the input.
        return self._max_bytes - RESERVE - self._size - self._added - (self._added >> 8)

    def _put(self, raw: bytes) -> None:
        self._added += len(raw)
        part = raw if self._packer is None else self._packer.compress(raw)
        if part:
            self._pending.append(part)

    def _write(self) -> None:
        data = memoryview(b"".join(self._pending))
        self._pending.clear()
        self._added = 0
        while data:
            written = os.write(self._fd, data)
            self._size += written
            data = data[written:]


def _create(path: Path) -> tuple[int, Path]:
    # O_EXCL and O_NOFOLLOW: never write into an existing file or through a link; mode 0600.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    packed = path.suffix if path.suffix == ".gz" else ""
    plain = Path(path.name.removesuffix(packed))
    others = (f"{plain.stem}-{number}{plain.suffix}{packed}" for number in range(2, MAX_SAME_NAME + 1))
    for name in (path.name, *others):
        with contextlib.suppress(FileExistsError):
            return os.open(path.with_name(name), flags, 0o600), path.with_name(name)
    raise OSError(f"{MAX_SAME_NAME} recordings of this name are there already")
