"""The file descriptors that this process holds open."""

from __future__ import annotations

from pathlib import Path


def open_files() -> int:
    """Files and sockets, one for the look itself included."""
    return len(list(Path("/dev/fd").iterdir()))
