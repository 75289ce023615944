"""Encodes charges into the numbers of the user-limit script, and decodes its replies.

The script, `sliding_window.lua`, defines the numbers in its first lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from importlib import resources
from zlib import crc32

from autoglm_throttle.store.user_limit_store import VALUES, Answer, StoreCharge
from autoglm_throttle.types import UserLimit

LAYOUT = "w1"
"""Version of the values under a key: two versions, deployed side by side, never share a key."""

SPLIT = -1
"""Tag of a request with keys in more than one partition."""

Policy = tuple[str, int, int]
"""Layout (``l`` for a list of stamps, ``b`` for sub-buckets), limit in units, window in microseconds."""

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_PREFIX = re.compile(r"[^\s{}]{1,120}")


class CheckRequest:
    """One request: its units are spent under all keys or under none."""

    __slots__ = ("charges", "keys", "policies", "single_policy", "tag")

    def __init__(
        self, charges: Sequence[StoreCharge], keys: list[str], policies: tuple[Policy, ...], tag: int
    ) -> None:
        self.charges: Sequence[StoreCharge] = charges
        self.keys: list[str] = keys
        """One for each limit of each charge, in their order."""
        self.policies: tuple[Policy, ...] = policies
        """One for each key."""
        self.tag: int = tag
        """The partition of all keys, `SPLIT` if there is more than one."""
        self.single_policy: Policy | None = policies[0] if len(keys) == 1 and charges[0].units == 1 else None
        """The policy of a request of one limit and one unit."""

    def __repr__(self) -> str:
        return f"CheckRequest({', '.join(self.keys)})"


class RefundRequest:
    """Units that are refunded or charged afterwards; its answer may be ignored."""

    __slots__ = ("deltas", "keys", "policies", "single_policy", "stamps", "tag")

    def __init__(self, request: CheckRequest, deltas: Sequence[int], stamps: Sequence[int]) -> None:
        self.keys: list[str] = request.keys
        self.policies: tuple[Policy, ...] = request.policies
        self.deltas: Sequence[int] = deltas
        """Units for each key; below 0 they are refunded."""
        self.stamps: Sequence[int] = stamps
        """Stamp of each key's units, from the answer."""
        self.tag: int = request.tag
        self.single_policy: Policy | None = None

    def __repr__(self) -> str:
        changes = ", ".join(f"{key} {delta:+d}" for key, delta in zip(self.keys, self.deltas, strict=True))
        return f"RefundRequest({changes})"


WindowEntry = CheckRequest | RefundRequest


@cache
def script() -> str:
    """The text of the script, for ``EVAL``; its SHA1 is that of this text in UTF-8."""
    return resources.files(__package__).joinpath("sliding_window.lua").read_text("utf-8")


class WindowProtocol:
    """Encodes requests into keys and arguments, and decodes replies into answers.

    Args:
        prefix: of every key of the library; 1 to 120 characters without blanks and braces.
        service: name of the service; the same holds for it.
        partitions: >= 1; the keys of one partition lie on one node of a Cluster.

    Raises:
        ValueError: an argument violates these rules.
    """

    def __init__(self, prefix: str, service: str, partitions: int) -> None:
        for what, text in (("prefix", prefix), ("service", service)):
            if not _PREFIX.fullmatch(text):
                raise ValueError(
                    f"the {what} of keys is {text!r}: 1 to 120 characters, no blanks and braces, are needed"
                )
        if partitions < 1:
            raise ValueError(f"partitions is {partitions}: at least 1 is needed")
        self._root = f"{prefix}:{service}:{LAYOUT}"
        self._partitions = partitions
        self._shapes: dict[str, _Shape] = {}

    def build_check(self, charges: Sequence[StoreCharge]) -> CheckRequest:
        """Build the request for the charges, at least one, which are spent together."""
        if len(charges) > 1:
            return self._build_combined_check(charges)
        charge = charges[0]
        shape = self._shapes.get(charge.kind)
        if shape is None or shape.limits is not charge.limits:
            shape = self._shape(charge)
        user = charge.user
        tag = crc32(user.encode()) % self._partitions
        return CheckRequest(charges, [head + user for head in shape.heads[tag]], shape.policies, tag)

    def build_refund(self, request: CheckRequest, answer: Answer) -> RefundRequest:
        """Build the refund of all units of an admission."""
        deltas = [-charge.units for charge in request.charges for _ in charge.limits]
        return RefundRequest(request, deltas, answer[VALUES - 1 :: VALUES])

    def build_adjustment(self, request: CheckRequest, answer: Answer, delta: int) -> RefundRequest:
        """Build a change of ``delta`` units under each limit of an admission; below 0 it refunds.

        More units are charged without a check: a limit may be exceeded, and later requests wait for it.
        """
        return RefundRequest(request, [delta] * len(request.keys), answer[VALUES - 1 :: VALUES])

    def encode(self, entries: Sequence[WindowEntry]) -> tuple[list[str], list[str | int]]:
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

    def decode(self, reply: object, entries: Sequence[WindowEntry]) -> list[Answer]:
        """Return an answer for each entry; a refund's has one integer for each key, the units moved.

        Raises:
            ValueError: the reply does not fit these entries.
        """
        if not isinstance(reply, list) or set(map(type, reply)) != {int}:
            raise ValueError("the script's reply is not a list of integers")
        answers: list[Answer] = []
        start = 1
        for entry in entries:
            keys = len(entry.keys)
            end = start + (keys * VALUES if type(entry) is CheckRequest else keys)
            answers.append(reply[start:end])
            start = end
        if start != len(reply):
            raise ValueError(f"the script's reply has {len(reply)} integers, expected {start}")
        return answers

    def _build_combined_check(self, charges: Sequence[StoreCharge]) -> CheckRequest:
        requests = [self.build_check((charge,)) for charge in charges]
        tags = {request.tag for request in requests}
        return CheckRequest(
            charges,
            [key for request in requests for key in request.keys],
            tuple(policy for request in requests for policy in request.policies),
            tags.pop() if len(tags) == 1 else SPLIT,
        )

    def _shape(self, charge: StoreCharge) -> _Shape:
        """Store the current limits of a name."""
        shape = self._shapes[charge.kind] = _Shape(self._root, charge.kind, charge.limits, self._partitions)
        return shape


class _Shape:
    """Common parts of all requests under one set of limits."""

    __slots__ = ("heads", "limits", "policies")

    def __init__(self, root: str, kind: str, limits: tuple[UserLimit, ...], partitions: int) -> None:
        self.limits = limits
        self.policies: tuple[Policy, ...] = tuple(
            (_layout_code(limit), limit.limit, limit.window_s * 1_000_000) for limit in limits
        )
        name = key_safe(kind)
        self.heads = [
            [f"{root}:{{{tag}}}:{name}:{_layout_code(limit)}{limit.window_s}:" for limit in limits]
            for tag in range(partitions)
        ]
        """For each partition, the keys without their users."""


def key_safe(name: str) -> str:
    """Return a name for use in a key: unchanged, or a digest that no plain name equals."""
    if _PLAIN.fullmatch(name):
        return name
    return "~" + blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _layout_code(limit: UserLimit) -> str:
    return "l" if limit.exact else "b"


def _encode_each(entries: Sequence[WindowEntry]) -> tuple[list[str], list[str | int]]:
    """Encode in the long form: the policies once, then each entry's units of them."""
    keys: list[str] = []
    numbers: dict[Policy, int] = {}
    usual: dict[tuple[int, int], list[int]] = {}
    wanted: list[int] = []
    for entry in entries:
        keys += entry.keys
        if isinstance(entry, RefundRequest):
            wanted += _changes(entry, numbers)
        elif len(entry.charges) > 1:
            wanted += _costs(entry, numbers)
        else:
            alike = (id(entry.policies), entry.charges[0].units)
            if alike not in usual:
                usual[alike] = _costs(entry, numbers)
            wanted += usual[alike]
    return keys, [len(numbers), *(value for policy in numbers for value in policy), *wanted]


def _costs(request: CheckRequest, numbers: dict[Policy, int]) -> list[int]:
    wanted = [len(request.keys)]
    costs = (charge.units for charge in request.charges for _ in charge.limits)
    for policy, cost in zip(request.policies, costs, strict=True):
        wanted += (numbers.setdefault(policy, len(numbers) + 1), cost)
    return wanted


def _changes(refund: RefundRequest, numbers: dict[Policy, int]) -> list[int]:
    wanted = [-len(refund.keys)]
    for policy, delta, stamp in zip(refund.policies, refund.deltas, refund.stamps, strict=True):
        wanted += (numbers.setdefault(policy, len(numbers) + 1), delta, stamp)
    return wanted
