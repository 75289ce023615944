"""The page that is made from the table."""

from __future__ import annotations

from itertools import groupby

from tests.resilience.conformance.lines import Line, lines

_HEAD = """\
# What a breaker does, case by case

Each row below is a test. It says what happens, in order, and what the breaker answers to those events that
bring an answer. The rules are the defaults, but for those named: `failures=1` is the setting
`BREAKER_FAILURES` of one guard. Times are seconds, by a clock that only `wait` and `step back` move. An event
with `x3` happens three times. This page is made from the table of the tests:
`python -m tests.resilience.conformance > docs/breaker-conformance.md`.
"""

_PARTS = {
    "machine": """\
## The machine

`ok`, `fail`, `slow` and `neutral` are calls that are let through and end so, at once; `neutral` is a
call that says nothing about the dependency: it was cancelled, or the mistake was the caller's own. `ask
a` is a call that begins and stays under way until `a ok` or the like; its answer is `pass`, `trial`, or
`refused` with the seconds until the next call is worth making and the cause. `told` are the changes
that observers hear of, `stale` counts the results that came too late to count, `look` reads all that
there is to see.
""",
    "calls": """\
## Guarded calls

The same with real calls, each row in every form that a call can have: a block and an asynchronous
block, a decorated function, coroutine function and function that returns an awaitable, and a stream of
either kind. `returns` and `raises` are calls that are let through and whose callers get their own value
or exception; `call` says whether one more is answered. `ignore`, `expected` and `classify` are said of
the guard; `A+B` is a group of exceptions.
""",
    "timed calls": """\
## Calls that take their time

The same for all forms but streams, which have limits of their own: `returns after 3` takes three
seconds.
""",
    "values": """\
## Values that are failures

For the forms that return a value. The classifier `empty_fails` calls an empty list a failure.
""",
    "streams": """\
## Streams

Decorated generators, asynchronous and not. `begin a` takes the first item of a stream and `a goes on`
one more; `a ends` and `a breaks` are the source's doing, `a is left` is the consumer's. `break` is a
whole stream that breaks after its first item.
""",
    "fallbacks": """\
## Fallbacks

Every call says what its caller gets: `live` is the dependency's own answer, and an exception may have a
note of what a fallback has raised. The rungs of the fallback are said of the feature, and so is
`criticality`. `calls` are those that the dependency has seen, `degraded` the answers given in its
place, by rung and cause. In plain functions and in coroutine functions, under asyncio and trio.
""",
    "http": """\
## HTTP

Through the transports for httpx, sync and async. A status alone is a call whose client gets that
answer; `get` says what the next one gets, and `get 500` what it gets while the server answers so.
""",
    "fleet": """\
## Fleets

One process of several that share their breakers. `another opens 7` is news from the store; `the store
gives its lease` is its answer to the next who asks for a trial. `said` is what this process has told
the others, `questions` how often it has asked the store anything.
""",
}


def page() -> str:
    """All of it, in Markdown."""
    text = [_HEAD]
    for part, rows in groupby(lines(), key=lambda line: line.part):
        text.append(_PARTS[part])
        for group, some in groupby(rows, key=lambda line: line.group):
            if group:
                text.append(f"### {group}\n")
            text.append(_table(list(some)))
    return "\n".join(text)


def _table(rows: list[Line]) -> str:
    head = ["| case | rules | events | answers |", "|---|---|---|---|"]
    body = [
        f"| {row.name} | {_code(row.rules)} | {_code(row.events)} | {_code(row.answers)} |" for row in rows
    ]
    return "\n".join([*head, *body, ""])


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
