# mypy: ignore-errors
"""The shapes of ``autoglm-throttle load``, offered by Locust.

Run it in an environment of its own, beside a service on port 8000:

    pip install . locust
    SHAPE=step:50,100,200:10 locust --headless -f examples/locustfile.py -H http://127.0.0.1:8000

Locust's users wait for their answers (a closed loop), so a rate is offered *at most*: when the service slows
down, so does the load, and the latencies look better than those of callers who do not wait. Use
``autoglm-throttle load`` where that matters, and this where you have Locust scenarios already.

``SHAPE`` is fixed:RATE:SECONDS, step:R1,R2,...:SECONDS, step:FROM:TO:STEPS:SECONDS,
spike:BASE:PEAK:BASE_S:PEAK_S or ramp:FROM:TO:SECONDS; ``PER_USER_RPS`` (1) how often each user asks at most;
``REQUEST_PATH`` (/v1/generate) and ``REQUEST_BODY`` ({}) what they ask. A 429, and a 503 with Retry-After,
are answers: they count under names of their own and not as failures.
"""

import os
from bisect import bisect_right
from itertools import accumulate

from locust import FastHttpUser, LoadTestShape, constant_throughput, tag, task

from autoglm_throttle.traffic.plan import LoadShape

SHAPE = LoadShape.parse(os.environ.get("SHAPE", "step:50,100,200:10"))
PER_USER_RPS = float(os.environ.get("PER_USER_RPS", "1"))
PATH = os.environ.get("REQUEST_PATH", "/v1/generate")
BODY = os.environ.get("REQUEST_BODY", "{}")


def rate_rps(shape: LoadShape, elapsed_s: float) -> float | None:
    """The rate at a time, in requests/s; None when the shape is over."""
    ends_s = list(accumulate(level.duration_s for level in shape.levels))
    number = bisect_right(ends_s, elapsed_s)
    if number == len(ends_s):
        return None
    level = shape.levels[number]
    done = 1.0 - (ends_s[number] - elapsed_s) / level.duration_s
    return level.rate_rps + done * (level.last_rps - level.rate_rps)


class Steps(LoadTestShape):
    """As many users as the rate needs, if each of them is answered in time."""

    def tick(self) -> tuple[int, int] | None:
        rate = rate_rps(SHAPE, self.get_run_time())
        if rate is None:
            return None
        users = max(1, round(rate / PER_USER_RPS))
        return users, users


class Caller(FastHttpUser):
    """Asks with a priority: one in ten high, three mid, six low, as the load command does."""

    wait_time = constant_throughput(PER_USER_RPS)

    @tag("high")
    @task(1)
    def high(self) -> None:
        self.ask("high")

    @tag("mid")
    @task(3)
    def mid(self) -> None:
        self.ask("mid")

    @tag("low")
    @task(6)
    def low(self) -> None:
        self.ask("low")

    def ask(self, priority: str) -> None:
        headers = {"content-type": "application/json", "x-priority": priority}
        name = f"{PATH} {priority}"
        with self.client.post(PATH, data=BODY, headers=headers, name=name, catch_response=True) as answer:
            if answer.status_code == 429:
                answer.request_meta["name"] += " limited"
                answer.success()
            elif answer.status_code == 503 and "retry-after" in answer.headers:
                answer.request_meta["name"] += " shed"
                answer.success()
