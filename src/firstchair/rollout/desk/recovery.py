"""Episodes of the desk that begin behind a mistake: can a policy that did not get itself into this get out of it?

expert … expert, mistake, expert … mistake ─┬─► expert goes on, task completed: the state can be recovered from
                                            └─► so a policy goes on from here, alone: a ``RecoveryCase``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from firstchair.chat.actions import Action
from firstchair.core.seeds import seed_of
from firstchair.rollout.desk.environment import MAX_ACTIONS, DeskEnvironment
from firstchair.rollout.desk.review import review
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.policy import EpisodeTokens, Policy, PolicyReply, PolicyRequest, TokenPolicy

DRAWS = 12
"""Ways to go wrong that are tried for a task before it is passed over."""


@dataclass(frozen=True)
class RecoveryCase:
    """One task and what was done in it before the policy takes over; the last of ``actions`` is a mistake."""

    task: DeskTask
    actions: tuple[Action, ...]
    mistakes: tuple[str, ...]
    """Dimension of the policy that each mistake violates, in order."""


async def recovery_case(task: DeskTask, *, mistakes: int, seed: int) -> RecoveryCase | None:
    """``task`` with so many mistakes in it, after which the expert still completes it; ``None``: no draw gave one.

    Where the mistakes stand is drawn from all decisions that the expert takes in the task, and which they are from
    all that fit there (``mistakes.mistaken``). The environment is reset with ``seed_of(seed, task.task_id)``, as
    ``run_episodes`` does with ``seed``.
    """
    clean = await _play(task, seed, frozenset(), 0)
    if clean is None:
        return None
    for draw in range(DRAWS):
        rng = Random(f"{seed}:{task.task_id}:{draw}")
        places = frozenset(rng.sample(range(clean.decisions), min(mistakes, clean.decisions)))
        found = await _play(task, seed, places, draw)
        if found is not None and len(found.mistakes) == mistakes:
            return RecoveryCase(task, found.actions, found.mistakes)
    return None


@dataclass(frozen=True)
class _Played:
    decisions: int
    actions: tuple[Action, ...]
    """Up to the last mistake."""
    mistakes: tuple[str, ...]


async def _play(task: DeskTask, seed: int, places: frozenset[int], draw: int) -> _Played | None:
    """The expert's play with mistakes at ``places``; ``None`` when the task is not completed."""
    environment, expert = DeskEnvironment(), Teacher()
    astray = Teacher(mistake_rate=1.0, seed=seed_of(seed, task.task_id, draw))
    tools = (await environment.reset(task, seed_of(seed, task.task_id))).tools
    actions: list[Action] = []
    done = False
    while not done and len(actions) < MAX_ACTIONS:
        who = astray if len(actions) in places else expert
        actions.append(who.act(environment.messages, tools))
        done = (await environment.step(actions[-1])).done
    if not (await environment.verify()).completed:
        return None
    wrong = [found for found in review(environment.messages) if found.dimension]
    reached = wrong[-1].index + 1 if wrong else 0
    return _Played(len(actions), tuple(actions[:reached]), tuple(found.dimension for found in wrong))


class TakingOver:
    """A policy that finds the first actions of each episode done: those of its case; the others are ``policy``'s."""

    def __init__(self, policy: Policy, cases: Sequence[RecoveryCase]):
        self._policy, self.name = policy, policy.name
        self._done: Mapping[str, tuple[Action, ...]] = {case.task.task_id: case.actions for case in cases}

    async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
        """The next action of each request's case while there is one."""
        replies = [self._done_already(request) for request in requests]
        left = [request for request, reply in zip(requests, replies, strict=True) if reply is None]
        asked = iter(await self._policy.act(left) if left else ())
        return [next(asked) if reply is None else reply for reply in replies]

    def take(self, episode_id: str) -> EpisodeTokens:
        """What the policy keeps of an episode that is over."""
        return self._policy.take(episode_id) if isinstance(self._policy, TokenPolicy) else EpisodeTokens()

    def _done_already(self, request: PolicyRequest) -> PolicyReply | None:
        actions = self._done[request.episode_id.rpartition("#")[0]]
        taken = sum(message.role == "assistant" for message in request.messages)
        return PolicyReply(action=actions[taken]) if taken < len(actions) else None
