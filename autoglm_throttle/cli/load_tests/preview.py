"""Previews a run for ``--dry-run``: requests, target and objectives."""

from __future__ import annotations

from autoglm_throttle.cli.load_tests.load_arguments import LoadArguments, Search
from autoglm_throttle.cli.load_tests.planned_load import build_load
from autoglm_throttle.cli.load_tests.report_options import ReportOptions
from autoglm_throttle.cli.load_tests.send_options import SendOptions
from autoglm_throttle.traffic.generator import UserSchedule
from autoglm_throttle.traffic.plan import format_plan


def load_preview(arguments: LoadArguments) -> list[str]:
    """Return the preview of a load.

    Raises:
        TrafficError: the file of a trace cannot be read or played, or an objective names another segment.
    """
    lines = [
        _target_text(arguments.send_options),
        _objectives_text(arguments.report_options),
        clients_text(arguments.load.priority_mix.clients, arguments.send_options),
    ]
    if isinstance(arguments.load.offer, Search):
        search = arguments.load.offer
        bounds = f"{search.low_rps:g}/s, {search.high_rps:g}/s and rates between them"
        return [*lines, *_requests(arguments), f"trials of {search.trial_s:g} s at {bounds}"]
    load = build_load(arguments, arguments.load.offer)
    if load.requests is arguments.weighted_requests.requests:
        lines += _requests(arguments)
    else:
        lines.append(f"{len(load.requests)} distinct requests, from the trace")
    if isinstance(load, UserSchedule):
        return [*lines, *(f"{users} users for {length_s:g} s" for users, length_s in load.users.steps)]
    return [*lines, "", *format_plan(load.plan)]


def replay_preview(send_options: SendOptions, report_options: ReportOptions, count: int) -> list[str]:
    """Return the preview of a replay, without its timetable.

    Args:
        send_options: contain the target.
        report_options: contain the objectives.
        count: clients of the recording.
    """
    return [
        _target_text(send_options),
        _objectives_text(report_options),
        clients_text(count, send_options),
        "",
    ]


def clients_text(count: int, send_options: SendOptions) -> str:
    """Return the number of callers, and whether the service can distinguish them."""
    name = send_options.target.identity_header
    distinction = (
        f"distinguished by {name}"
        if name
        else "which the service cannot distinguish without --identity-header"
    )
    return "1 client" if count == 1 else f"{count} clients, {distinction}"


def _target_text(send_options: SendOptions) -> str:
    target = send_options.target
    return f"nothing is sent; the target would be {target.scheme}://{target.address}{target.base}"


def _objectives_text(report_options: ReportOptions) -> str:
    terms = ", ".join(term.text for term in report_options.objectives.terms)
    return f"objectives: {terms}" if terms else "no objectives: set them with --slo"


def _requests(arguments: LoadArguments) -> list[str]:
    """List each kind with its share and its whole path."""
    total, base = sum(arguments.weighted_requests.shares), arguments.send_options.target.base
    return [
        f"{share / total:>7.1%} {request.method} {base}{request.target}"
        + (f" ({request.name})" if request.name else "")
        for request, share in zip(
            arguments.weighted_requests.requests, arguments.weighted_requests.shares, strict=True
        )
    ]
