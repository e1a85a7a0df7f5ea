"""What a file of groups holds, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from firstchair.data.orchestration.groups import Group
from firstchair.data.orchestration.metrics import ToolUse, add_uses
from firstchair.data.orchestration.selection import Judged, judge_group
from firstchair.rollout.orchestration.trajectory import TrajectoryEnd


class Tally(msgspec.Struct, kw_only=True):
    """Trajectories of one domain, or of all."""

    tasks: int = 0
    solved: int = 0
    """Tasks with a correct trajectory."""
    kept: int = 0
    """Trajectories that are kept, one a task at most."""
    trajectories: int = 0
    correct: int = 0
    wrong: int = 0
    ungraded: int = 0
    """Broken ones aside."""
    broken: int = 0
    """The machinery failed: nothing is known."""
    routed: int = 0
    clean: int = 0
    correct_clean: int = 0
    correct_routed: int = 0

    def add(self, judged: tuple[Judged, ...]) -> None:
        """Count the trajectories of one task."""
        self.tasks += 1
        self.solved += any(one.trajectory.correct is True for one in judged)
        self.kept += any(one.kept for one in judged)
        for one in judged:
            correct, is_broken = one.trajectory.correct, one.trajectory.end is TrajectoryEnd.FAILED
            self.trajectories += 1
            self.correct += correct is True
            self.wrong += correct is False
            self.ungraded += correct is None and not is_broken
            self.broken += correct is None and is_broken
            self.routed += one.routed
            self.clean += one.clean
            self.correct_clean += correct is True and one.clean
            self.correct_routed += correct is True and one.routed


class TrajectoryStats(msgspec.Struct, kw_only=True):
    """The whole file."""

    total: Tally = msgspec.field(default_factory=Tally)
    domains: dict[str, Tally] = {}
    ends: dict[str, int] = {}
    unclean: dict[str, int] = {}
    """Reason → trajectories that have it; one may have several."""
    unclean_correct: dict[str, int] = {}
    """Of these the correct ones: what the gate costs."""
    nudges: dict[str, int] = {}
    parse_failures: int = 0
    salvaged: int = 0
    prompt_tokens: int = 0
    """Of the policy, like the next two."""
    completion_tokens: int = 0
    policy_cost_nano: int = 0
    kept_cost_nano: int = 0
    """Of the trajectories that are kept, as far as it is known."""
    unpriced: int = 0
    """Trajectories whose cost is unknown."""
    latency_s: float = 0.0
    """Of all trajectories together."""
    tools: dict[str, ToolUse] = {}
    """By name in the catalog, dearest first."""


def trajectory_stats(groups: Iterable[Group]) -> TrajectoryStats:
    """Count ``groups``; streams them."""
    found = TrajectoryStats()
    ends: Counter[str] = Counter()
    unclean: Counter[str] = Counter()
    unclean_correct: Counter[str] = Counter()
    nudges: Counter[str] = Counter()
    for group in groups:
        judged = judge_group(group)
        found.total.add(judged)
        found.domains.setdefault(group.task.domain, Tally()).add(judged)
        for one in judged:
            trajectory = one.trajectory
            reasons = [str(finding.reason) for finding in one.findings]
            ends[str(trajectory.end)] += 1
            unclean.update(reasons)
            unclean_correct.update(reasons if trajectory.correct is True else ())
            nudges.update(trajectory.nudges)
            found.parse_failures += trajectory.parse_failures
            found.salvaged += trajectory.salvaged
            found.prompt_tokens += trajectory.prompt_tokens
            found.completion_tokens += trajectory.completion_tokens
            found.policy_cost_nano += trajectory.policy_cost_nano or 0
            found.kept_cost_nano += (one.cost_nano or 0) if one.kept else 0
            found.unpriced += one.cost_nano is None
            found.latency_s += trajectory.latency_s
            add_uses(found.tools, trajectory)
    found.ends, found.nudges = dict(ends.most_common()), dict(nudges.most_common())
    found.unclean, found.unclean_correct = dict(unclean.most_common()), dict(unclean_correct.most_common())
    found.domains = dict(sorted(found.domains.items()))
    found.tools = dict(sorted(found.tools.items(), key=lambda item: (-item[1].cost_nano, -item[1].calls, item[0])))
    return found
