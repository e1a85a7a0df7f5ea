import asyncio
from functools import cache

import pytest

from firstchair.chat.actions import Action
from firstchair.chat.messages import ToolCall, text_message
from firstchair.data.corrections import Dimension, apply_corrections, correction_from, same_action
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.review import corrections_of, dimension_of, review
from firstchair.rollout.desk.sample import play
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher, oracle
from firstchair.traces.decisions import decision_points
from firstchair.traces.session import Session, turns_of

RATE = 0.25


@cache
def recorded() -> tuple[Session, ...]:
    """Sessions of a teacher that errs, recorded once for all tests of this module."""

    async def run():
        return [await play(task, Teacher(RATE, seed=2)) for task in make_tasks(200, 21)]

    return tuple(
        Session(session_id=f"s{number}", messages=messages, turns=turns_of(messages))
        for number, (messages, _) in enumerate(asyncio.run(run()))
    )


def test_mistakes_of_every_dimension_are_found_at_about_the_rate_they_were_made():
    findings = [finding for session in recorded() for finding in review(session.messages)]
    wrong = [finding for finding in findings if finding.dimension]
    assert {finding.dimension for finding in wrong} == {*Dimension} - {"confirmed"}
    assert 0.8 * RATE < len(wrong) / len(findings) < 1.1 * RATE


def test_the_correction_of_every_mistake_is_what_the_faultless_teacher_does_there():
    for session in recorded():
        for finding in review(session.messages):
            context = session.messages[: finding.message_index]
            right = Teacher().act(context)
            assert finding.gold == right
            assert dimension_of(right, oracle(context)) == ""
            if finding.dimension:
                assert not same_action(finding.observed, right)


def test_corrections_make_a_verified_set_of_decisions():
    for session in recorded():
        rows = corrections_of(session, confirm=True)
        points = decision_points(session)
        assert len(rows) == len(points)
        corrected = apply_corrections(points, [correction_from(row) for row in rows])
        for point, finding in zip(corrected, review(session.messages), strict=True):
            assert point.verified
            assert point.gold is not None
            expected = finding.gold if finding.dimension else finding.observed
            assert same_action(point.gold, expected)
            assert bool(point.known_bad) == bool(finding.dimension)


def test_without_confirmation_only_mistakes_are_listed():
    rows = [row for session in recorded() for row in corrections_of(session)]
    assert rows
    assert all(row["dimension"] != "confirmed" and row["before"] != row["after"] for row in rows)
    assert all(set(row) == {"dp_id", "dimension", "before", "after", "evidence", "by", "why"} for row in rows)


def test_evidence_is_a_message_of_the_user_or_of_a_tool_before_the_decision():
    for session in recorded():
        for finding in review(session.messages):
            assert finding.decision.evidence < finding.message_index
            assert session.messages[finding.decision.evidence].role in ("user", "tool")


def test_correcting_the_first_mistake_and_going_on_rightly_completes_the_task():
    async def scenario(task):
        env, erring = DeskEnvironment(), Teacher(RATE, seed=2)
        await env.reset(task, 0)
        done = False
        while not done:
            action = erring.act(env.messages)
            if dimension_of(action, oracle(env.messages)):
                branch = DeskEnvironment()
                await branch.restore(await env.snapshot())
                over = False
                while not over:
                    over = (await branch.step(Teacher().act(branch.messages))).done
                return await branch.verify()
            done = (await env.step(action)).done
        return await env.verify()

    outcomes = [asyncio.run(scenario(task)) for task in make_tasks(100, 22)]
    assert all(outcome.completed and not outcome.violations for outcome in outcomes)


def call(name, /, **arguments):
    return Action(kind="tool_call", calls=(ToolCall.of("c", name, arguments),))


@pytest.mark.parametrize(
    ("request_text", "action", "dimension"),
    [
        ("Find harbor-memo.txt for me.", call("Glob", pattern="**/harbor-memo.txt"), ""),
        ("Find harbor-memo.txt for me.", call("Glob", pattern="harbor-memo.txt"), "arguments"),
        ("Find harbor-memo.txt for me.", call("Bash", command="ls"), "misroute"),
        ("Find harbor-memo.txt for me.", call("AskUser", question="Why?"), "needless ask"),
        ("Find harbor-memo.txt for me.", call("ShareFile", path="x"), "share-file"),
        ("Find harbor-memo.txt for me.", Action(kind="final_reply", text="Sure."), "premature stop"),
        ("Remember that my hat size is 7.", Action(kind="final_reply", text="Noted."), "memory"),
        ("Remember that my hat size is 7.", call("Write", path="m.txt", content="x"), "memory"),
        ("Good morning!", call("Bash", command="date"), "failed stop"),
        ("Good morning!", call("AskUser", question="What now?"), "needless ask"),
        ("Good morning!", Action(kind="final_reply", text="Good morning to you."), ""),
        ("What is my hat size?", Action(kind="final_reply", text="Your hat size is 9."), "untruthful final"),
    ],
)
def test_a_violation_is_named_by_its_dimension(request_text, action, dimension):
    messages = (text_message("system", "Memory: my hat size is 7"), text_message("user", request_text))
    assert dimension_of(action, oracle(messages)) == dimension


def test_a_malformed_call_is_wrong_and_can_be_corrected():
    broken = Action(kind="tool_call", calls=(ToolCall(id="c", name="Glob", arguments='{"pattern": '),))
    user = text_message("user", "Find harbor-memo.txt for me.")
    session = Session(session_id="s", messages=(user, broken.to_message()))
    (row,) = corrections_of(session)
    assert row["dimension"] == "arguments"
    assert row["before"] == {"tool": "Glob", "input": '{"pattern": '}
    assert apply_corrections(decision_points(session), [correction_from(row)])[0].verified
