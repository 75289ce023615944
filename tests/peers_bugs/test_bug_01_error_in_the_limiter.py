"""Bug 1: an error inside the limiter is a 500 on every route."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle import ProviderUnavailable
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.testing import throttle_for_tests
from tests.asgi.run_app import at_once, http_scope
from tests.peers_bugs.limiter import LIMIT, Make, Plain, Subject, answer, ours


def check(make: Make) -> None:
    subject = make()
    try:
        assert subject.passed(LIMIT + 3) == LIMIT
    except RuntimeError as error:
        raise AssertionError("the limiter's own error reached the client") from error


def failing(scope: Any) -> Any:
    raise RuntimeError("the directory of users is down")


class Raises(Plain):
    def key(self, scope: Any) -> str:
        return str(failing(scope))


def ours_with_a_failing_identify() -> Subject:
    throttle = throttle_for_tests(user_limit=f"{LIMIT}/minute")
    app = ThrottleMiddleware(answer, throttle=throttle, identify=failing)
    return Subject(app, throttle.clock, lambda: throttle.snapshot().users)


@pytest.mark.parametrize("make", [ours_with_a_failing_identify, Plain.subject])
def test_error_in_the_limiter_is_not_the_clients(make: Make) -> None:
    check(make)


def test_planted_error_is_found() -> None:
    with pytest.raises(AssertionError, match="own error"):
        check(Raises.subject)


def test_failing_gpu_is_not_the_clients() -> None:
    throttle = throttle_for_tests(user_limit=f"{LIMIT}/minute")
    throttle.gpu.fail_with(ProviderUnavailable("off the bus"))
    throttle.tick(5)
    throttle.gpu.fail_with(ZeroDivisionError())
    throttle.tick(5)
    app = ThrottleMiddleware(answer, throttle=throttle)
    statuses = [at_once(app, http_scope("/x")).status for _ in range(LIMIT + 3)]
    assert statuses == [200] * LIMIT + [429] * 3


def test_health_needs_no_limiter() -> None:
    subject = ours(rate_mid_rps=0.001, burst_s=1000)
    assert [at_once(subject.app, http_scope("/health")).status for _ in range(50)] == [200] * 50
