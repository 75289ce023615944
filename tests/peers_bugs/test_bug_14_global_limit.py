"""Bug 14: a limit per client that is one for all clients when used as documented."""

from __future__ import annotations

from typing import Any

import pytest

from tests.peers_bugs.limiter import LIMIT, Make, Plain, ours


def check(make: Make) -> None:
    subject = make()
    for n in range(10):
        passed = subject.passed(LIMIT + 1, client=f"192.0.2.{n}")
        assert passed == LIMIT, "clients share a limit that is each one's own"


class OneBucket(Plain):
    def key(self, scope: Any) -> str:
        return "all"


@pytest.mark.parametrize("make", [ours, Plain.subject])
def test_each_client_has_its_own_limit(make: Make) -> None:
    check(make)


def test_planted_common_bucket_is_found() -> None:
    with pytest.raises(AssertionError, match="share a limit"):
        check(OneBucket.subject)
