"""The right next action in any state of a desk conversation: the plan of the turn, driven by what was done.

Only messages are read. A call counts as done when the same call stands in the turn with a result; other calls
are ignored, so the answer is also right after a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from firstchair.chat.messages import Message
from firstchair.rollout.desk.parsing import Intent, parse
from firstchair.rollout.desk.plans import Plan, Reply, Seen, Step, failed, first_path, plan_of

REASONS = MappingProxyType(
    {
        "chat": "Small talk: answer at once.",
        "recall": "It is in memory: answer.",
        "remember": "Asked to remember: rewrite memory.",
        "preference": "A lasting fact: rewrite memory.",
        "find_files": "Find files: use Glob.",
        "read_file": "Text file: read it.",
        "pdf_question": "PDF question: use skill pdf-reading.",
        "search_text": "Text in files: use Grep.",
        "records": "Look it up: use Grep.",
        "create_file": "New text file: write it.",
        "edit_file": "Change a file: edit it.",
        "file_command": "File command: use Bash.",
        "share_file": "Existing file: share it.",
        "web_page": "One page: fetch it.",
        "quick_search": "One lookup: search the web.",
        "compare_sites": "Several sites: use skill web-search.",
        "research": "Long research: use Agent.",
        "image": "New picture: use ImageGenerator.",
        "video": "New video: use VideoGenerator.",
        "video_from_video": "Existing clip: use skill video-from-video.",
        "document": "Word document: use skill docx.",
        "spreadsheet": "Spreadsheet: use skill spreadsheet.",
        "reminder": "One reminder: set it.",
        "recurring": "Repeating or listing: use skill reminders.",
        "meeting": "Calendar event: book it.",
        "message": "Written message: send it.",
        "call": "One-way message: phone call.",
        "dialogue": "Needs a dialogue: use skill voice-calling.",
        "platform_help": "About the platform: use skill platform-help.",
        "cut_result": "Result is cut: load the rest.",
        "missing_detail": "A detail is missing: ask once.",
        "not_found": "Not there: find it by name.",
        "retry": "Passing error: try again.",
        "deliver": "New file for the user: share it.",
        "script": "Skill is ready: run its script.",
        "answer": "Done: answer.",
        "give_up": "It failed: say so.",
    }
)
"""Policy row → the short reason written before acting; ``script`` before the script of a loaded skill, ``answer``
and ``give_up`` before final replies."""


@dataclass(frozen=True)
class Done:
    """One call of the present turn with its result; ``index`` is the message index of the result."""

    tool: str
    arguments: dict[str, Any] | None
    result: str
    index: int


@dataclass(frozen=True)
class Turn:
    """What the conversation says about the present turn."""

    intents: tuple[Intent, ...]
    done: tuple[Done, ...]
    seen: Seen
    user_index: int
    """Message index of the user's request; -1 when there is none."""


@dataclass(frozen=True)
class Decision:
    """The right next action and why."""

    wanted: Step | Reply
    row: str
    """The policy row that decides."""
    reason: str
    evidence: int
    """Index of the message that shows it."""


_MEMORY = re.compile(r"Memory: (.*)", re.DOTALL)


def read_turn(messages: Sequence[Message]) -> Turn:
    """Read the present turn out of a conversation."""
    user_index = max((place for place, message in enumerate(messages) if message.role == "user"), default=-1)
    memory, skills, last_path = "", set[str](), ""
    calls: dict[str, tuple[str, dict[str, Any] | None]] = {}
    done: list[Done] = []
    for place, message in enumerate(messages):
        if message.role == "system":
            found = _MEMORY.search(message.text)
            memory += found.group(1) if found else ""
        elif message.role == "assistant":
            calls.update((call.id, (call.name, call.parsed())) for call in message.tool_calls)
            if place < user_index:
                last_path = first_path(message.text) or last_path
        elif message.role == "tool":
            name, arguments = calls.get(message.tool_call_id or "", ("", None))
            if place > user_index:
                done.append(Done(name, arguments, message.text, place))
            elif name == "skill" and arguments is not None and not failed(message.text):
                skills.add(str(arguments.get("name")))
            if name == "MemoryRewrite" and arguments is not None and not failed(message.text):
                memory += f"\n{arguments.get('content')}"
    intents = parse(messages[user_index].text) if user_index >= 0 else ()
    return Turn(intents, tuple(done), Seen(memory, frozenset(skills), last_path), user_index)


def decide(turn: Turn) -> Decision:
    """The right next action in this turn."""
    return drive(plan_of(turn.intents, turn.seen), turn)


def drive(plan: Plan, turn: Turn) -> Decision:
    """Feed a plan with the results that are already there until it wants something new."""
    left = list(turn.done)
    reached, evidence = -1, max(turn.user_index, 0)
    try:
        step = next(plan)
        while True:
            match = _matching(step, left, reached)
            if match is None:
                return Decision(step, step.row, _reason(step), evidence)
            left.remove(match)
            reached = max(reached, match.index)
            evidence = match.index
            step = plan.send(match.result)
    except StopIteration as stop:
        reply: Reply = stop.value
        direct = reply.row in ("chat", "recall") and not turn.done
        reason = REASONS["give_up" if reply.denies else reply.row if direct else "answer"]
        return Decision(reply, reply.row, reason, evidence)


def _reason(step: Step) -> str:
    scripted = step.tool == "skill_script" and step.row not in ("retry", "not_found")
    return REASONS["script" if scripted else step.row]


def _matching(step: Step, left: list[Done], reached: int) -> Done | None:
    """The call that carries ``step`` out: one that worked, wherever it stands; else one that failed since.

    A failed call from before the point that the plan has reached was made too early and proves nothing.
    """
    same = [
        done
        for done in left
        if done.tool == step.tool and (step.tool == "AskUser" or done.arguments == step.arguments)
    ]
    worked = [done for done in same if not failed(done.result)]
    return next(iter(worked), None) or next((done for done in same if done.index > reached), None)


def assume(turn: Turn, step: Step, result: str) -> Turn:
    """The turn as if ``step`` had been carried out with ``result``."""
    index = max((done.index for done in turn.done), default=turn.user_index) + 1
    return replace(turn, done=(*turn.done, Done(step.tool, dict(step.arguments), result, index)))
