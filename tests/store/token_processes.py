"""Several processes on the token limit of one user: each reserves, and settles or is killed before."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from autoglm_throttle import Demand
from autoglm_throttle.limiting.ticket import Ticket
from autoglm_throttle.types import TokenCost
from tests.store.real_server import PATIENTLY, Site
from tests.store.store_checks import name

USER = Demand(user=name(1))


def token_site(url: str, prefix: str, limit: str, **settings: Any) -> Site:
    return Site(url, prefix, "100000/minute", tokens_limit=limit, **{**PATIENTLY, **settings})


async def reserved(site: Site, tokens: int, demand: Demand = USER) -> Ticket | None:
    """Return the ticket of a request that has reserved tokens; None: it was rejected."""
    admission = site.throttle.admission
    ticket = admission.try_charge(demand, tokens=TokenCost(tokens, 0))
    if isinstance(ticket, Ticket) and ticket.charges.pending_check is not None:
        ticket = await admission.verdicts.wait(ticket) or ticket
    return ticket if isinstance(ticket, Ticket) else None


def settle(site: Site, ticket: Ticket, tokens: int) -> None:
    site.throttle.admission.verdicts.settle_tokens(ticket.charges, TokenCost(tokens, 0))


async def admitted(job: dict[str, Any]) -> int:
    """Reserve for many requests at once; a decision without the store is an error here."""
    site = await token_site(job["url"], job["prefix"], job["limit"]).connected()
    tickets = await asyncio.gather(*(reserved(site, job["tokens"]) for _ in range(job["asks"])))
    assert site.fallbacks == 0, site.store
    for ticket in tickets:
        if ticket is not None and job["used"] is not None:
            settle(site, ticket, job["used"])
    await site.quiet()
    return sum(ticket is not None for ticket in tickets)


if __name__ == "__main__":
    for line in sys.stdin:
        print(asyncio.run(admitted(json.loads(line))), flush=True)
