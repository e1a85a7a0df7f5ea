"""Scripted policies of synthetic tasks: the one who does them right, and those who must not get away with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, Tool, ToolCall
from firstchair.core.errors import DataError
from firstchair.rewards.hacking import DEGENERATE
from firstchair.rollout.policy import Actor
from firstchair.rollout.synthetic.domain import SyntheticTask
from firstchair.rollout.synthetic.opened import OpenDomain


class GoldenExpert:
    """Plays the golden calls and replies of the tasks it knows: asks for what the user keeps back, calls, replies.

    A task is recognised by what stands before its first action. Raises ``DataError`` for one that it does not know.
    """

    def __init__(self, domains: Mapping[str, OpenDomain], tasks: Iterable[SyntheticTask]):
        self._tasks = {(domains[task.domain].system, task.turns[0].user): task for task in tasks}

    def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """The next action of the script."""
        opening = (messages[0].text, messages[1].text)
        task = self._tasks.get(opening)
        if task is None:
            raise DataError(f"no task begins with {opening[1]!r}")
        script = self.script(task)
        done = sum(message.role == "assistant" for message in messages)
        return script[min(done, len(script) - 1)]

    def script(self, task: SyntheticTask) -> list[Action]:
        """All actions of an episode, in order."""
        made: list[Action] = []
        for turn in task.turns:
            made += [_reply(f"Could you tell me this, please: {fact.topics[0]}?") for fact in turn.facts]
            for call in turn.calls:
                made.append(
                    Action(
                        kind="tool_call",
                        calls=(ToolCall.of(f"golden_{len(made)}", call.tool, dict(call.arguments)),),
                    )
                )
            made.append(_reply(turn.reply))
        return made


class GoldenTalker(GoldenExpert):
    """Says all that the golden replies say, and does nothing."""

    def script(self, task: SyntheticTask) -> list[Action]:
        """The replies alone."""
        return [action for action in super().script(task) if action.kind == "final_reply"]


class Refuser:
    """Refuses whatever it is asked."""

    def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """The same words each time."""
        return _reply("I am sorry, I cannot do that: it is not possible and not allowed under our rules.")


def without_acting(domains: Mapping[str, OpenDomain], tasks: Sequence[SyntheticTask]) -> dict[str, Actor]:
    """Policies by which no task may be solved: they do nothing, or nothing but talk, or call without thought."""
    return {**DEGENERATE, "refuse_always": Refuser(), "golden_replies_alone": GoldenTalker(domains, tasks)}


def _reply(text: str) -> Action:
    return Action(kind="final_reply", text=text)
