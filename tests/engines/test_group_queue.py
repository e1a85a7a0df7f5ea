from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.engines.group_queue import GroupGate, GroupQueue


def drain(queue: GroupQueue[int]) -> list[int]:
    return [queue.take()[1] for _ in range(len(queue))]


def test_one_request_of_each_group_goes_first() -> None:
    queue: GroupQueue[int] = GroupQueue()
    for group, item in (("a", 1), ("a", 2), ("b", 3)):
        queue.put(group, item)
    assert drain(queue) == [1, 3, 2]


def test_a_started_group_goes_on_before_a_new_one_starts() -> None:
    queue: GroupQueue[int] = GroupQueue()
    for group, item in (("a", 1), ("a", 2), ("b", 3)):
        queue.put(group, item)
    group, _ = queue.take()
    queue.done(group)
    assert drain(queue) == [2, 3]


def test_an_empty_queue_has_nothing_to_take() -> None:
    with pytest.raises(IndexError, match="empty"):
        GroupQueue().take()


@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.booleans(), max_size=60))
def test_every_item_comes_out_once_and_in_order_within_its_group(groups: list[str], finish: list[bool]) -> None:
    queue: GroupQueue[int] = GroupQueue()
    for number, group in enumerate(groups):
        queue.put(group, number)
    taken: list[tuple[str, int]] = []
    running: list[str] = []
    for now in finish + [False] * len(groups):
        if now and running:
            queue.done(running.pop())
        elif len(queue):
            group, item = queue.take()
            running.append(str(group))
            taken.append((str(group), item))
    for group in running:
        queue.done(group)
    assert sorted(item for _, item in taken) == list(range(len(groups)))
    for name in "abc":
        own = [item for group, item in taken if group == name]
        assert own == sorted(own)
    assert not queue._waiting
    assert not queue._in_flight


def test_the_gate_holds_its_limit_and_a_cancelled_waiter_gives_its_turn_away() -> None:
    async def run() -> tuple[int, list[int]]:
        gate, busy, most, order = GroupGate(2), 0, 0, []

        async def work(number: int) -> None:
            nonlocal busy, most
            async with gate.turn(number % 3):
                busy += 1
                most = max(most, busy)
                await asyncio.sleep(0)
                order.append(number)
                busy -= 1

        tasks = [asyncio.ensure_future(work(number)) for number in range(9)]
        await asyncio.sleep(0)
        tasks[4].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with gate.turn("after"):
            return most, order

    most, order = asyncio.run(run())
    assert most == 2
    assert sorted(order) == [0, 1, 2, 3, 5, 6, 7, 8]
