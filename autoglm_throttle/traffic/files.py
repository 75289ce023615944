"""Open-file limit of this process, which bounds its connections."""

from __future__ import annotations

from autoglm_throttle.traffic.errors import TrafficError

RESERVED_FILES = 64  # Files reserved for the process besides the connections

# Where there is no hard limit, macOS still allows a process no more than 10 240 (its OPEN_MAX).
MAX_WITHOUT_LIMIT = 10_000


def max_connections() -> int:
    """Return the connections this process could open with its soft limit raised to the hard one."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_WITHOUT_LIMIT if hard == resource.RLIM_INFINITY else max(0, hard - RESERVED_FILES)


def allow_connections(count: int) -> None:
    """Raise the soft limit on open files for so many connections, or TrafficError above the hard limit."""
    import resource

    needed = count + RESERVED_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError, OverflowError):
        raise TrafficError(f"{needed} open files are needed and {soft} allowed: ulimit -n {needed}") from None
