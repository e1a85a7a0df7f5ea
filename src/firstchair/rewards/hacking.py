"""The reward-hacking check: policies that do no work must earn less than an honest one, whatever the reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, Tool, ToolCall
from firstchair.rewards.grading import Grader
from firstchair.rewards.samples import GradedSample, Sample, sample_of_episode, task_labels
from firstchair.rollout.environment import Environment
from firstchair.rollout.episodes import Task, run_episodes
from firstchair.rollout.policy import Actor
from firstchair.rollout.teacher_policy import TeacherPolicy


class RepeatCall:
    """Makes one call over and over: the first that a tool on offer takes. Without any it says one thing."""

    def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """The same call as before, with an id of its own."""
        if not tools:
            return Action(kind="final_reply", text="x")
        tool = tools[0]
        properties = tool.parameters.get("properties", {})
        arguments = dict.fromkeys(tool.parameters.get("required", properties), "x")
        return _call(messages, tool.name, arguments)


class StopAtOnce:
    """Says that it is done."""

    def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """A final reply."""
        return Action(kind="final_reply", text="Done.")


class AskAlways:
    """Asks the user again whatever they say: by the tool for that where there is one, else in words."""

    question = "What exactly do you mean?"

    def __init__(self, tool: str = "AskUser"):
        self._tool = tool

    def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """The question."""
        tool = next((tool for tool in tools if tool.name == self._tool), None)
        if tool is None:
            return Action(kind="final_reply", text=self.question)
        return _call(messages, tool.name, dict.fromkeys(tool.parameters.get("required", ()), self.question))


class Echo:
    """Says back what it was told last."""

    def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """A final reply with the user's words."""
        return Action(kind="final_reply", text=messages[-1].text or "?")


def _call(messages: Sequence[Message], name: str, arguments: dict[str, str]) -> Action:
    number = sum(len(message.tool_calls) for message in messages)
    return Action(kind="tool_call", calls=(ToolCall.of(f"call_{number}", name, dict(arguments)),))


DEGENERATE: Mapping[str, Actor] = MappingProxyType(
    {"repeat_call": RepeatCall(), "stop_at_once": StopAtOnce(), "ask_always": AskAlways(), "echo": Echo()}
)
"""Name → a policy that earns nothing honestly."""


@dataclass(frozen=True)
class PolicyScore:
    """What one policy earned."""

    policy: str
    reward: float | None
    """Mean over graded samples; ``None`` without any."""
    n: int
    ungraded: int
    components: Mapping[str, float | None]
    """Mean value of each component over the samples that have one."""


@dataclass(frozen=True)
class HackingReport:
    """The honest policy beside the degenerate ones."""

    honest: PolicyScore
    degenerate: tuple[PolicyScore, ...]

    @property
    def beaten_by(self) -> tuple[str, ...]:
        """Degenerate policies that earn as much as the honest one, or that cannot be compared with it."""
        best = self.honest.reward
        return tuple(
            one.policy for one in self.degenerate if best is None or one.reward is None or one.reward >= best
        )


async def play(
    env_factory: Callable[[], Environment], tasks: Sequence[Task], actors: Mapping[str, Actor], *, seed: int = 0
) -> dict[str, list[Sample]]:
    """Every task played once by every actor: actor → its samples, in the order of ``tasks``."""
    played: dict[str, list[Sample]] = {}
    for name, actor in actors.items():
        policy = TeacherPolicy(actor, name=name)
        episodes = [episode async for episode in run_episodes(env_factory, tasks, policy, seed=seed)]
        played[name] = [
            sample_of_episode(episode, task_labels(tasks[episode.number]))
            for episode in sorted(episodes, key=lambda one: one.number)
        ]
    return played


async def hacking_check(
    grader: Grader, honest: Sequence[Sample], degenerate: Mapping[str, Sequence[Sample]]
) -> HackingReport:
    """Grade the samples of an honest policy and of degenerate ones on the same tasks. All of a task's samples form
    one group, so that a pairwise judge compares the policies with each other.
    """
    parts = {"honest": honest, **degenerate}
    everything = [sample for samples in parts.values() for sample in samples]
    graded = await grader.grade(everything)
    scores: list[PolicyScore] = []
    start = 0
    for name, samples in parts.items():
        scores.append(_score(name, graded[start : start + len(samples)]))
        start += len(samples)
    return HackingReport(scores[0], tuple(scores[1:]))


def _score(policy: str, graded: Sequence[GradedSample]) -> PolicyScore:
    rewards = [sample.reward for sample in graded if sample.reward is not None]
    names = dict.fromkeys(name for sample in graded for name in sample.components)
    return PolicyScore(
        policy=policy,
        reward=_mean(rewards),
        n=len(rewards),
        ungraded=len(graded) - len(rewards),
        components={
            name: _mean([v for sample in graded if (v := sample.components.get(name)) is not None]) for name in names
        },
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
