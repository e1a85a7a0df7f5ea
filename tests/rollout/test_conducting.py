"""An environment that has a say in its episode: what is shown, what is taken back, what is noted."""

import asyncio
from typing import Any

import pytest

from firstchair.chat.actions import Action, Problem
from firstchair.chat.messages import Message, ToolCall, assistant_message, text_message
from firstchair.engines.base import Sampling
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.dagger import DaggerPlan, run_dagger
from firstchair.rollout.dagger_teacher import DaggerTeacher
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.environment import Conducting, Step
from firstchair.rollout.episodes import Episode, EpisodeEnd, Limits, run_episodes
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.testing.environment import WordEnvironment, WordExpert, WordTask


def store(arguments: str) -> Message:
    return assistant_message(calls=(ToolCall(id="", name="store", arguments=arguments),))


class Conductor(WordEnvironment):
    """Shows three messages at most, takes back words that are empty, and counts what it could not read."""

    def __init__(self) -> None:
        super().__init__()
        self.unread: list[tuple[str, ...]] = []

    def shown(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return messages[:1] + messages[1:][-2:]

    async def step(self, action: Action) -> Step:
        if action.calls and action.calls[0].parsed() == {"word": ""}:
            return Step((text_message("user", "Which word?"),), done=False, retracts=True)
        return await super().step(action)

    async def unreadable(self, action: Action, problems: tuple[Problem, ...]) -> Step:
        self.unread.append(tuple(problem.kind for problem in problems))
        if len(self.unread) == 2:
            return Step((), done=True)
        return Step((), done=False)

    def notes(self) -> dict[str, Any]:
        return {"unread": self.unread}


def play(engine: ScriptedEngine, environment: type[WordEnvironment] = Conductor, **options: Any) -> Episode:
    policy = EnginePolicy(engine, None, Sampling(seed=1))

    async def run() -> Episode:
        task = WordTask(task_id="t", words=("oak", "elm"))
        (episode,) = [one async for one in run_episodes(environment, [task], policy, **options)]
        return episode

    return asyncio.run(run())


GOOD = [store('{"word": "oak"}'), assistant_message("Done."), store('{"word": "elm"}'), assistant_message("Done.")]


def test_the_model_sees_what_the_environment_shows_and_the_record_keeps_it_all():
    assert isinstance(Conductor(), Conducting)
    assert not isinstance(WordEnvironment(), Conducting)
    engine = ScriptedEngine(GOOD)
    episode = play(engine)
    assert [len(request.messages) for request in engine.seen] == [2, 3, 3, 3]
    assert all(request.messages[0].role == "system" for request in engine.seen)
    assert len(episode.session.messages) == 9
    # A conversation of which less is shown is further on all the same: no two decisions share a name or a seed.
    assert len({request.request_id for request in engine.seen}) == 4
    assert len({request.sampling.seed for request in engine.seen}) == 4


def test_an_action_that_is_taken_back_is_not_in_the_conversation_and_is_kept_apart():
    engine = ScriptedEngine([store('{"word": ""}'), *GOOD])
    episode = play(engine)
    session = episode.session
    assert episode.completed
    assert [message.text for message in engine.seen[1].messages][-1] == "Which word?"
    assert not any(call.arguments == '{"word": ""}' for message in session.messages for call in message.tool_calls)
    assert session.meta["retracted"][0]["tool_calls"][0]["arguments"] == '{"word": ""}'
    assert [call.message_index for call in session.calls] == [None, 3, 5, 7, 9]
    assert all(call.error is None for call in session.calls)


def test_what_cannot_be_read_is_the_environments_to_answer():
    engine = ScriptedEngine([store('{"word": 1}'), *GOOD])
    episode = play(engine)
    # It left the answer to the episode, which says what was wrong.
    assert episode.completed
    assert "Not run" in episode.session.messages[3].text
    assert episode.session.meta["environment"] == {"unread": [("schema_violation",)]}
    episode = play(ScriptedEngine([store('{"word": 1}'), store("nonsense"), *GOOD]))
    assert (episode.end, episode.steps, episode.completed) == (EpisodeEnd.DONE, 2, False)
    episode = play(ScriptedEngine([store('{"word": 1}'), *GOOD]), limits=Limits(max_malformed=0))
    assert episode.end is EpisodeEnd.MALFORMED


def test_notes_are_taken_of_an_episode_that_broke_and_notes_that_break_take_nothing_along():
    class Broken(Conductor):
        async def step(self, action: Action) -> Step:
            raise RuntimeError("boom")

    assert play(ScriptedEngine(GOOD), Broken).session.meta["environment"] == {"unread": []}

    class Mute(Conductor):
        def notes(self) -> dict[str, Any]:
            return {"unread": object()}

    episode = play(ScriptedEngine(GOOD), Mute)
    assert episode.completed
    assert "environment.notes: TypeError" in episode.session.meta["environment"]["error"]


@pytest.mark.parametrize("retracts", [None, 1])
def test_a_step_whose_fields_are_nonsense_fails_its_episode_by_name(retracts):
    class Odd(Conductor):
        async def step(self, action: Action) -> Step:
            return Step((), done=False, retracts=retracts)

    episode = play(ScriptedEngine(GOOD), Odd)
    assert "environment.step: DataError: retracts" in episode.error


def test_dagger_which_needs_the_whole_conversation_refuses_such_an_environment():
    teacher = DaggerTeacher(TeacherPolicy(WordExpert(), name="expert"))
    tasks = [WordTask(task_id="t", words=("oak",))]
    plan = DaggerPlan(beta=0.5, seed=0)
    (found,) = asyncio.run(run_dagger(Conductor, tasks, TeacherPolicy(WordExpert()), teacher, plan))
    assert "DAgger relabels whole conversations" in found.error
