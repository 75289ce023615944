"""Generates the documentation page on the states of a breaker from the transition table.

Run: ``python -m docs.generate.breaker_states > docs/breaker-states.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from autoglm_throttle.resilience.transitions import (
    OPERATOR_STATES,
    TRANSITION_ROWS,
    BreakerEvent,
    TransitionRow,
)
from autoglm_throttle.types import BreakerState

MEANINGS: Final = {
    BreakerState.CLOSED: (
        "is admitted",
        "counts: too many failures, or too high a rate of failed or slow calls, open the breaker",
    ),
    BreakerState.OPEN: ("is rejected, with the time until the first probe", "is stale and not counted"),
    BreakerState.HALF_OPEN: (
        "is a probe if a slot is free, else rejected",
        "decides: one failed or slow probe opens again, enough successes close",
    ),
    BreakerState.RAMPING: ("is admitted with a growing share, else rejected", "counts as while closed"),
    BreakerState.FORCED_OPEN: ("is rejected", "is stale and not counted"),
    BreakerState.DISABLED: ("is admitted", "is not counted"),
}
"""Effect of each state on a call, and on the result of a call."""

_HEAD: Final = """\
# States of a circuit breaker

<!-- Made by `python -m docs.generate.breaker_states > docs/breaker-states.md`; edit the table instead. -->

Which states does a circuit breaker have, and which events change them? It guards the calls to one
dependency. Once that fails, calls are rejected at once instead of waiting for a timeout. A few probe calls
detect its recovery. States and causes are named as in logs and metrics.
"""

_FLEET: Final = """\

## Transitions caused by other processes

With `BREAKER_SHARED` the processes of a service share these states. An update older than the local version
changes nothing, and neither does an event without a row: a closed breaker stays closed.
An operator's decision in one process holds there until the next operator command, in any process.
"""

_NOTES: Final = """\

## Events without effect

- **A late result.** Each state change starts a new generation. A call belongs to the generation in which it
  started. If it ends in another, its result is counted as stale and changes nothing. A success from before
  an opening does not close the breaker. A failure does not prolong the open period.
- **A neutral outcome.** A cancelled call, a client disconnect or a caller error says
  nothing about the dependency. A probe with a neutral outcome returns its slot at once.
- **A hanging probe.** It holds its slot for at most `breaker_trial_lease_s`; then the slot is free again.
- **Time, in operator states.** `forced_open` and `disabled` last until the next operator command.
- **Metrics only.** With `BREAKER_MODE=metrics_only` the same transitions are made, logged and counted, but
  every call is admitted. Calls that would have been rejected are counted too, but their results are not.

Reopening from `half_open` or `ramping` starts a further round: with `breaker_backoff` above 1 each round
stays open longer, at most `breaker_open_max_s`. No timer runs: after the open period the breaker reads as
`half_open`, and changes to it with the next call.
"""

_AUTOMATIC: Final = "automatic"
"""Composite state of the diagram: all states that no operator has set."""


def states_page() -> str:
    """Return the whole page as Markdown."""
    rows = [row for row in TRANSITION_ROWS if not _is_remote(row.event)]
    fleet = [row for row in TRANSITION_ROWS if _is_remote(row.event)]
    parts = [
        _HEAD,
        *("```mermaid", *diagram(rows), "```\n"),
        *("| state | a call | the result of a call |", "|---|---|---|", *_meanings()),
        *("\n## Transitions\n", *_table(rows)),
        *(_FLEET, *_table(fleet), _NOTES),
    ]
    return "\n".join(parts)


def diagram(rows: Iterable[TransitionRow]) -> Iterator[str]:
    """Yield the lines of a mermaid state diagram.

    An event that leaves every state is drawn once, from the frame around the automatic states. It is not
    drawn from the frame if it leads back into it, which mermaid cannot draw.
    """
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for start in _starts(row):
            arrows.setdefault((start, row.to), []).append(row.event)
    inner = {key: labels for key, labels in arrows.items() if not {_AUTOMATIC, *OPERATOR_STATES} & {*key}}
    yield "stateDiagram-v2"
    yield f"    [*] --> {BreakerState.CLOSED}"
    yield f'    state "automatic" as {_AUTOMATIC} {{'
    yield from (f"        {line}" for line in _arrows(inner))
    yield "    }"
    yield from (f"    {line}" for line in _arrows({key: arrows[key] for key in arrows if key not in inner}))


def _starts(row: TransitionRow) -> Iterator[str]:
    # Rows of all states start at the frame, except where mermaid cannot draw that arrow.
    if len(row.states) < len(BreakerState):
        yield from row.states
        return
    if row.to in OPERATOR_STATES:
        yield _AUTOMATIC
    yield from (state for state in OPERATOR_STATES if state is not row.to)


def _arrows(arrows: dict[tuple[str, str], list[str]]) -> Iterator[str]:
    for (start, end), labels in arrows.items():
        yield f"{start} --> {end}: {'<br/>'.join(labels)}"


def _meanings() -> Iterator[str]:
    for state, (call, result) in MEANINGS.items():
        yield f"| `{state}` | {call} | {result} |"


def _table(rows: Iterable[TransitionRow]) -> Iterator[str]:
    yield "| event | in | to | cause |"
    yield "|---|---|---|---|"
    for row in rows:
        named = ", ".join(f"`{state}`" for state in row.states)
        states = "any state" if len(row.states) == len(BreakerState) else named
        yield f"| {row.event} | {states} | `{row.to}` | `{row.cause}` |"


def _is_remote(event: BreakerEvent) -> bool:
    return event.name.startswith("REMOTE")


if __name__ == "__main__":
    sys.stdout.write(states_page())
