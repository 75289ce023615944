"""Documentation page on the states of a breaker, generated from the transition table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from autoglm_throttle.model import State
from autoglm_throttle.resilience.transitions import OPERATED, ROWS, Event, Row

MEANINGS: Final = {
    State.CLOSED: (
        "is let through",
        "counts: too many failures, or too large a share of failed or slow calls, open it",
    ),
    State.OPEN: ("is refused, with the time until the first trial", "is late and counts no more"),
    State.HALF_OPEN: (
        "is a trial if there is a place for one, else refused",
        "decides: one failed or slow trial opens again, enough successes close",
    ),
    State.RAMPING: ("is let through by a growing share, else refused", "counts as while closed"),
    State.FORCED_OPEN: ("is refused", "is late and counts no more"),
    State.DISABLED: ("is let through", "is not counted"),
}
"""Effect of each state on a call, and on the result of a call."""

_HEAD: Final = """\
# States of a circuit breaker

<!-- Made by `python -m autoglm_throttle.resilience > docs/breaker-states.md`; change the moves instead. -->

A breaker stands between your service and one dependency. While the dependency answers, nobody notices it.
Once it fails, calls are refused at once instead of waiting for an answer that does not come, and a few trials
find out when it is well again. States and causes are written here as logs and metrics write them.
"""

_FLEET: Final = """\

## What other processes move

With `BREAKER_SHARED` the processes of a service share these states. News older than what a process knows
changes nothing, and neither does what is missing here: who has closed already goes on as it is.
What an operator has decided in one process stands there until an operator decides anew, there or elsewhere.
"""

_NOTES: Final = """\

## What does not move it

- **A late result.** Each change of state begins a new generation, and a call belongs to the one that it
  began in. When it ends in another, its result is counted as stale and changes nothing: a success from before
  an opening closes nothing, a failure prolongs nothing.
- **No evidence.** A call that was cancelled, whose client went away or whose caller made the mistake says
  nothing about the dependency. A trial that ends so gives its place back at once.
- **A trial that hangs.** It holds its place for `BREAKER_TRIAL_LEASE_S` at most, then the next gets it.
- **Time, for an operator's decision.** `forced_open` and `disabled` last until an operator decides anew.
- **Counting only.** With `BREAKER_MODE=metrics_only` the same moves are made, logged and counted, and every
  call is let through. Those that would have been refused are counted too, but not their results.

Opening again out of `half_open` or `ramping` is a further round: with `BREAKER_BACKOFF` above 1 each round
waits longer, at most `BREAKER_OPEN_MAX_S`. Nobody watches a clock: an open breaker whose time is over reads
`half_open`, and becomes it with the next call.
"""

_BY_ITSELF: Final = "by_itself"
"""Composite state of the diagram: all states that no operator has set."""


def states_page() -> str:
    """Return the whole page as Markdown."""
    rows = [row for row in ROWS if not _of_fleet(row.event)]
    fleet = [row for row in ROWS if _of_fleet(row.event)]
    parts = [
        _HEAD,
        *("```mermaid", *diagram(rows), "```\n"),
        *("| state | a call | the result of a call |", "|---|---|---|", *_meanings()),
        *("\n## What moves it\n", *_table(rows)),
        *(_FLEET, *_table(fleet), _NOTES),
    ]
    return "\n".join(parts)


def diagram(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a mermaid state diagram.

    An event that leaves every state is drawn once, from the frame around the automatic states. It is not
    drawn from the frame if it leads back into it, which mermaid cannot draw.
    """
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for start in _starts(row):
            arrows.setdefault((start, row.move.to), []).append(row.event)
    inner = {arrow: words for arrow, words in arrows.items() if not {_BY_ITSELF, *OPERATED} & {*arrow}}
    yield "stateDiagram-v2"
    yield f"    [*] --> {State.CLOSED}"
    yield f'    state "by itself" as {_BY_ITSELF} {{'
    yield from (f"        {line}" for line in _arrows(inner))
    yield "    }"
    yield from (f"    {line}" for line in _arrows({key: arrows[key] for key in arrows if key not in inner}))


def _starts(row: Row) -> Iterator[str]:
    # Rows of all states start at the frame, except where mermaid cannot draw that arrow.
    if len(row.states) < len(State):
        yield from row.states
        return
    if row.move.to in OPERATED:
        yield _BY_ITSELF
    yield from (state for state in OPERATED if state is not row.move.to)


def _arrows(arrows: dict[tuple[str, str], list[str]]) -> Iterator[str]:
    for (start, end), words in arrows.items():
        yield f"{start} --> {end}: {'<br/>'.join(words)}"


def _meanings() -> Iterator[str]:
    for state, (call, result) in MEANINGS.items():
        yield f"| `{state}` | {call} | {result} |"


def _table(rows: Iterable[Row]) -> Iterator[str]:
    yield "| what happens | in | leads to | cause |"
    yield "|---|---|---|---|"
    for row in rows:
        named = ", ".join(f"`{state}`" for state in row.states)
        states = "any state" if len(row.states) == len(State) else named
        yield f"| {row.event} | {states} | `{row.move.to}` | `{row.move.cause}` |"


def _of_fleet(event: Event) -> bool:
    return event.name.startswith("REMOTE")
