"""Closed-loop users: start times, clients, and one request at a time."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections import Counter
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import ClientOptions, ClosedLoopSender, TargetUrl, UserSchedule
from autoglm_throttle.traffic.plan import PriorityMix, Users
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.types import Priority
from tests.traffic.scripted_server import OK, ScriptedServer, Serve, always, request

STEPS = st.lists(st.tuples(st.integers(1, 9), st.floats(0.1, 5.0)), min_size=1, max_size=5).map(tuple)
BRISK = ClientOptions(timeout_s=5.0, drain_s=5.0)


@given(STEPS, st.integers(0, 8), st.floats(0.0, 30.0))
def test_a_user_works_when_there_are_more_users_than_its_number(
    steps: tuple[tuple[int, float], ...], user: int, at_s: float
) -> None:
    roster = UserSchedule(Users(steps))
    due_s = roster.due(user, at_s)
    if due_s is None:
        assert all(users <= user for users, _ in steps[roster.step(at_s) :])
    else:
        assert due_s >= at_s
        assert steps[roster.step(due_s)][0] > user
        between = range(roster.step(at_s), roster.step(due_s))
        assert all(steps[step][0] <= user for step in between)


def test_users_begin_within_one_think_time_of_their_step() -> None:
    roster = UserSchedule(Users(((3, 1.0), (9, 1.0)), think_s=0.2))
    starts = roster.starts()
    assert starts == sorted(starts)
    assert [0.0 <= due_s < 0.2 for due_s, user in starts if user < 3] == [True] * 3
    assert [1.0 <= due_s < 1.2 for due_s, user in starts if user >= 3] == [True] * 6
    assert UserSchedule(roster.users, seed=1).starts() != starts


def test_draws_follow_the_mix_and_the_seed() -> None:
    crowd = PriorityMix({Priority.HIGH: 50.0, Priority.LOW: 50.0}, clients=4, skew=1.0, kinds=(3.0, 1.0))
    roster = UserSchedule(Users(((2, 1.0),)), (PlannedRequest(), PlannedRequest(method="GET")), crowd)
    kinds = Counter(islice(roster.kinds(), 4000))
    assert 2850 <= kinds[0] <= 3150
    assert set(islice(roster.priorities(), 100)) == {Priority.HIGH, Priority.LOW}
    clients = Counter(islice(roster.clients(), 2000))
    assert clients[0] > clients[3] > 0
    assert list(islice(roster.clients(), 20)) == list(islice(roster.clients(), 20))


def test_client_without_a_weight_is_never_drawn() -> None:
    roster = UserSchedule(Users(((100, 1.0),)), mix=PriorityMix(clients=3, skew=2000.0))
    assert set(islice(roster.clients(), 100)) == {0}


def test_every_request_needs_a_share() -> None:
    with pytest.raises(TrafficError, match="1 shares of 2 requests"):
        UserSchedule(Users(((1, 1.0),)), (PlannedRequest(), PlannedRequest()))


async def work(serve: Serve, roster: UserSchedule, options: ClientOptions = BRISK) -> Result:
    async with ScriptedServer(serve) as server:
        result = await ClosedLoopSender(roster, TargetUrl(port=server.port), options).run()
    assert result.balanced
    assert result.closed_loop
    return result


async def test_users_wait_for_their_answers_and_think() -> None:
    inside, most = 0, 0

    async def slow(reader: Reader, writer: Writer) -> None:
        nonlocal inside, most
        while True:
            await request(reader)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.02)
            inside -= 1
            writer.write(OK)

    result = await work(slow, UserSchedule(Users(((2, 0.2), (4, 0.2)), think_s=0.02)))
    plan, sheet = result.load.plan, result.request_log
    assert most <= 4
    assert result.run_cost.connections == 4
    assert result.total().results[RequestResult.OK] == len(plan)
    assert list(plan.offsets) == sorted(plan.offsets)
    assert plan.names == ("2 users", "4 users")
    assert plan.duration_s == pytest.approx(0.4)
    for segment, users in ((0, 2), (1, 4)):
        asked = [at_s for at_s, one in zip(plan.offsets, plan.segments, strict=True) if one == segment]
        assert 1 <= len(asked) <= (users + 1) * (0.2 / 0.04)
    assert min(sheet.service_s) >= 0.019


async def test_a_user_never_asks_twice_at_a_time_and_thinks_in_between() -> None:
    result = await work(always(OK), UserSchedule(Users(((1, 0.2),), think_s=0.01)))
    plan, sheet = result.load.plan, result.request_log
    ends_s = [at_s + took_s for at_s, took_s in zip(plan.offsets, sheet.response_s, strict=True)]
    gaps_s = [later - end_s for end_s, (_, later) in zip(ends_s, pairwise(plan.offsets), strict=False)]
    assert len(gaps_s) > 1
    assert min(gaps_s) >= 0.01 - 1e-4
    assert max(gaps_s) <= 0.01 + 1e-4


async def test_users_without_think_time_send_at_once() -> None:
    result = await work(always(OK), UserSchedule(Users(((1, 0.2),), think_s=0.0)))
    plan, request_log = result.load.plan, result.request_log
    ends_s = [at_s + took_s for at_s, took_s in zip(plan.offsets, request_log.response_s, strict=True)]
    assert len(ends_s) > 1
    assert list(plan.offsets[1:]) == pytest.approx(ends_s[:-1], abs=1e-4)


async def test_stopped_users_send_no_more_requests() -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await request(reader)
        crew.stop()
        await asyncio.sleep(0.05)
        writer.write(OK)
        await reader.read()

    async with ScriptedServer(serve) as server:
        crew = ClosedLoopSender(
            UserSchedule(Users(((1, 60.0),), think_s=0.01)), TargetUrl(port=server.port), BRISK
        )
        result = await crew.run()
    assert result.aborted
    assert result.total().results[RequestResult.OK] == len(result.request_log) == 1


async def test_users_go_on_after_errors() -> None:
    result = await work(
        always(b"HTTP/1.1 500 X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"),
        UserSchedule(Users(((2, 0.2),), think_s=0.01)),
    )
    assert result.total().results[RequestResult.SERVER_ERROR] == len(result.request_log) > 1


async def test_stopped_users_send_nothing_while_others_wait() -> None:
    inside, both = 0, asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal inside
        await request(reader)
        inside += 1
        if inside == 2:
            crew.stop()
            both.set()
            await asyncio.sleep(0.1)
        await both.wait()
        writer.write(OK)
        await reader.read()

    async with ScriptedServer(serve) as server:
        crew = ClosedLoopSender(
            UserSchedule(Users(((2, 60.0),), think_s=0.01)), TargetUrl(port=server.port), BRISK
        )
        result = await crew.run()
    assert result.total().results[RequestResult.OK] == len(result.request_log) == 2


def test_users_ask_nothing_that_would_begin_after_the_end() -> None:
    roster = UserSchedule(Users(((50, 0.1),), think_s=0.2))
    crew = ClosedLoopSender(roster, TargetUrl(port=1))
    before_the_end = sum(due_s < 0.1 for due_s, _ in roster.starts())
    assert not crew.send_due(10.0)
    assert crew.launched == len(crew.request_log) == before_the_end < 50
