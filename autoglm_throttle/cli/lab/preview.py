"""Previews a run for ``--dry-run``: requests, target and objectives."""

from __future__ import annotations

from autoglm_throttle.cli.lab.judging import Judging
from autoglm_throttle.cli.lab.load_asked import Asked, Search
from autoglm_throttle.cli.lab.offered import offered
from autoglm_throttle.cli.lab.sending import Sending
from autoglm_throttle.traffic.arrivals import timetable
from autoglm_throttle.traffic.generator import Roster


def of_load(asked: Asked) -> list[str]:
    """Return the preview of a load.

    Raises:
        TrafficError: the file of a trace cannot be read or played, or an objective names another segment.
    """
    lines = [_where(asked.sending), _judged(asked.judging), clients(asked.crowd.clients, asked.sending)]
    if isinstance(asked.offer, Search):
        search = asked.offer
        bounds = f"{search.low_rps:g}/s, {search.high_rps:g}/s and rates between them"
        return [*lines, *_requests(asked), f"trials of {search.trial_s:g} s at {bounds}"]
    what = offered(asked, asked.offer)
    if what.requests is asked.drawn.requests:
        lines += _requests(asked)
    else:
        lines.append(f"{len(what.requests)} different requests, by the trace")
    if isinstance(what, Roster):
        return [*lines, *(f"{users} users for {length_s:g} s" for users, length_s in what.users.steps)]
    return [*lines, "", *timetable(what.plan)]


def of_replay(sending: Sending, judging: Judging, different: int) -> list[str]:
    """Return the preview of a replay, without its timetable.

    Args:
        sending: the target.
        judging: the objectives.
        different: clients of the recording.
    """
    return [_where(sending), _judged(judging), clients(different, sending), ""]


def clients(different: int, sending: Sending) -> str:
    """Return the number of callers, and whether the service can distinguish them."""
    name = sending.target.identity_header
    told = (
        f"told apart by {name}" if name else "which the service cannot tell apart without --identity-header"
    )
    return "1 client" if different == 1 else f"{different} clients, {told}"


def _where(sending: Sending) -> str:
    target = sending.target
    return f"nothing is sent; this would go to {target.scheme}://{target.address}{target.base}"


def _judged(judging: Judging) -> str:
    terms = ", ".join(term.text for term in judging.objectives.terms)
    return f"judged by {terms}" if terms else "no objectives: --slo states them"


def _requests(asked: Asked) -> list[str]:
    """List each kind with its share and its whole path."""
    total, base = sum(asked.drawn.shares), asked.sending.target.base
    return [
        f"{share / total:>7.1%} {request.method} {base}{request.target}"
        + (f" ({request.name})" if request.name else "")
        for request, share in zip(asked.drawn.requests, asked.drawn.shares, strict=True)
    ]
