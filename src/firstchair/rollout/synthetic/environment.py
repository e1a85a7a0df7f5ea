"""Tasks of synthetic domains as an environment: a database, its tools, and a user who follows a script.

reset ─► system, first wish                         verify
step  ─► calls: results of the tools                  ├─ execution     the database is as after the golden calls
      └► reply: the answer to a question,             ├─ conveyed      the user was told what they must know, and
                the next wish, or the end             │                it had been looked up
                                                      └─ completeness  every wish answered, every assertion holds
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, ToolCall, text_message, tool_result
from firstchair.core.errors import BadRequest, ConfigError
from firstchair.rollout.environment import Check, Observation, Outcome, Step
from firstchair.rollout.synthetic.database import Database
from firstchair.rollout.synthetic.domain import Assertion, Info, SyntheticTask
from firstchair.rollout.synthetic.opened import OpenDomain
from firstchair.rollout.synthetic.spoken import asks, conveyed
from firstchair.rollout.synthetic.state import differences

MAX_ACTIONS = 40
"""An episode that takes more actions is ended, not completed."""
GO_ON = "I have nothing to add to that. Please go on as your rules allow."
"""The user's answer to a question that they know nothing about; given once a turn, so that none goes on for ever."""
_SHOWN = 3
"""Differences that a check's detail names."""


@dataclass(frozen=True)
class Progress:
    """How far an episode has come, the database apart."""

    actions: int = 0
    replies: tuple[str, ...] = ()
    """What was said in each turn that is over."""
    asked: tuple[str, ...] = ()
    """What was said in the present one: questions that the user has answered."""
    told_to_go_on: bool = False
    """In the present turn the user has had nothing to say to a question."""
    told: frozenset[int] = frozenset()
    """Facts of the present turn that the user has told."""
    results: str = ""
    """The results of all calls, one after the other."""
    done: bool = False


@dataclass(frozen=True)
class Snapshot:
    """A whole episode at one moment."""

    task: SyntheticTask
    image: bytes
    progress: Progress


class SyntheticEnvironment:
    """One episode at a time, in a database of its own. ``domains``: name → domain, shared and unchanged."""

    def __init__(self, domains: Mapping[str, OpenDomain]):
        self._domains = domains
        self._task: SyntheticTask | None = None
        self._database: Database | None = None
        self._progress = Progress()

    async def reset(self, task: Any, seed: int) -> Observation:
        """Start a ``SyntheticTask``. Nothing depends on the seed: domains and users are fixed."""
        if not isinstance(task, SyntheticTask) or task.domain not in self._domains:
            found = task.domain if isinstance(task, SyntheticTask) else type(task).__name__
            raise ConfigError(
                f"task: found {found}; expected a SyntheticTask of one of {', '.join(sorted(self._domains))}"
            )
        domain = self._domains[task.domain]
        self._start(task, domain.database(), Progress())
        opening = (text_message("system", domain.system), text_message("user", task.turns[0].user))
        return Observation(opening, domain.tools)

    async def step(self, action: Action) -> Step:
        """Run the calls, or hand the reply to the user.

        Raises ``BadRequest`` before ``reset``, after the end, and for calls whose ids are empty or equal.
        """
        task, database = self._running()
        ids = [call.id for call in action.calls]
        if len(set(ids)) != len(ids) or "" in ids:
            raise BadRequest(f"found ids {ids}; every call needs its own id", param="calls")
        if (action.kind == "final_reply") == bool(action.calls):
            raise BadRequest("a final reply has no calls, a tool call has at least one", param="kind")
        self._progress = replace(self._progress, actions=self._progress.actions + 1)
        if action.calls:
            answers = tuple(self._result(task, database, call) for call in action.calls)
            results = "\n".join((self._progress.results, *(answer.text for answer in answers)))
            self._progress = replace(self._progress, results=results)
        else:
            said, self._progress = _heard(task, self._progress, action.text)
            answers = (text_message("user", said),) if said else ()
        if self._progress.actions >= MAX_ACTIONS:
            self._progress = replace(self._progress, done=True)
        turn = len(self._progress.replies)
        cut = self._progress.done and turn < len(task.turns)
        return Step(answers, self._progress.done, {"turn": turn, "truncated": cut})

    async def verify(self) -> Outcome:
        """Compare the database with the goal, and what was said with what the user must know.

        ``score`` is the product of three shares, execution (0 or 1), information conveyed and completeness: what does
        nothing has none of it.
        """
        task, database = self._started()
        domain, progress = self._domains[task.domain], self._progress
        wrong = differences(domain.goal(task), domain.state(database))
        execution = Check("execution", not wrong, "; ".join(wrong[:_SHOWN]))
        fidelity = [
            Check(f"conveyed:{number}.{index}", not why, why)
            for number, turn in enumerate(task.turns)
            for index, info in enumerate(turn.convey)
            for why in [_untold(info, number, progress)]
        ]
        complete = [
            Check(f"answered:{number}", number < len(progress.replies) and bool(progress.replies[number].strip()))
            for number in range(len(task.turns))
        ] + [_holds(f"assertion:{number}", each, database) for number, each in enumerate(task.assertions)]
        checks = (execution, *fidelity, *complete)
        return Outcome(
            completed=all(check.ok for check in checks),
            checks=checks,
            score=float(execution.ok) * _share(fidelity) * _share(complete),
        )

    async def snapshot(self) -> Snapshot:
        """The episode as it stands; later steps do not change it."""
        task, database = self._started()
        return Snapshot(task, database.image(), self._progress)

    async def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot, of this or of another instance with the same domains."""
        if not isinstance(snapshot, Snapshot):
            raise BadRequest(f"found {type(snapshot).__name__}; expected what snapshot() returned", param="snapshot")
        database = self._domains[snapshot.task.domain].database(snapshot.image)
        self._start(snapshot.task, database, snapshot.progress)

    async def close(self) -> None:
        """Free the database."""
        if self._database is not None:
            self._database.close()
            self._task = self._database = None

    def _start(self, task: SyntheticTask, database: Database, progress: Progress) -> None:
        if self._database is not None:
            self._database.close()
        self._task, self._database, self._progress = task, database, progress

    def _started(self) -> tuple[SyntheticTask, Database]:
        if self._task is None or self._database is None:
            raise BadRequest("no episode; call reset first")
        return self._task, self._database

    def _running(self) -> tuple[SyntheticTask, Database]:
        started = self._started()
        if self._progress.done:
            raise BadRequest("the episode is over; call reset")
        return started

    def _result(self, task: SyntheticTask, database: Database, call: ToolCall) -> Message:
        answer = self._domains[task.domain].call(database, call.name, call.parsed())
        return tool_result(call, answer.text, is_error=answer.is_error)


def _heard(task: SyntheticTask, progress: Progress, reply: str) -> tuple[str, Progress]:
    """What the user says to ``reply`` (nothing at the end), and how far the episode then is."""
    number = len(progress.replies)
    facts = task.turns[number].facts
    wanted = [index for index, fact in enumerate(facts) if index not in progress.told and asks(reply, fact)]
    asked = (*progress.asked, reply)
    if wanted:
        told = progress.told | set(wanted)
        return " ".join(facts[index].says for index in wanted), replace(progress, asked=asked, told=told)
    if "?" in reply and not progress.told_to_go_on:
        return GO_ON, replace(progress, asked=asked, told_to_go_on=True)
    replies = (*progress.replies, "\n".join(asked))
    over = len(replies) == len(task.turns)
    following = "" if over else task.turns[len(replies)].user
    return following, Progress(progress.actions, replies, results=progress.results, done=over)


def _untold(info: Info, number: int, progress: Progress) -> str:
    """Why turn ``number`` does not count as having told ``info``; empty when it does."""
    if number >= len(progress.replies) or not conveyed(progress.replies[number], info):
        return f"not said: {' | '.join(info.any_of)}"
    if info.looked_up and not conveyed(progress.results, info):
        return f"said, but in no result of a call: {' | '.join(info.any_of)}"
    return ""


def _holds(name: str, assertion: Assertion, database: Database) -> Check:
    found = bool(database.select(assertion.sql, {}, max_rows=1)[1])
    return Check(name, found, "" if found else assertion.says)


def _share(checks: list[Check]) -> float:
    return sum(check.ok for check in checks) / len(checks) if checks else 1.0
