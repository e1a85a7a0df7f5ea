"""A small environment with its own expert, for tests of everything that drives environments."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import msgspec

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, Tool, ToolCall, text_message, tool_result
from firstchair.rollout.environment import Check, Observation, Outcome, Step

STORE = Tool(
    name="store",
    description="Store one word.",
    parameters={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)


class WordTask(msgspec.Struct, frozen=True, kw_only=True):
    """The user wants ``words`` stored, one word a turn. ``fault`` names a method that is to raise."""

    task_id: str
    words: tuple[str, ...]
    fault: str = ""


class WordEnvironment:
    """The model must call ``store`` with the word asked for, then say something, once per word."""

    def __init__(self) -> None:
        self._task = WordTask(task_id="", words=())
        self._stored: list[str] = []
        self._turn = 0
        self.seed = -1

    async def reset(self, task: WordTask, seed: int) -> Observation:
        """The system message and the first wish."""
        self._task, self._stored, self._turn, self.seed = task, [], 0, seed
        self._maybe_fail("reset")
        system = text_message("system", "You store words.")
        return Observation(messages=(system, self._wish()), tools=(STORE,))

    async def step(self, action: Action) -> Step:
        """Store, or go on to the next word."""
        self._maybe_fail("step")
        if action.kind == "tool_call":
            return Step(messages=tuple(self._result(call) for call in action.calls), done=False)
        self._turn += 1
        done = self._turn >= len(self._task.words)
        return Step(messages=() if done else (self._wish(),), done=done)

    async def verify(self) -> Outcome:
        """All words stored, in order."""
        self._maybe_fail("verify")
        ok = self._stored == list(self._task.words)
        return Outcome(completed=ok, checks=(Check(name="stored", ok=ok, detail=" ".join(self._stored)),))

    async def snapshot(self) -> Any:
        """The whole state."""
        return deepcopy((self._task, self._stored, self._turn, self.seed))

    async def restore(self, snapshot: Any) -> None:
        """Back to it."""
        self._task, self._stored, self._turn, self.seed = deepcopy(snapshot)

    def _wish(self) -> Message:
        return text_message("user", f"Please store the word {self._task.words[self._turn]}")

    def _result(self, call: ToolCall) -> Message:
        word = (call.parsed() or {}).get("word")
        if call.name != "store" or not isinstance(word, str):
            return tool_result(call, "no such tool or word", is_error=True)
        self._stored.append(word)
        return tool_result(call, f"stored {word}")

    def _maybe_fail(self, method: str) -> None:
        if self._task.fault == method:
            raise RuntimeError(f"{method} is broken")


class WordExpert:
    """Does it right, from the messages alone."""

    def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """Store the last word asked for, then confirm it."""
        last = messages[-1]
        if last.role == "tool":
            return Action(kind="final_reply", text="Done: äöü 🦊.", thinking="It is stored.")
        word = last.text.rpartition(" ")[2]
        call = ToolCall.of(f"call_{len(messages)}", "store", {"word": word})
        return Action(kind="tool_call", calls=(call,), thinking=f"The word is {word}.", text="Storing it.")
