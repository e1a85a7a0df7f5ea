"""Steps per second of the desk on one core: the environment alone, the teacher alone, and whole episodes.

python bench/desk.py --tasks 1000
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from firstchair.chat.actions import Action, action_of
from firstchair.chat.messages import Message
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.sample import play
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher


async def _replay(tasks: Sequence[DeskTask], scripts: Sequence[Sequence[Action]]) -> None:
    for task, script in zip(tasks, scripts, strict=True):
        env = DeskEnvironment()
        await env.reset(task, 0)
        for action in script:
            await env.step(action)


async def _live_at_once(tasks: Sequence[DeskTask], scripts: Sequence[Sequence[Action]]) -> None:
    envs = [DeskEnvironment() for _ in tasks]
    for env, task in zip(envs, tasks, strict=True):
        await env.reset(task, 0)
    for place in range(max(map(len, scripts))):
        for env, script in zip(envs, scripts, strict=True):
            if place < len(script):
                await env.step(script[place])


def _teach(conversations: Sequence[Sequence[Message]]) -> None:
    teacher = Teacher()
    for messages in conversations:
        for place, message in enumerate(messages):
            if message.role == "assistant":
                teacher.act(messages[:place])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    count = parser.parse_args().tasks
    start = time.perf_counter()
    tasks = make_tasks(count, 1)
    print(f"make_tasks       {count / (time.perf_counter() - start):10,.0f} tasks/s")

    async def episodes() -> list[tuple[Message, ...]]:
        return [(await play(task, Teacher()))[0] for task in tasks]

    start = time.perf_counter()
    conversations = asyncio.run(episodes())
    scripts = [[action_of(m) for m in messages if m.role == "assistant"] for messages in conversations]
    steps = sum(map(len, scripts))
    print(
        f"teacher episodes {steps / (time.perf_counter() - start):10,.0f} steps/s (reset, act, step, verify, review)"
    )
    for name, run in (("environment", _replay), ("all live at once", _live_at_once)):
        start = time.perf_counter()
        asyncio.run(run(tasks, scripts))
        print(f"{name:16} {steps / (time.perf_counter() - start):10,.0f} steps/s")
    start = time.perf_counter()
    _teach(conversations)
    print(f"teacher          {steps / (time.perf_counter() - start):10,.0f} actions/s")


if __name__ == "__main__":
    main()
