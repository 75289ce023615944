"""Writes the tier in force for nginx, a second tier: the presence of a flag file, one writer on each host."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from autoglm_throttle._runtime.worker import Worker
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.settings import Settings
from autoglm_throttle.types import Clock, Policy

# Seconds between two looks at the factor: a tenth of the usual interval of samples, 60 us each.
FOLLOW_S: Final = 0.1
WAIT_S: Final = 1.0  # the same while another process holds the lock, or after a fault of the folder
OWNER_BYTES: Final = (
    400  # of the text in the lock file, by which two services in one folder notice each other
)
FOLDER_MODE: Final = 0o755  # the workers of nginx run as another user

# A factor is a quotient of floats: a difference of rounding must not select the next higher tier.
_ROUNDING: Final = 1e-6
_FLAG: Final = re.compile(r"tier[0-9]+(?:_[0-9]+)?")


def tier_factors(settings: Settings) -> list[float]:
    """Return the factors of the tiers, from 1 down; 1 alone under a policy that does not use the table."""
    if settings.control.policy not in {Policy.ADAPTIVE, Policy.TIERS}:
        return [1.0]
    return sorted({1.0, *(factor for _, factor in settings.control.tiers)}, reverse=True)


def tier_name(factor: float) -> str:
    """Return the name of a tier: its factor in percent, ``70`` or ``33_3``, as names of nginx allow it."""
    return f"{100.0 * factor:.10f}".rstrip("0").rstrip(".").replace(".", "_")


def folder_fault(folder: Path) -> str:
    """Return why flags cannot be written to a folder, as far as a look can tell; empty: they can."""
    if folder.is_dir():
        return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is not writable"
    if folder.exists():
        return f"{folder} is no folder"
    parent = folder.parent
    is_possible = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
    return "" if is_possible else f"{folder} does not exist and cannot be made"


class NginxFlags:
    """Keeps the flag of the tier in force in a folder, on a thread of its own; the tier of 1 has no flag.

    The tier is the lowest one at or above the factor, so that nginx rejects no sooner than the rates do. The
    process that holds a lock on ``lock`` in the folder writes. The kernel frees the lock when that process
    dies, and the next one puts the flags right.

    Args:
        folder: of the flags and the lock; it is made if its parent exists.
        factors: of the tiers, from 1 down.
        factor_in_force: returns the present factor; None ends the thread.
        on_fault: called at each fault, which is logged: of the folder, or of the thread, where no flag stays.
        owner: text of the service, the same in all its processes; a lock of another service is a fault.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        folder: Path,
        factors: Sequence[float],
        factor_in_force: Callable[[], float | None],
        on_fault: Callable[[], object],
        owner: str = "",
        clock: Clock = time.monotonic,
    ) -> None:
        self._owner = owner[:OWNER_BYTES].encode("ascii", "replace").decode()
        self._folder = folder
        self._factors = factors
        self._factor_in_force = factor_in_force
        self._on_fault = on_fault
        self._lock: int | None = None  # Descriptor of the locked file; None: another process may hold it
        self._log = RateLimitedLogger("nginx flags", clock)
        self._worker = Worker(
            "autoglm-throttle-nginx", self.step, on_stop=self._release, on_crash=self._crashed, clock=clock
        )
        # Starts a missing thread, which the system may have denied before.
        self.restart_if_dead: Callable[[float], None] = self._worker.restart_if_dead
        self.start: Callable[[], None] = self._worker.start
        self.stop: Callable[[], None] = self._worker.stop
        self.stop_with: Callable[[object], None] = self._worker.stop_with

    def step(self) -> float | None:
        """Write the flag of the factor in force if this process has the lock; return the seconds to wait."""
        factor = self._factor_in_force()
        if factor is None:
            return None
        try:
            if not self._acquire():
                return WAIT_S
            self._write(min(each for each in self._factors if each >= min(1.0, factor - _ROUNDING)))
        except OSError as error:
            self._on_fault()
            self._log.warn("folder", f"the folder cannot be written: {error}")
            return WAIT_S
        return FOLLOW_S

    def _crashed(self, error: BaseException) -> None:
        """Remove the flags: without a thread nothing would end a low tier."""
        self._on_fault()
        self._log.warn("thread", f"the tier in force cannot be written: {type(error).__name__}: {error}")
        self._clear()

    def leave_lock(self) -> None:
        """Close the lock in a forked child: it belongs to the parent, and is free when no process has it."""
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    def _acquire(self) -> bool:
        """Return whether this process has the lock, after it has tried to get it."""
        import fcntl  # Windows has none

        path = self._folder / "lock"
        if self._lock is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._lock), path.stat()):
                    return True
            self.leave_lock()  # the folder was removed: another process may lock a new file
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir()
            self._folder.chmod(FOLDER_MODE)  # `mkdir` would apply the umask to it
        # Stored at once: a child that is forked now must close it.
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            other = os.pread(self._lock, OWNER_BYTES, 0).decode(errors="replace")
            self.leave_lock()
            if not isinstance(error, BlockingIOError):
                raise
            if other and other != self._owner:
                raise OSError(f"another service writes its tiers there: {other!a}") from error
            return False
        with contextlib.suppress(OSError):  # on a full disk the others do not know whose lock it is
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, self._owner.encode(), 0)
        return True

    def _write(self, tier: float) -> None:
        """Create the flag of a tier, then remove all others: no higher tier is in force in between."""
        present = {path.name for path in self._folder.iterdir() if _FLAG.fullmatch(path.name)}
        kept = set() if tier == 1.0 else {_flag(tier)}
        fault: OSError | None = None
        for name in kept - present:
            try:
                (self._folder / name).touch(exist_ok=False)
            except OSError as error:  # a full disk: a lower tier must not stay in force
                fault, kept = error, {_flag(each) for each in self._factors if tier < each < 1.0}
        for name in present - kept:
            (self._folder / name).unlink(missing_ok=True)
        if fault is not None:
            raise fault

    def _clear(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._write(1.0)

    def _release(self) -> None:
        """Remove the flags, and free the lock."""
        self._clear()
        self.leave_lock()


def _flag(tier: float) -> str:
    return f"tier{tier_name(tier)}"
