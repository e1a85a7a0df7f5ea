import asyncio
from random import Random

import pytest

from firstchair.chat.actions import Action
from firstchair.chat.messages import ToolCall
from firstchair.core.errors import BadRequest, ConfigError
from firstchair.rollout.desk.checks import CHECKS, verify_checks
from firstchair.rollout.desk.definitions import tool_fields
from firstchair.rollout.desk.environment import MAX_ACTIONS, DeskEnvironment
from firstchair.rollout.desk.sample import play
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.desk.world import World
from firstchair.rollout.environment import Environment


def call(name: str, call_id: str = "c1", /, **arguments: str) -> Action:
    return Action(kind="tool_call", calls=(ToolCall.of(call_id, name, arguments),))


def reply(text: str) -> Action:
    return Action(kind="final_reply", text=text)


async def run(task, policy, seed=0):
    env = DeskEnvironment()
    await env.reset(task, seed)
    done = False
    while not done:
        done = (await env.step(policy(env.messages))).done
    return env.messages, await env.verify()


def completed(tasks, policy):
    return [asyncio.run(run(task, policy))[1].completed for task in tasks]


def test_the_desk_is_an_environment():
    assert isinstance(DeskEnvironment(), Environment)


def test_equal_task_and_seed_give_equal_bytes():
    for task in make_tasks(20, 1):
        first, again = (asyncio.run(play(task, Teacher(0.2, 1), seed=5)) for _ in range(2))
        assert first == again
        env = DeskEnvironment()
        assert asyncio.run(env.reset(task, 5)).messages == first[0][:2]


def test_thousands_of_episodes_can_run_at_once_and_do_not_touch_each_other():
    tasks = make_tasks(30, 2)
    envs = [DeskEnvironment() for _ in tasks]

    async def lockstep():
        for env, task in zip(envs, tasks, strict=True):
            await env.reset(task, 0)
        live = list(envs)
        while live:
            live = [env for env in live if not (await env.step(Teacher().act(env.messages))).done]
        return [await env.verify() for env in envs]

    outcomes = asyncio.run(lockstep())
    assert all(outcome.completed for outcome in outcomes)
    assert [env.messages for env in envs] == [asyncio.run(play(task, Teacher()))[0] for task in tasks]


def test_doing_nothing_completes_nothing():
    tasks = make_tasks(200, 3)
    assert not any(completed(tasks, lambda messages: reply("Done.")))
    assert sum(completed(tasks, lambda messages: reply("Sorry, no."))) <= 2


def test_acting_at_random_completes_nothing():
    rng = Random(1)

    def wild(messages):
        if rng.random() < 0.4:
            return reply("Done.")
        name = rng.choice(sorted(tool_fields()))
        words = messages[-1].text.split() or ["x"]
        return call(name, f"c{len(messages)}", **{field: rng.choice(words) for field in tool_fields()[name]})

    assert not any(completed(make_tasks(200, 4), wild))


def test_a_reply_that_claims_success_after_a_failure_does_not_complete():
    tasks = [
        task for task in make_tasks(300, 5) if any(fault.times > 1 for turn in task.turns for fault in turn.faults)
    ]
    assert tasks

    def liar(messages):
        action = Teacher().act(messages)
        return reply("It worked.") if messages[-1].is_error and action.kind == "final_reply" else action

    assert not any(completed(tasks, liar))


def test_every_kind_of_check_can_fail():
    failing = set()
    for task in make_tasks(300, 6):
        answers = verify_checks(task.checks, World.start(task.world), [""] * len(task.turns))
        failing |= {check.kind for check, answer in zip(task.checks, answers, strict=True) if not answer.ok}
    assert failing == CHECKS.keys()


def test_doing_more_than_was_asked_does_not_complete():
    task = make_tasks(1, 7)[0]

    def eager(messages):
        if messages[-1].role == "user" and len(messages) == 2:
            return call("send_message", "extra", to="boss@work.org", body="hello")
        return Teacher().act(messages)

    _, outcome = asyncio.run(run(task, eager))
    assert [check.name for check in outcome.checks if not check.ok] == [f"{len(task.checks) - 1}:counts"]
    assert outcome.violations[0].endswith(": misroute")


def test_another_way_to_the_same_state_completes():
    task = next(task for task in make_tasks(300, 8) if task.rows[-1:] == ("find_files",) or "find_files" in task.rows)

    def detour(messages):
        action = Teacher().act(messages)
        before = [made.name for message in messages for made in message.tool_calls]
        return call("Bash", f"d{len(messages)}", command="ls") if before.count("Bash") == 0 else action

    _, outcome = asyncio.run(run(task, detour))
    assert outcome.completed
    assert outcome.violations


def test_an_episode_goes_on_from_a_snapshot_as_if_nothing_had_happened():
    for task in make_tasks(15, 9):
        env, other = DeskEnvironment(), DeskEnvironment()

        async def scenario(task=task, env=env, other=other):
            await env.reset(task, 1)
            await env.step(Teacher().act(env.messages))
            mark, seen = await env.snapshot(), env.messages
            done = False
            while not done:  # spoil the episode
                done = (await env.step(reply("Done."))).done
            await env.restore(mark)
            await other.restore(mark)
            assert env.messages == seen
            for one in (env, other):
                done = False
                while not done:
                    done = (await one.step(Teacher().act(one.messages))).done
            return await env.verify(), await other.verify()

        first, second = asyncio.run(scenario())
        assert first.completed
        assert first == second
        assert env.messages == other.messages == asyncio.run(play(task, Teacher(), seed=1))[0]


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (call("Fly", where="up"), "error: no such tool: Fly"),
        (call("Read"), "error: bad argument: path must be a string"),
        (call("Read", path="a.txt", mode="r"), "error: bad argument: unknown mode"),
        (
            Action(kind="tool_call", calls=(ToolCall(id="c", name="Read", arguments='{"path": 3}'),)),
            "error: bad argument: path must be a string",
        ),
        (
            Action(kind="tool_call", calls=(ToolCall(id="c", name="Read", arguments='{"path"'),)),
            "error: bad argument: not a JSON object",
        ),
    ],
)
def test_a_bad_call_is_an_error_the_model_can_read(action, text):
    env = DeskEnvironment()

    async def scenario():
        await env.reset(make_tasks(1, 0)[0], 0)
        return await env.step(action)

    step = asyncio.run(scenario())
    assert [message.text for message in step.messages] == [text]
    assert step.messages[0].is_error
    assert not step.done


def test_parallel_calls_are_answered_in_order():
    env = DeskEnvironment()
    calls = tuple(ToolCall.of(f"c{number}", "Bash", {"command": f"echo {number}"}) for number in range(3))

    async def scenario():
        await env.reset(make_tasks(1, 0)[0], 0)
        return await env.step(Action(kind="tool_call", calls=calls))

    step = asyncio.run(scenario())
    assert [(message.tool_call_id, message.text) for message in step.messages] == [
        ("c0", "0"),
        ("c1", "1"),
        ("c2", "2"),
    ]


def test_a_needless_question_is_answered_and_noted():
    task = next(task for task in make_tasks(50, 1) if not task.turns[0].answer and task.turns[0].rows[-1] != "chat")
    env = DeskEnvironment()

    async def scenario():
        await env.reset(task, 0)
        step = await env.step(call("AskUser", question="Really?"))
        return step.messages[0].text, (await env.verify()).violations

    text, violations = asyncio.run(scenario())
    assert text == "I have told you all you need."
    assert [violation.partition(": ")[2] for violation in violations] == ["needless ask"]


def test_an_endless_episode_is_ended_and_not_completed():
    env = DeskEnvironment()

    async def scenario():
        await env.reset(make_tasks(1, 0)[0], 0)
        for number in range(MAX_ACTIONS):
            step = await env.step(call("Bash", f"c{number}", command="pwd"))
        with pytest.raises(BadRequest, match="episode is over"):
            await env.step(reply("Done."))
        return step, await env.verify()

    step, outcome = asyncio.run(scenario())
    assert step.done
    assert step.info["truncated"]
    assert not outcome.completed


def test_misuse_is_refused_with_a_reason():
    env = DeskEnvironment()

    async def scenario():
        with pytest.raises(BadRequest, match="call reset first"):
            await env.step(reply("Hello."))
        with pytest.raises(ConfigError, match="expected a DeskTask"):
            await env.reset({"task_id": "x"}, 0)
        with pytest.raises(BadRequest, match="snapshot"):
            await env.restore({})
        await env.reset(make_tasks(1, 0)[0], 0)
        with pytest.raises(BadRequest, match="own id"):
            await env.step(
                Action(kind="tool_call", calls=(ToolCall.of("a", "Read", {}), ToolCall.of("a", "Read", {})))
            )
        with pytest.raises(BadRequest, match="no calls"):
            await env.step(Action(kind="tool_call"))

    asyncio.run(scenario())
