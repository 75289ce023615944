"""The page generated from the table."""

from __future__ import annotations

from itertools import groupby

from tests.resilience.conformance.table import Row, rows

_HEAD = """\
# Breaker conformance

Which state and which results follow from a given sequence of calls? Each row below is a test. It lists the
events in order, and the results of those events that have one. The rules are the defaults, except the named
ones: `failures=1` is the setting `BREAKER_FAILURES` of one guard. Times are seconds, by a clock that only
`wait` and `step back` move. An event with `x3` happens three times. This page is generated from the table of
the tests: `python -m tests.resilience.conformance > tests/resilience/conformance/README.md`.
"""

_PARTS = {
    "machine": """\
## State machine

`ok`, `fail`, `slow` and `neutral` are permitted calls that end at once with this outcome. `neutral` is no
evidence about the dependency: the call was cancelled, or the caller made the error. `ask a` starts a call
that stays in flight until `a ok` or the like. Its result is `pass`, `trial` (a probe call), or `refused`
(rejected) with the seconds until the next useful call and the cause. `told` lists the state changes that
listeners received. `stale` counts the results that were too late to count. `look` reads all views.
""",
    "calls": """\
## Guarded calls

The same with real calls. Each row runs in every form of a call: a block and an asynchronous block; a
decorated function, a coroutine function and a function that returns an awaitable; and a stream of either
kind. `returns` and `raises` are permitted calls with the caller's own value or exception. `call` shows
whether one more call is permitted. `ignore`, `expected` and `classify` are options of the guard. `A+B` is a
group of exceptions.
""",
    "timed calls": """\
## Calls with a duration

The same for all forms except streams, which have limits of their own: `returns after 3` takes three
seconds.
""",
    "values": """\
## Values that are failures

For the forms that return a value. The classifier `empty_fails` treats an empty list as a failure.
""",
    "streams": """\
## Streams

Decorated generators, synchronous and asynchronous. `begin a` takes the first item of a stream, and `a goes
on` one more. `a ends` and `a breaks` are caused by the source, `a is left` by the consumer. `break` is a
whole stream that breaks after its first item.
""",
    "fallbacks": """\
## Fallbacks

Every call shows the caller's result. `live` is the dependency's own answer. An exception may have a note
with the exception of a fallback. The fallbacks and `criticality` are options of the feature. `calls` counts
the calls of the dependency, `degraded` the answers given in its place, by fallback and cause. The rows run
in plain functions and in coroutine functions, under asyncio and trio.
""",
    "http": """\
## HTTP

Through the transports for httpx, sync and async. A status alone is a call with that response. `get` shows
the next response, and `get 500` the response while the server returns that status.
""",
    "fleet": """\
## Fleets

One process of several that share their breakers. `another opens 7` is an update from the store. `the store
gives its lease` is its reply to the next request for a probe. `said` lists the messages of this process to
the store, `questions` counts its queries.
""",
}


def page() -> str:
    """All of it, in Markdown."""
    text = [_HEAD]
    for part, of_part in groupby(rows(), key=lambda row: row.part):
        text.append(_PARTS[part])
        for group, some in groupby(of_part, key=lambda row: row.group):
            if group:
                text.append(f"### {group}\n")
            text.append(_table(list(some)))
    return "\n".join(text)


def _table(rows: list[Row]) -> str:
    head = ["| case | rules | events | results |", "|---|---|---|---|"]
    body = [
        f"| {row.name} | {_code(row.rules)} | {_code(row.events)} | {_code(row.answers)} |" for row in rows
    ]
    return "\n".join([*head, *body, ""])


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
