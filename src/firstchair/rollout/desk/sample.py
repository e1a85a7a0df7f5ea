"""Desk sessions as text, and whole episodes played by the teacher: for people who want to look at the desk."""

from __future__ import annotations

from collections.abc import Sequence

from firstchair.chat.messages import Message
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.environment import Outcome


def transcript(messages: Sequence[Message]) -> str:
    """A conversation for reading: one line a message or call."""
    lines = []
    for message in messages:
        if message.role == "assistant":
            if message.thinking:
                lines.append(f"  ({message.thinking})")
            lines.extend(f"  → {call.name} {call.arguments}" for call in message.tool_calls)
            if message.text:
                lines.append(f"assistant: {message.text}")
        elif message.role == "tool":
            lines.append(f"  ← {message.text}")
        else:
            lines.append(f"{message.role}: {message.text}")
    return "\n".join(lines)


async def play(task: DeskTask, teacher: Teacher, seed: int = 0) -> tuple[tuple[Message, ...], Outcome]:
    """One episode, played to its end by the teacher."""
    env = DeskEnvironment()
    observation = await env.reset(task, seed)
    done = False
    while not done:
        done = (await env.step(teacher.act(env.messages, observation.tools))).done
    return env.messages, await env.verify()
