"""Run by the interpreter that has ``verifiers``: real tasks of it, tools included, played by a scripted policy."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import verifiers.v1 as vf
from verifiers_sums import Sums

from firstchair.chat.actions import Action
from firstchair.chat.messages import ToolCall
from firstchair.rollout.episodes import Episode, run_episodes
from firstchair.rollout.policy import PolicyReply, PolicyRequest
from firstchair.rollout.verifiers_environment import verifiers_environment, verifiers_tasks


class Adder:
    """Uses the tool, except for the second task, and answers the third one wrong."""

    name, batched = "adder", False

    async def act(self, requests: list[PolicyRequest]) -> list[PolicyReply]:
        return [PolicyReply(action=self._action(request)) for request in requests]

    def _action(self, request: PolicyRequest) -> Action:
        last = request.messages[-1]
        number = int(request.messages[1].text.split()[2])
        if last.role == "tool":
            return Action(kind="final_reply", text="no idea" if number == 2 else last.text)
        if number == 1:
            return Action(kind="final_reply", text="4")
        return Action(kind="tool_call", calls=(ToolCall.of("c0", request.tools[0].name, {"a": number, "b": 3}),))


def shown(episode: Episode) -> dict[str, Any]:
    outcome = episode.outcome
    return {
        "task_id": episode.task_id,
        "roles": [message.role for message in episode.session.messages],
        "tools": [tool.name for tool in episode.tools],
        "completed": episode.completed,
        "score": outcome.score if outcome else None,
        "checks": {check.name: check.ok for check in outcome.checks} if outcome else {},
        "error": episode.error,
    }


async def main() -> list[dict[str, Any]]:
    taskset = Sums(vf.TasksetConfig(id="sums"))
    episodes = run_episodes(lambda: verifiers_environment(taskset), verifiers_tasks(taskset), Adder(), concurrency=2)
    return sorted([shown(episode) async for episode in episodes], key=lambda row: row["task_id"])


if __name__ == "__main__":
    json.dump(asyncio.run(main()), sys.stdout, indent=1)
