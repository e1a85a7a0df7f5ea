"""A domain that exists already, through the checks and filters that a new one has to pass."""

from __future__ import annotations

from firstchair.rollout.synthetic.domain import Domain, Record
from firstchair.rollout.synthetic.filters import Solver, TaskVerdict, drops, filter_tasks
from firstchair.rollout.synthetic.opened import OpenDomain
from firstchair.rollout.synthetic.problems import domain_problems


class DomainCheck(Record, frozen=True, kw_only=True):
    """What was found."""

    domain: str
    problems: tuple[str, ...] = ()
    """Of tables, rows and tools; with any, no task was looked at."""
    tasks: int
    kept: int
    drops: dict[str, int]
    """Reason → tasks that would be dropped for it."""
    verdicts: tuple[TaskVerdict, ...] = ()


async def check_domain(domain: Domain, *, solver: Solver | None = None) -> DomainCheck:
    """Look at everything of ``domain``; with a ``solver`` its tasks are tried by a model too."""
    problems = tuple(str(fault) for fault in domain_problems(domain))
    if problems:
        return DomainCheck(domain=domain.name, problems=problems, tasks=len(domain.tasks), kept=0, drops={})
    verdicts = await filter_tasks(OpenDomain(domain), domain.tasks, solver=solver)
    return DomainCheck(
        domain=domain.name,
        tasks=len(verdicts),
        kept=sum(verdict.kept for verdict in verdicts),
        drops=drops(verdicts),
        verdicts=tuple(verdicts),
    )
