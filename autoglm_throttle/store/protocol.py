"""Charges, answers and errors of the shared store of user limits, and their form in the script's calls.

The script, `sliding_window.lua`, defines the numbers in its first lines. All times are integer microseconds:
a store's own clock counts them, and they are exact until the year 2255.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from functools import cache
from hashlib import blake2b
from importlib import resources
from itertools import accumulate, pairwise
from operator import add, attrgetter
from typing import TypeAlias
from zlib import crc32

from autoglm_throttle.types import SlotLimit, TokenCost, UserLimit

LAYOUT = "w2"  # Version of the values under a key: two versions, deployed side by side, never share a key
SPLIT = -1  # Tag of a request with keys in more than one partition
VALUES = 4  # Integers for each limit in an answer: wait, remaining, reset, stamp

# `VALUES` integers for each limit of each charge, in the given order. wait: 0 if this limit admits, else the
# microseconds until the request fits without other charges, -1 if it never can. The request is admitted only
# if all are 0. remaining: units left, after spending if the request was admitted. reset: microseconds until
# the oldest counted unit leaves, 0 without any. stamp: opaque; it identifies the units for a refund.
Answer = Sequence[int]

ScriptArguments = tuple[list[str], list[str | int]]  # KEYS and ARGV of one script call

# Layout (``l`` for a list of stamps, ``b`` for sub-buckets), limit in units, window in microseconds.
Policy = tuple[str, int, int]

# Common parts of all requests under one set of limits: the limits, their policies, and for each partition the
# keys without their users.
_Shape = tuple[tuple[UserLimit, ...], tuple[Policy, ...], list[list[str]]]

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,60}")


class StoreErrorKind(StrEnum):
    """Error of a store call: a closed set, also the metric label."""

    TIMEOUT = "timeout"  # No answer before the deadline; the units may have been spent
    QUEUE_FULL = "queue_full"  # The queue of this event loop is full; no call was sent
    UNREACHABLE = "unreachable"  # No server listens there; nothing was spent
    LOST = "lost"  # The connection broke after the call was sent; the units may have been spent
    READONLY = "readonly"  # Only a replica answers
    BUSY = "busy"  # Loading, a long script, a cluster without a quorum: it answers, but not this
    FULL = "full"  # Its memory is used up
    FORBIDDEN = "forbidden"  # It requires another password or more rights
    FOREIGN = "foreign"  # Another type of value stands under our key
    CONFUSED = "confused"  # An error or a reply that no other member covers
    LOOP = "loop"  # The event loop is one in which the store's client cannot run (trio)


AnyCharge: TypeAlias = "StoreCharge | WindowEntry"


@dataclass(slots=True, eq=False)
class StoreCharge:
    """Units of one caller under one set of limits."""

    kind: str  # Name of the set and of its subject: ``user``, ``address``, ``plan-gold``
    limits: tuple[UserLimit, ...]  # 1 to 4
    user: str  # Identity text of 16 hex digits
    units: int  # >= 0; 0 reads without spending


@dataclass(slots=True, eq=False)
class WindowEntry:
    """One request: its units are spent under all keys or under none. Or the refund of an earlier one."""

    # One for each limit of each charge, in their order. A tuple of texts, unlike a list or an object, is not
    # visited by each garbage collection: of 20,000 callers that would be a pause of 60 ms.
    keys: tuple[str, ...]
    policies: tuple[Policy, ...]  # One for each key
    tag: int  # The partition of all keys, `SPLIT` if there is more than one
    # The charge of a check that has one, as in `StoreCharge`.
    kind: str = ""
    limits: tuple[UserLimit, ...] = ()
    user: str = ""
    units: int = 0
    several: Sequence[AnyCharge] = ()  # Charges of a check that has several
    single_policy: Policy | None = None  # The policy of a request of one limit and one unit
    refunds: Sequence[int] = ()  # Units for each key of a refund
    stamps: Sequence[int] = ()  # Of these units
    tokens: TokenCost | None = None  # Tokens that a check reserves
    values: int = field(init=False)  # Number of integers in its answer

    def __post_init__(self) -> None:
        self.values = len(self.keys) * (1 if self.refunds else VALUES)

    @property
    def charges(self) -> Sequence[AnyCharge]:
        """The charges of a check; of a single one it has the fields itself."""
        return self.several or (self,)


@dataclass(slots=True)
class StoreStats:
    """Counters of a store; all but the last only grow."""

    calls: int = 0  # Round trips
    sent: int = 0  # Decisions that were sent
    late: int = 0  # Replies without a waiting caller
    lost: int = 0  # Refunds and settlements of tokens that were not delivered
    waiting: int = 0  # Decisions that wait or are in flight now

    def __add__(self, other: StoreStats) -> StoreStats:
        """Return the sum, as of several event loops."""
        return StoreStats(*map(add, astuple(self), astuple(other)))


@cache
def script() -> str:
    """The text of the script."""
    return resources.files(__package__).joinpath("sliding_window.lua").read_text("utf-8")


class WindowProtocol:
    """Encodes requests into keys, those of a partition on one node, and arguments; decodes replies."""

    def __init__(self, prefix: str, service: str, partitions: int) -> None:
        self._root = f"{prefix}:{service}:{LAYOUT}"
        self._partitions = partitions
        self._shapes: dict[str, _Shape] = {}

    def build_check(self, charges: Sequence[AnyCharge]) -> WindowEntry:
        """Build the request for the charges, at least one, which are spent together."""
        if len(charges) > 1:
            return self._build_combined_check(charges)
        charge = charges[0]
        shape = self._shapes.get(charge.kind)
        if shape is None or shape[0] is not charge.limits:
            shape = self._shapes[charge.kind] = self._build_shape(charge.kind, charge.limits)
        user = charge.user
        tag = crc32(user.encode()) % self._partitions
        _, policies, heads_by_tag = shape
        heads = heads_by_tag[tag]
        keys = (heads[0] + user,) if len(heads) == 1 else tuple([head + user for head in heads])
        check = WindowEntry(keys, policies, tag, charge.kind, charge.limits, user, charge.units)
        if len(heads) == 1 and charge.units == 1:
            check.single_policy = policies[0]
        return check

    def build_refund(self, request: WindowEntry, answer: Answer) -> WindowEntry:
        """Build the refund of all units of an admission; its answer may be ignored."""
        units = [charge.units for charge in request.charges for _ in charge.limits]
        stamps = answer[VALUES - 1 :: VALUES]
        return WindowEntry(request.keys, request.policies, request.tag, refunds=units, stamps=stamps)

    def part_of(
        self, check: WindowEntry, answer: Answer, charges: Sequence[AnyCharge]
    ) -> tuple[WindowEntry, Answer]:
        """Return a check of some charges with their part of the answer to the whole ``check``.

        A charge that is not in it has no stamp, and needs none to be charged.
        """
        part = self.build_check(charges)
        stamps = dict(zip(check.keys, answer[VALUES - 1 :: VALUES], strict=True))
        return part, [value for key in part.keys for value in (0, 0, 0, stamps.get(key, 0))]

    def undo(self, entry: WindowEntry, answer: Answer, *, only_slots: bool = False) -> WindowEntry | None:
        """Build the refund of an answer without a receiver, or of its slots; None if it has spent nothing."""
        if entry.refunds or any(answer[::VALUES]):
            return None
        if only_slots:
            slots = [charge for charge in entry.charges if isinstance(charge.limits[0], SlotLimit)]
            return self.build_refund(*self.part_of(entry, answer, slots)) if slots else None
        return self.build_refund(entry, answer) if any(charge.units for charge in entry.charges) else None

    def encode(self, entries: Sequence[WindowEntry]) -> ScriptArguments:
        """Encode entries into keys and arguments of one call; without entries it only reads the clock."""
        keys: list[str] = []
        policy = entries[0].single_policy if entries else None
        if policy is not None:
            for entry in entries:
                if entry.single_policy is not policy:
                    break
                keys += entry.keys
            else:
                return keys, [1, *policy]
        return _encode_each(entries)

    def decode(self, reply: object, entries: Sequence[WindowEntry]) -> list[Answer | StoreErrorKind]:
        """Return an answer for each entry; a refund's has one integer for each key, the units moved.

        A foreign key is an error of its request alone, a reply that does not fit the entries a ValueError.
        """
        if not isinstance(reply, list) or set(map(type, reply)) != {int}:
            raise ValueError("the script's reply is not a list of integers")
        least = min(reply)
        if least < -2:
            raise ValueError("the script's reply has a negative count")
        ends = list(accumulate(map(attrgetter("values"), entries), initial=1))
        if ends[-1] != len(reply):
            raise ValueError(f"the script's reply has {len(reply)} integers, expected {ends[-1]}")
        answers: list[Answer | StoreErrorKind] = [reply[start:end] for start, end in pairwise(ends)]
        if least < 0:  # a wait without end, or another type of value under a key
            for place, entry in enumerate(entries):
                if not entry.refunds:
                    answers[place] = _without_foreign(reply[ends[place] : ends[place + 1]])
        return answers

    def _build_shape(self, kind: str, limits: tuple[UserLimit, ...]) -> _Shape:
        name, codes = key_safe(kind), [(_layout_code(limit), limit) for limit in limits]
        policies = tuple((code, limit.limit, limit.window_s * 1_000_000) for code, limit in codes)
        heads = [
            [f"{self._root}:{{{tag}}}:{name}:{code}{limit.window_s}:" for code, limit in codes]
            for tag in range(self._partitions)
        ]
        return limits, policies, heads

    def _build_combined_check(self, charges: Sequence[AnyCharge]) -> WindowEntry:
        requests = [self.build_check((charge,)) for charge in charges]
        tags = {request.tag for request in requests}
        return WindowEntry(
            tuple([key for request in requests for key in request.keys]),
            tuple([policy for request in requests for policy in request.policies]),
            tags.pop() if len(tags) == 1 else SPLIT,
            several=charges,
        )


def key_safe(name: str) -> str:
    """Return a name for use in a key: unchanged, or a digest that no plain name equals."""
    if _PLAIN.fullmatch(name):
        return name
    return "~" + blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _without_foreign(answer: list[int]) -> Answer | StoreErrorKind:
    if min(*answer[1::VALUES], *answer[2::VALUES]) < 0:
        raise ValueError("the script's reply has a negative count")
    return StoreErrorKind.FOREIGN if min(answer[::VALUES]) == -2 else answer


def _layout_code(limit: UserLimit) -> str:
    return "l" if limit.exact else "b"


def _encode_each(entries: Sequence[WindowEntry]) -> ScriptArguments:
    """Encode in the long form: the policies once, then each entry's units of them."""
    keys: list[str] = []
    numbers: dict[Policy, int] = {}
    usual: dict[tuple[int, int], list[int]] = {}
    wanted: list[int] = []
    for entry in entries:
        keys += entry.keys
        if entry.refunds:
            wanted.append(-len(entry.keys))
            for policy, units, stamp in zip(entry.policies, entry.refunds, entry.stamps, strict=True):
                wanted += (numbers.setdefault(policy, len(numbers) + 1), units, stamp)
        elif entry.several:
            wanted += _costs(entry, numbers)
        else:
            alike = (id(entry.policies), entry.units)
            if alike not in usual:
                usual[alike] = _costs(entry, numbers)
            wanted += usual[alike]
    return keys, [len(numbers), *(value for policy in numbers for value in policy), *wanted]


def _costs(request: WindowEntry, numbers: dict[Policy, int]) -> list[int]:
    wanted = [len(request.keys)]
    costs = (charge.units for charge in request.charges for _ in charge.limits)
    for policy, cost in zip(request.policies, costs, strict=True):
        wanted += (numbers.setdefault(policy, len(numbers) + 1), cost)
    return wanted
