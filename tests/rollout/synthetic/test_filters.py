"""The filters: each drop with its reason, the model's trials counted, and nothing asked twice."""

import asyncio
import copy

from tests.rollout.synthetic.kennel import MULTI, READ, REFUSAL, TOOLS, kennel

from firstchair.rollout.policy import PolicyReply
from firstchair.rollout.synthetic.filters import Drop, Solver, drops, filter_tasks
from firstchair.rollout.synthetic.players import GoldenExpert

TOUCH = {
    "name": "touch",
    "description": "Nothing.",
    "parameters": [{"name": "id", "type": "integer"}],
    "writes": ["UPDATE dogs SET name = name WHERE id = :id"],
}


def other(task, user, **changes):
    made = copy.deepcopy(task)
    made["turns"][0].update({"user": user, **changes})
    return made


TASKS = [
    READ,
    other(READ, "  how HEAVY is Rex? "),
    other(READ, "What does Rex weigh?"),
    other(READ, "Rex?", calls=[{"tool": "find_dog", "arguments": {"name": "Max"}}], reply="11.5"),
    other(READ, "Nobody?", calls=[{"tool": "find_dog", "arguments": {"name": "Nobody"}}]),
    {
        "depth": "write",
        "turns": [{"user": "Touch him.", "calls": [{"tool": "touch", "arguments": {"id": 1}}], "reply": "Done."}],
    },
    MULTI,
    REFUSAL,
]


def judged(opened, **options):
    return asyncio.run(filter_tasks(opened, opened.domain.tasks, **options))


def test_every_drop_has_its_reason():
    verdicts = judged(kennel(*TASKS, tools=[*TOOLS, TOUCH]))
    assert [verdict.drop for verdict in verdicts] == [
        None,
        Drop.DUPLICATE,  # asks the same
        Drop.DUPLICATE,  # is solved by the same
        Drop.GOLDEN_INCOMPLETE,  # says what it has not looked up
        Drop.INVALID,
        Drop.WITHOUT_ACTING,
        None,
        None,
    ]
    assert verdicts[1].detail == verdicts[2].detail == f"as {verdicts[0].task_id}"
    assert "in no result of a call" in verdicts[3].detail
    assert "no dog is called Nobody" in verdicts[4].detail
    assert verdicts[5].detail == "stop_at_once"
    assert drops(verdicts) == {"duplicate": 2, "golden_incomplete": 1, "invalid": 1, "without_acting": 1}


class Learner:
    """Solves a task in so many of its trials; raises where there is no number."""

    name = "learner"

    def __init__(self, opened, solved):
        self.expert, self.solved, self.asked = GoldenExpert({"kennel": opened}, opened.domain.tasks), solved, set()

    async def act(self, requests):
        return [self._act(request) for request in requests]

    def _act(self, request):
        task_id, _, trial = request.episode_id.partition("#")
        self.asked.add(task_id)
        if self.solved[task_id] is None:
            return PolicyReply(error="connection: lost")
        action = self.expert.act(request.messages, request.tools)
        if int(trial) >= self.solved[task_id]:
            action = self.expert.script(self.expert._tasks[request.messages[0].text, request.messages[1].text])[-1]
        return PolicyReply(action=action)


def test_a_model_must_fail_once_and_solve_once_and_what_is_known_is_not_asked_again():
    more = other(READ, "How heavy is Max?", calls=[{"tool": "find_dog", "arguments": {"name": "Max"}}])
    more["turns"][0].update(reply="15.5", convey=[{"any_of": ["15.5"]}])
    opened = kennel(READ, MULTI, REFUSAL, more)
    names = [task.task_id for task in opened.domain.tasks]
    learner = Learner(opened, dict(zip(names, (1, 8, 0, None), strict=True)))
    noted = []
    verdicts = judged(opened, solver=Solver(learner), note=noted.append)
    assert [(one.drop, one.solved, one.trials) for one in verdicts] == [
        (None, 1, 8),
        (Drop.NEVER_FAILED, 8, 8),
        (Drop.NEVER_SOLVED, 0, 8),
        (Drop.UNGRADED, None, 0),
    ]
    assert {one.task_id for one in noted} == set(names)
    again = Learner(opened, dict.fromkeys(names, 3))
    verdicts = judged(opened, solver=Solver(again), known={one.task_id: one for one in noted})
    assert again.asked == {names[3]}
    assert [one.drop for one in verdicts] == [None, Drop.NEVER_FAILED, Drop.NEVER_SOLVED, None]
