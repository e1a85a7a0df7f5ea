"""DAgger (Ross, Gordon & Bagnell 2011, algorithm 3.1): a teacher says what is right in the states that a learner gets
itself into.

    at every step         the teacher is asked; with probability beta it also acts, else the learner does. Now and
                          then somebody errs on purpose (noise; Laskey et al. 2017, DART), so that there is more to
                          recover from than the learner's own mistakes
    a learner's step      the environment is snapshot before it; the step is a derailment when the teacher would have
                          acted differently, when the environment reports a violation, or when it cannot be read
    behind a derailment   from the derailed state the teacher shows the way out, to the end of the turn; then the
                          state is restored and the episode goes on with the learner's mistake in it

What comes out are lessons: the conversation that was really reached and in it the teacher's actions, which alone are
to be learnt.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec

from firstchair.catalog.call_rules import Matchers
from firstchair.catalog.verdict import Scorer, Verdict
from firstchair.chat.actions import Action, action_of
from firstchair.chat.messages import Message, Tool, ToolCall
from firstchair.core.concurrency import all_or_none
from firstchair.core.jsontext import canonical
from firstchair.core.seeds import seed_of
from firstchair.rollout.dagger_teacher import DaggerTeacher, Untaught
from firstchair.rollout.environment import Environment, Outcome
from firstchair.rollout.environment_guard import EnvironmentFailed
from firstchair.rollout.episodes import NO_LIMITS, Limits, Task, ask_policy
from firstchair.rollout.live_episode import EpisodeEnd, EpisodePlan, LiveEpisode
from firstchair.rollout.policy import Policy, PolicyReply, TokenPolicy
from firstchair.traces.decisions import DecisionPoint
from firstchair.traces.session import Session

By = Literal["teacher", "learner", "noise"]
"""Who takes a step."""


class Why(StrEnum):
    """Why a state is learnt from."""

    DERAILED = "derailed"
    """The learner went wrong here: what would have been right."""
    RECOVERY = "recovery"
    """A mistake stands in the present turn: how to go on all the same."""
    AGREED = "agreed"
    """What the teacher did itself, and where the learner did exactly that."""


@dataclass(frozen=True)
class Lesson:
    """A conversation that was really reached, and what the teacher does in it."""

    why: Why
    messages: tuple[Message, ...]
    taught: tuple[int, ...]
    """Indices of the teacher's actions in ``messages``: nothing else is to be learnt."""
    step: int
    """Index of the decision from which on the teacher teaches."""
    derailed_at: int | None = None
    """Index of the decision that went wrong."""


@dataclass(frozen=True)
class MixedStep:
    """One step of an episode."""

    message_index: int
    by: By
    taught: Action | None
    """What the teacher does here; ``None``: it did not say, and nothing is learnt here."""
    derailed: bool = False
    violations: tuple[str, ...] = ()
    """What the environment reported at this step."""


@dataclass(frozen=True)
class MixedEpisode:
    """One episode, and what it taught."""

    number: int
    task_id: str
    session: Session
    tools: tuple[Tool, ...]
    outcome: Outcome | None
    """``None`` when ``error`` is set: it is not judged, and teaches nothing."""
    steps: tuple[MixedStep, ...]
    lessons: tuple[Lesson, ...]
    error: str | None = None

    @property
    def derailments(self) -> int:
        """How often the learner went wrong."""
        return sum(step.derailed for step in self.steps if step.by == "learner")


@dataclass(frozen=True)
class Caps:
    """The most lessons of each kind that one episode gives: a learner that is lost says the same again and again."""

    derailed: int = 4
    recovery: int = 4
    agreed: int = 1


@dataclass(frozen=True)
class DaggerPlan:
    """How a round of episodes is played."""

    beta: float
    """Probability of each step that the teacher takes it."""
    seed: int
    noise: float = 0.0
    """Probability of each step that the one who errs takes it."""
    round: int = 1
    caps: Caps = Caps()
    branch_steps: int = 12
    """The most steps that the teacher takes out of a derailed state."""
    concurrency: int = 64
    max_steps: int = 30
    limits: Limits = NO_LIMITS


def agrees(scorer: Scorer, taught: Action, made: Action) -> bool:
    """Whether ``made`` does what ``taught`` does, by a catalog's matchers; of final replies only that both stop.

    Whether a reply is true is for the environment to say. Where code cannot decide (a field that a judge must
    compare) nothing speaks against ``made``, and it agrees.
    """
    decision = DecisionPoint(dp_id=":0", session_id="", turn=0, seq=0, context_end=0, observed=taught, gold=taught)
    found = scorer.score(decision, made)
    return found.lenient is Verdict.PASS or found.undecided


def who_acts(plan: DaggerPlan, task_id: str, step: int) -> By:
    """Whose a step is: a draw that depends on seed, round, task and step alone."""
    drawn = seed_of(plan.seed, plan.round, task_id, step) / 2**31
    if drawn < plan.beta:
        return "teacher"
    return "noise" if drawn < plan.beta + plan.noise else "learner"


async def run_dagger(
    env_factory: Callable[[], Environment],
    tasks: Iterable[Task],
    learner: Policy,
    teacher: DaggerTeacher,
    plan: DaggerPlan,
    *,
    astray: Policy | None = None,
    matchers: Matchers | None = None,
    on_episode: Callable[[MixedEpisode], None] = lambda episode: None,
) -> list[MixedEpisode]:
    """Play every task once (ids must differ) and return the episodes in the order of tasks; ``on_episode`` hears of
    each as it ends.

    ``astray`` is who errs on purpose where ``plan.noise`` has it act. Where the teacher does not say what it would do
    the step is the learner's, and nothing is learnt from it. Once the teacher will not be asked again (budget, down)
    no further episode begins: it would teach nothing.
    """
    played: list[MixedEpisode] = []
    plans = _plans(tasks, learner.name, plan)

    async def work() -> None:
        for one in plans:
            if teacher.exhausted is not None:
                return
            episode = await _Play(one, _Cast(learner, teacher, astray), plan, matchers).whole(env_factory)
            played.append(episode)
            on_episode(episode)

    await all_or_none([work() for _ in range(plan.concurrency)])
    return sorted(played, key=lambda episode: episode.number)


def _plans(tasks: Iterable[Task], policy: str, plan: DaggerPlan) -> Iterator[EpisodePlan]:
    for number, task in enumerate(tasks):
        yield EpisodePlan(
            number=number,
            task=task,
            task_id=task.task_id,
            trial=0,
            seed=seed_of(plan.seed, plan.round, task.task_id),
            policy=policy,
            source="rollout",
            max_steps=plan.max_steps,
            limits=plan.limits,
            run=f"{plan.round}/",
            sampling_seed=seed_of(plan.seed, plan.round, task.task_id, "sampling"),
        )


@dataclass(frozen=True)
class _Cast:
    """Who takes part."""

    learner: Policy
    teacher: DaggerTeacher
    astray: Policy | None


class _Play:
    """One episode under way."""

    def __init__(self, plan: EpisodePlan, cast: _Cast, dagger: DaggerPlan, matchers: Matchers | None):
        self._plan, self._dagger = plan, dagger
        self._learner, self._teacher, self._astray = cast.learner, cast.teacher, cast.astray
        self._matchers, self._episode = matchers, LiveEpisode(plan)
        self._environment = self._episode.environment
        self._unheard: set[int] = set()
        """Messages that the environment never saw: what could not be read, and the answers to that."""
        self._broken = 0
        """Violations that the environment has reported so far."""
        self._derailed_at: int | None = None
        """The first mistake of the present turn."""
        self._shown: set[int] = set()
        """Lengths of the conversations behind which a way out was shown: what is right there is taught already."""
        self._steps: list[MixedStep] = []
        self._lessons: list[Lesson] = []
        self._given: Counter[Why] = Counter()

    async def whole(self, env_factory: Callable[[], Environment]) -> MixedEpisode:
        """Play it to its end."""
        episode, outcome = self._episode, None
        try:
            await episode.start(env_factory)
            if self._environment.conducts:
                episode.fail("DAgger relabels whole conversations; this environment shows and keeps parts of them")
            self._scorer = Scorer(episode.tools, self._matchers)
            while episode.end is None:
                # A learner and an environment that never wait would keep Ctrl-C and everything else waiting.
                await asyncio.sleep(0)
                await self._step()
            outcome = await episode.judge()
        except EnvironmentFailed as failed:
            episode.fail(str(failed))
        finally:
            if isinstance(self._learner, TokenPolicy):
                self._learner.take(self._plan.episode_id)
            await episode.close()
        self._agreed()
        return MixedEpisode(
            number=self._plan.number,
            task_id=self._plan.task_id,
            session=episode.session(outcome),
            tools=episode.tools,
            outcome=outcome,
            steps=tuple(self._steps),
            lessons=() if episode.error is not None else tuple(self._lessons),
            error=episode.error,
        )

    async def _step(self) -> None:
        episode, number = self._episode, len(self._steps)
        before = episode.request().messages
        taught = await self._ask(before)
        by = self._who(number, taught)
        held = await self._environment.snapshot() if by == "learner" else None
        reply = PolicyReply(action=taught) if by == "teacher" else await ask_policy(self._policy(by), episode)
        if reply is None:
            episode.end = EpisodeEnd.WALL_CLOCK
            return
        taken = episode.steps
        await episode.apply(reply)
        if episode.error is not None or episode.steps == taken:
            return
        after = episode.request().messages
        if reply.malformed:
            self._unheard.update(range(len(before), len(after)))
        violations = await self._violations()
        self._broken += len(violations)
        derailed = by != "teacher" and self._derails(taught, reply, violations)
        if by == "teacher" and violations:
            self._teacher.failures[Untaught.VIOLATION] += 1
            taught = None
        self._steps.append(MixedStep(len(before), by, taught, derailed, violations))
        new_turn = any(after[place].role == "user" for place in self._heard(len(before), len(after)))
        if derailed and taught is not None:
            shows = episode.end is None and not new_turn
            await self._teach(taught if by == "learner" else None, held, before, after if shows else None)
        if new_turn:
            self._derailed_at = None
        elif derailed and self._derailed_at is None:
            self._derailed_at = number

    def _derails(self, taught: Action | None, reply: PolicyReply, violations: tuple[str, ...]) -> bool:
        if reply.malformed or violations:
            return True
        assert reply.action is not None
        return taught is not None and not agrees(self._scorer, taught, reply.action)

    def _who(self, number: int, taught: Action | None) -> By:
        """A teacher that did not say what it would do, and nobody who errs, leave their steps to the learner."""
        by = who_acts(self._dagger, self._plan.task_id, number)
        able = {"teacher": taught is not None, "noise": self._astray is not None, "learner": True}
        return by if able[by] else "learner"

    async def _teach(
        self,
        taught: Action | None,
        held: object,
        before: tuple[Message, ...],
        after: tuple[Message, ...] | None,
    ) -> None:
        """Teach what would have been right at the learner's step just taken and, from ``after`` on, the way out."""
        number, caps = len(self._steps) - 1, self._dagger.caps
        here = await self._environment.snapshot()
        standing = self._derailed_at
        at = number if standing is None else standing
        why, room = (Why.DERAILED, caps.derailed) if standing is None else (Why.RECOVERY, caps.recovery)
        if taught is not None and len(before) not in self._shown and self._given[why] < room:
            await self._environment.restore(held)
            self._learn_from(why, await self._shown_by_teacher(before, 1, taught), number, at)
        if after is not None and self._given[Why.RECOVERY] < caps.recovery:
            await self._environment.restore(here)
            shown = await self._shown_by_teacher(after, self._dagger.branch_steps)
            if self._learn_from(Why.RECOVERY, shown, number + 1, at):
                self._shown.add(len(after))
        await self._environment.restore(here)

    async def _shown_by_teacher(
        self, messages: tuple[Message, ...], steps: int, first: Action | None = None
    ) -> tuple[list[Message], list[int]]:
        """The teacher acts in the environment as it stands, ``first`` when given, up to the end of the turn.

        Returns the conversation up to its last action, and where its actions are. An action at which the environment
        reports a violation is none of them, and ends it.
        """
        told, taught, known = list(messages), list[int](), len((await self._environment.verify()).violations)
        for number in range(steps):
            action = first if number == 0 and first is not None else await self._ask(told)
            if action is None:
                break
            action = with_own_ids(action, told)
            step = await self._environment.step(action)
            if len((await self._environment.verify()).violations) > known:
                self._teacher.failures[Untaught.VIOLATION] += 1
                break
            taught.append(len(told))
            told += [action.to_message(), *step.messages]
            if step.done or action.kind == "final_reply":
                break
        return told[: taught[-1] + 1] if taught else [], taught

    def _learn_from(self, why: Why, shown: tuple[list[Message], list[int]], step: int, derailed_at: int) -> bool:
        messages, taught = shown
        if taught:
            self._given[why] += 1
            self._lessons.append(Lesson(why, tuple(messages), tuple(taught), step, derailed_at))
        return bool(taught)

    def _agreed(self) -> None:
        """One lesson of the episode itself: what the teacher did in it, and what the learner did exactly like it."""
        messages = self._episode.request().messages
        places = [
            (number, step.message_index)
            for number, step in enumerate(self._steps)
            if step.taught is not None
            and not step.derailed
            and (step.by == "teacher" or same_words(step.taught, messages[step.message_index]))
        ]
        if places and self._dagger.caps.agreed:
            taught = tuple(place for _, place in places)
            self._lessons.append(Lesson(Why.AGREED, messages[: taught[-1] + 1], taught, places[0][0]))

    async def _ask(self, messages: Sequence[Message]) -> Action | None:
        heard = [messages[place] for place in self._heard(0, len(messages))]
        return await self._teacher.ask(self._plan.episode_id, heard, self._episode.tools)

    def _heard(self, start: int, end: int) -> list[int]:
        """Places of messages that the environment knows of."""
        return [place for place in range(start, end) if place not in self._unheard]

    def _policy(self, by: By) -> Policy:
        """The learner, or who errs on purpose."""
        if by != "noise":
            return self._learner
        assert self._astray is not None
        return self._astray

    async def _violations(self) -> tuple[str, ...]:
        """What the environment reports since it was asked last."""
        return (await self._environment.verify()).violations[self._broken :]


def with_own_ids(action: Action, messages: Sequence[Message]) -> Action:
    """``action`` with call ids that none of ``messages`` has."""
    used = {call.id for message in messages for call in message.tool_calls}
    calls: list[ToolCall] = []
    for call in action.calls:
        call_id, number = call.id, len(used)
        while not call_id or call_id in used:
            call_id, number = f"call_{number}", number + 1
        used.add(call_id)
        calls.append(msgspec.structs.replace(call, id=call_id))
    return msgspec.structs.replace(action, calls=tuple(calls))


def same_words(action: Action, message: Message) -> bool:
    """Whether ``message`` says exactly what ``action`` does: text, thinking and calls, their ids aside."""
    made = action_of(message)
    return (
        (made.text, made.thinking) == (action.text, action.thinking)
        and [call.name for call in made.calls] == [call.name for call in action.calls]
        and [canonical(call.parsed()) for call in made.calls] == [canonical(call.parsed()) for call in action.calls]
    )
