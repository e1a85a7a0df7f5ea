"""The environment of synthetic tasks: what is scored, what the user says, and where a snapshot goes back to."""

import asyncio

import msgspec
import pytest
from tests.rollout.synthetic.kennel import MULTI, READ, REFUSAL, kennel

from firstchair.chat.actions import Action
from firstchair.chat.messages import ToolCall
from firstchair.core.errors import BadRequest, ConfigError
from firstchair.rollout.environment import Closing, Environment
from firstchair.rollout.synthetic.environment import GO_ON, MAX_ACTIONS, SyntheticEnvironment

OPENED = kennel(READ, MULTI, REFUSAL)
READING, BOOKING, REFUSING = OPENED.domain.tasks


def call(*calls):
    made = tuple(ToolCall.of(f"c{number}", name, arguments) for number, (name, arguments) in enumerate(calls))
    return Action(kind="tool_call", calls=made)


def say(text):
    return Action(kind="final_reply", text=text)


def played(task, *actions):
    """The environment after ``actions``, what it gave last, and its verdict."""

    async def whole():
        environment = SyntheticEnvironment({"kennel": OPENED})
        await environment.reset(task, 0)
        step = None
        for action in actions:
            step = await environment.step(action)
        outcome = await environment.verify()
        await environment.close()
        return step, outcome

    return asyncio.run(whole())


def failed(outcome):
    return [check.name for check in outcome.checks if not check.ok]


def find(name):
    return call(("find_dog", {"name": name}))


def book(dog, first="2026-03-01", **more):
    return ("book", {"dog_id": dog, "first": first, **more})


def bill(stay, euros):
    return ("bill", {"stay_id": stay, "euros": euros})


def test_it_is_an_environment_that_is_closed():
    assert isinstance(SyntheticEnvironment({}), Environment)
    assert isinstance(SyntheticEnvironment({}), Closing)


def test_what_is_said_must_have_been_looked_up():
    step, outcome = played(READING, find("Rex"), say("Rex is 11.50 kg."))
    assert step.done
    assert (outcome.completed, outcome.score) == (True, 1.0)
    _, guessed = played(READING, say("Rex is 11.5 kg."))
    assert failed(guessed) == ["conveyed:0.0"]
    assert "in no result of a call" in guessed.checks[1].detail
    _, silent = played(READING, find("Rex"), say("I have looked it up."))
    assert failed(silent) == ["conveyed:0.0"]
    assert (guessed.score, silent.score) == (0.0, 0.0)


def test_the_user_tells_a_fact_when_asked_and_goes_on_when_answered():
    step, _ = played(BOOKING, say("Which dog is it?"))
    assert (step.messages[0].text, step.done) == ("Her name is Bella.", False)
    asked = (say("Which dog is it?"), say("What is her name?"))
    assert played(BOOKING, *asked)[0].messages[0].text == GO_ON
    step, _ = played(BOOKING, *asked, say("What is her name?"))
    assert step.messages[0].text.startswith("And one more for Toto")
    step, _ = played(BOOKING, say("I do not know which dog you mean."))
    assert step.messages[0].text.startswith("And one more for Toto")


BELLA, TOTO = (book(2), bill(21, 50)), (book(3), bill(22, 40))


def test_two_ways_to_the_same_end_are_equal():
    straight = played(BOOKING, call(*BELLA), say("Done."), call(*TOTO), say("It is stay 22."))[1]
    assert straight.completed, straight
    # Toto first: the stays and bills get each other's numbers, and all of them mean the same.
    turned = (book(3, note="by the window"), bill(21, 40), book(2), bill(22, 50))
    assert played(BOOKING, call(*turned), say("Done."), say("Toto's is stay 22, no: 21."))[1].completed


@pytest.mark.parametrize(
    "calls",
    [
        (book(2), bill(21, 50), book(3), bill(21, 40)),  # both bills for Bella
        (book(2), bill(21, 40), book(3), bill(22, 50)),  # the amounts exchanged
        (book(2), bill(21, 50), book(3), bill(22, 40), bill(22, 40)),  # one bill too many
        (book(2, "2026-03-02"), bill(21, 50), book(3), bill(22, 40)),
        (book(2), bill(21, 50), book(3)),
    ],
)
def test_another_end_is_not(calls):
    outcome = played(BOOKING, call(*calls), say("Done."), say("It is stay 22."))[1]
    assert "execution" in failed(outcome)
    assert outcome.score == 0.0
    assert "missing" in outcome.checks[0].detail or "unexpected" in outcome.checks[0].detail


def test_an_assertion_and_an_unanswered_wish_are_named():
    _, outcome = played(BOOKING, call(*BELLA), say("Done."))
    assert failed(outcome) == ["execution", "conveyed:1.0", "answered:1"]
    _, outcome = played(BOOKING, call(*TOTO), say("Done."), say("22"))
    assert failed(outcome) == ["execution", "conveyed:1.0", "assertion:0"]
    assert outcome.checks[-1].detail == "Bella stays"


def test_a_refusal_must_say_so_with_its_reason_and_change_nothing():
    right = "That is not possible, she is small."
    assert played(REFUSING, find("Nala"), say(right))[1].completed
    assert failed(played(REFUSING, say(right))[1]) == ["conveyed:0.1"]
    assert failed(played(REFUSING, find("Nala"), say("Nala is small. She is in."))[1]) == ["conveyed:0.0"]
    assert failed(played(REFUSING, find("Nala"), call(book(6)), say(right))[1]) == ["execution"]


def test_a_call_that_fails_says_why_and_changes_nothing():
    for calls, words in {
        ("fly", "{}"): "no such tool: fly",
        ("find_dog", '{"name": 3}'): "bad argument: $.name",
        ("find_dog", "[]"): "expected one JSON object",
        ("find_dog", '{"name": "Nobody"}'): "no dog is called Nobody",
        ("book", '{"dog_id": 77, "first": "2026-03-01"}'): "no dog 77",
        ("book", '{"dog_id": 1, "first": "2025-03-01"}'): "2025-03-01 is over",
        ("bill", '{"stay_id": 9999, "euros": 1}'): "FOREIGN KEY constraint failed",
        ("bill", '{"stay_id": 99999999999999999999, "euros": 1}'): "int too large",
    }.items():
        action = Action(kind="tool_call", calls=(ToolCall(id="c", name=calls[0], arguments=calls[1]),))
        step, outcome = played(REFUSING, action)
        assert step.messages[0].is_error
        assert words in step.messages[0].text
        assert "execution" not in failed(outcome)


def test_long_results_are_cut_and_say_so():
    step, _ = played(READING, call(("pairs", {})))
    assert step.messages[0].text.endswith("(50 rows shown; there are more)")
    assert not step.messages[0].is_error


def test_a_snapshot_goes_back_to_the_same_moment_here_and_elsewhere():
    async def whole():
        first, second = (SyntheticEnvironment({"kennel": OPENED}) for _ in range(2))
        await first.reset(BOOKING, 0)
        await first.step(say("Which dog?"))
        await first.step(call(*BELLA))
        snapshot = await first.snapshot()
        await first.step(call(bill(21, 7)))
        await first.step(say("Done."))
        await second.reset(READING, 0)
        for environment in (second, first):
            await environment.restore(snapshot)
            step = await environment.step(say("What is her name?"))  # they have told it
            assert step.messages[0].text == GO_ON
            await environment.step(say("Done."))
            await environment.step(call(*TOTO))
            step = await environment.step(say("Stay 22."))
            assert step.done
            assert (await environment.verify()).completed
        with pytest.raises(BadRequest, match="snapshot"):
            await first.restore("nonsense")
        await first.close()
        await second.close()

    asyncio.run(whole())


def test_an_episode_ends_and_is_used_rightly():
    async def whole():
        environment = SyntheticEnvironment({"kennel": OPENED})
        with pytest.raises(BadRequest, match="call reset first"):
            await environment.step(say("x"))
        with pytest.raises(ConfigError, match="found zoo; expected a SyntheticTask of one of kennel"):
            await environment.reset(msgspec.structs.replace(READING, domain="zoo"), 0)
        await environment.reset(READING, 0)
        with pytest.raises(BadRequest, match="own id"):
            await environment.step(Action(kind="tool_call", calls=find("Rex").calls * 2))
        for number in range(MAX_ACTIONS):
            step = await environment.step(find("Rex"))
            assert step.done == (number == MAX_ACTIONS - 1)
        assert step.info["truncated"]
        with pytest.raises(BadRequest, match="over"):
            await environment.step(say("x"))
        assert not (await environment.verify()).completed
        await environment.close()

    asyncio.run(whole())
