"""Ends the processes of a test run with it, also if the run itself is killed.

A small shell waits for the end of a pipe that this process alone holds open. The kernel closes it whatever
this process dies of, on Linux and on macOS alike; then the shell kills what is left and removes the folders.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SHELL = """
trap '' INT TERM HUP
live=' '
while read -r verb what; do
    case $verb in
        folder) folder=$what ;;
        start) live="$live$what " ;;
        end) live="${live%% "$what" *} ${live#* "$what" }" ;;
    esac
done
for pid in $live; do kill -9 "$pid"; done
rm -rf "$folder"
"""


class Keeper:
    """One shell and one folder for all servers of this process, both made at first use."""

    def __init__(self) -> None:
        self._shell: subprocess.Popen[str] | None = None
        self._folder = Path()
        self._owner = 0
        self._live: set[int] = set()

    def folder(self) -> Path:
        """A new folder for one server."""
        self._open()
        return Path(tempfile.mkdtemp(dir=self._folder))

    def started(self, pid: int) -> None:
        self._live.add(pid)
        self._tell(f"start {pid}")

    def ended(self, pid: int) -> None:
        self._live.discard(pid)
        self._tell(f"end {pid}")

    def _open(self) -> None:
        if self._owner == os.getpid():
            return
        self._owner = os.getpid()
        self._live = set()
        self._folder = Path(tempfile.mkdtemp(prefix="stores-"))
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", SHELL],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        atexit.register(self._close)
        self._tell(f"folder {self._folder}")

    def _tell(self, line: str) -> None:
        if self._shell is None or self._shell.stdin is None or self._owner != os.getpid():
            return
        self._shell.stdin.write(line + "\n")
        self._shell.stdin.flush()

    def _close(self) -> None:
        if self._owner != os.getpid() or self._shell is None:
            return
        self._shell.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


KEEPER = Keeper()
