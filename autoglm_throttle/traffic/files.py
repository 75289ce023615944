"""How many files, and so connections, this process may open."""

from __future__ import annotations

from autoglm_throttle.traffic.errors import TrafficError

SPARE = 64
"""Left to the process besides the connections."""

MANY = 10_000
"""Where there is no hard limit, macOS still allows a process no more than 10 240 (its OPEN_MAX)."""


def most_connections() -> int:
    """Connections this process could open if it raised its soft limit to the hard one."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MANY if hard == resource.RLIM_INFINITY else max(0, hard - SPARE)


def allow_connections(count: int) -> None:
    """Make room for so many connections; a process may raise its own soft limit up to the hard one.

    Raises:
        TrafficError: the hard limit is too low; the text names both numbers.
    """
    import resource

    needed = count + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError, OverflowError):
        raise TrafficError(f"{needed} open files are needed and {soft} allowed: ulimit -n {needed}") from None
