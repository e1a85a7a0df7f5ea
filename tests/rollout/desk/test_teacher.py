import asyncio
import re
from collections import Counter
from functools import cache

import pytest

from firstchair.chat.messages import Message, text_message
from firstchair.core.errors import ConfigError
from firstchair.rollout.desk.definitions import desk_policy, desk_tools
from firstchair.rollout.desk.sample import play, transcript
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher, oracle
from firstchair.rollout.environment import Outcome

SIZE = 1000


@cache
def played() -> tuple[tuple[DeskTask, tuple[Message, ...], Outcome], ...]:
    """Episodes of the faultless teacher, played once for all tests of this module."""

    async def run() -> list[tuple[DeskTask, tuple[Message, ...], Outcome]]:
        return [(task, *await play(task, Teacher())) for task in make_tasks(SIZE, 11)]

    return tuple(asyncio.run(run()))


def test_the_teacher_solves_every_task_without_breaking_a_row():
    failed = [
        (task.task_id, [check for check in outcome.checks if not check.ok], outcome.violations)
        for task, _, outcome in played()
        if not outcome.completed or outcome.violations
    ]
    assert failed == []


def test_every_tool_is_needed_and_sessions_are_of_a_learnable_length():
    counts: Counter[str] = Counter()
    decisions = 0
    for _, messages, _ in played():
        for message in messages:
            if message.role == "assistant":
                decisions += 1
                counts.update(call.name for call in message.tool_calls)
    assert counts.keys() == {tool.name for tool in desk_tools()}
    assert 8 <= decisions / SIZE <= 12
    conventions = ["Glob", "MemoryRewrite", "AskUser", "tool_result_load", "skill", "skill_script", "Agent"]
    assert min(counts[tool] for tool in conventions) >= 0.02 * decisions
    assert min(counts.values()) >= 0.01 * decisions


def test_what_a_model_sees_and_says_is_short():
    longest: Counter[str] = Counter()
    for _, messages, _ in played():
        for message in messages:
            kind = "thinking" if message.thinking else message.role
            longest[message.role] = max(longest[message.role], len(message.text.split()))
            longest[kind] = max(longest[kind], len(message.thinking.split() or message.text.split()))
    assert longest["system"] <= 60
    assert longest["user"] <= 25
    assert longest["tool"] <= 30
    assert longest["assistant"] <= 12
    assert longest["thinking"] <= 8


def test_recovery_from_failures_is_part_of_the_tasks():
    after_error = Counter(
        messages[place].tool_calls[0].name if messages[place].tool_calls else "reply"
        for _, messages, _ in played()
        for place in range(1, len(messages))
        if messages[place].role == "assistant" and messages[place - 1].is_error
    )
    assert {"reply", "Glob", "AskUser", "WebFetch", "phone_call"} <= after_error.keys()
    assert sum(after_error.values()) >= SIZE / 2


FIXED = {
    ("AskUser", "question"),
    ("skill", "name"),
    ("skill_script", "skill"),
    ("skill_script", "script"),
    ("Grep", "path"),
}
COMPOSED = {("Glob", "pattern"), ("Bash", "command"), ("skill_script", "input")}


def test_arguments_are_copied_from_what_stands_in_the_conversation():
    invented = []
    for _, messages, _ in played()[:300]:
        text = ""
        for message in messages:
            for call in message.tool_calls:
                for field, value in (call.parsed() or {}).items():
                    parts = re.split(r"\*\*/|/\*\.|: | ", value) if (call.name, field) in COMPOSED else [value]
                    known = (call.name, field) in FIXED or all(
                        part in text or part in ("mv", "cp", "rm", "wc", "-l", "all") for part in parts
                    )
                    if not known:
                        invented.append((call.name, field, value))
            text += message.text + "\n"
    assert invented == []


@pytest.mark.parametrize(
    "row",
    [row for row in desk_policy().rows if row.id not in ("cut_result", "not_found", "retry", "deliver")],
    ids=lambda row: row.id,
)
def test_the_examples_of_a_policy_row_are_routed_as_the_row_says(row):
    for example in row.examples:
        system = text_message("system", "You are the desk assistant. Memory: my locker code is K1")
        earlier = text_message("assistant", "I found plans/a.pdf")
        decision = oracle((system, text_message("user", "Hi there!"), earlier, text_message("user", example)))
        tool = getattr(decision.wanted, "tool", "reply")
        assert decision.row == row.id
        assert tool == ("skill" if row.skill else row.route)


def test_the_teacher_depends_on_the_messages_alone():
    teacher = Teacher(0.5, seed=3)
    for _, messages, _ in played()[:50]:
        for place in range(2, len(messages)):
            if messages[place].role == "assistant":
                assert teacher.act(messages[:place]) == teacher.act(list(messages[:place]), desk_tools())


def test_the_teacher_answers_anything_at_all():
    strange = [
        (),
        (text_message("user", "Schreib mir bitte ein Gedicht."),),
        (text_message("system", "x"),),
        (text_message("user", "Hello!"), text_message("tool", "orphan", tool_call_id="nowhere")),
    ]
    for messages in strange:
        assert Teacher().act(messages).kind == "final_reply"


def test_a_tool_that_is_not_offered_is_not_called():
    messages = (text_message("user", "Find harbor-memo.txt for me."),)
    assert Teacher().act(messages, desk_tools()).calls[0].name == "Glob"
    assert Teacher().act(messages, desk_tools()[:2]).kind == "final_reply"


def test_a_mistake_rate_that_is_no_share_is_refused():
    with pytest.raises(ConfigError, match="mistake_rate: found 2"):
        Teacher(2)


def test_a_session_can_be_read_as_text():
    _, messages, _ = played()[0]
    text = transcript(messages)
    assert text.startswith("system: You are the desk assistant.")
    assert "\n  → " in text
    assert "\nassistant: " in text
