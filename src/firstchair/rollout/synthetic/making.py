"""A domain from a description: every stage by one author, then the filters.

description ─► tables ─► rows, table by table ─► tools ─► tasks, batch by batch ─► filters ─► domain.json
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firstchair.core.atomic import write_text
from firstchair.core.errors import ConfigError, RunFailed
from firstchair.core.jsontext import content_id, dumps
from firstchair.engines.base import Engine, Sampling
from firstchair.rollout.synthetic.author import SAMPLING, Author, AuthorFailed, AuthorLog, append_log, read_log
from firstchair.rollout.synthetic.database import in_reference_order
from firstchair.rollout.synthetic.domain import (
    Cell,
    Domain,
    Record,
    SyntheticTask,
    TaskDraft,
    domain_text,
    named_task,
    read_domain,
)
from firstchair.rollout.synthetic.filters import Solver, TaskVerdict, drops, filter_tasks
from firstchair.rollout.synthetic.opened import OpenDomain
from firstchair.rollout.synthetic.stages import Brief, rows_stage, tables_stage, tasks_stage, tools_stage

AUTHOR_LOG, VERDICTS, DOMAIN, REPORT = "author.jsonl", "verdicts.jsonl", "domain.json", "report.json"
"""Files of a directory of ``make_domain``: what the author wrote, the solver's verdicts as they come, and at the end
the domain with the tasks that were kept, and what became of all."""


class MakeReport(Record, frozen=True, kw_only=True):
    """What became of what was written."""

    domain: str
    author: str
    """Model that wrote it."""
    solver: str
    """Policy that had to fail and to solve; empty when none was asked."""
    replies: int
    """Of the author, repairs included."""
    repaired: int
    failed_batches: dict[str, str]
    """Batches of tasks that could not be read at all, and why."""
    written: int
    kept: int
    drops: dict[str, int]
    """Reason → tasks dropped for it."""
    verdicts: tuple[TaskVerdict, ...]


@dataclass(frozen=True)
class Written:
    """All that an author gave, before the filters."""

    opened: OpenDomain
    tasks: tuple[SyntheticTask, ...]
    failed_batches: dict[str, str]


async def write_domain(brief: Brief, author: Author, *, progress: Callable[[str], None] = lambda _: None) -> Written:
    """Let ``author`` write every stage. Raises ``AuthorFailed`` when tables, rows or tools cannot be used."""
    progress("tables")
    draft = await author.write(tables_stage(brief))
    rows: dict[str, tuple[tuple[Cell, ...], ...]] = {}
    for table in in_reference_order(draft.tables):
        progress(f"rows {table.name}")
        rows[table.name] = (await author.write(rows_stage(brief, draft, table, rows))).rows
    progress("tools")
    tools = (await author.write(tools_stage(brief, draft, rows))).tools
    domain = Domain(
        name=brief.name,
        title=draft.title,
        description=brief.description,
        today=draft.today,
        rules=draft.rules,
        tables=draft.tables,
        rows=rows,
        tools=tools,
    )
    opened = OpenDomain(domain)
    drafts: list[TaskDraft] = []
    failed: dict[str, str] = {}
    for number, start in enumerate(range(0, brief.tasks, brief.batch)):
        stage = tasks_stage(domain, opened, drafts, number, min(brief.batch, brief.tasks - start))
        progress(stage.name)
        try:
            drafts += (await author.write(stage)).tasks
        except AuthorFailed as error:
            failed[stage.name] = f"{error.why}: {'; '.join(error.problems[:3])}"
    return Written(opened, tuple(named_task(brief.name, one) for one in drafts), failed)


async def make_domain(
    brief: Brief,
    engine: Engine,
    out: Path,
    *,
    solver: Solver | None = None,
    sampling: Sampling = SAMPLING,
    progress: Callable[[str], None] = lambda _: None,
) -> MakeReport:
    """Write a domain into the directory ``out`` and filter its tasks; the result is ``out/domain.json``.

    A run that broke goes on where it was: replies and verdicts that are kept in ``out`` are not asked for again.
    Raises as ``write_domain`` does, ``RunFailed`` when no task is left, ``ConfigError`` when ``out`` holds another
    domain, or things that no such run left there.
    """
    _refuse_another(brief, out)
    author = Author(engine, AuthorLog(out / AUTHOR_LOG), sampling)
    written = await write_domain(brief, author, progress=progress)
    # A verdict holds for this model in this domain, and for no other.
    asked = {
        "domain": content_id(msgspec.to_builtins(written.opened.domain)),
        "solver": solver.policy.name if solver else "",
        "of": solver.trials if solver else 0,
    }
    old = [row for row in read_log(out / VERDICTS) if {name: row[name] for name in asked} == asked]
    known = [msgspec.convert(row["verdict"], TaskVerdict) for row in old]
    progress("filters")
    verdicts = await filter_tasks(
        written.opened,
        written.tasks,
        solver=solver,
        known={verdict.task_id: verdict for verdict in known},
        note=lambda verdict: append_log(out / VERDICTS, {**asked, "verdict": msgspec.to_builtins(verdict)}),
    )
    report = _report(written, author, solver, verdicts)
    write_text(out / REPORT, dumps(msgspec.to_builtins(report)) + "\n", force=True)
    domain = kept_domain(written, verdicts)
    if not domain.tasks:
        raise RunFailed(f"{out}: none of {report.written} tasks was kept: {report.drops}; see {REPORT}")
    write_text(out / DOMAIN, domain_text(domain), force=True)
    return report


def _refuse_another(brief: Brief, out: Path) -> None:
    names = set(os.listdir(out)) if out.is_dir() else set()
    if names and names.isdisjoint((AUTHOR_LOG, VERDICTS, DOMAIN, REPORT)):
        raise ConfigError(
            f"{out} is a directory with other things in it (no {AUTHOR_LOG}, with which a run begins); choose "
            "another --out"
        )
    path = out / DOMAIN
    if not path.exists():
        return
    found = read_domain(path)
    if (found.name, found.description) != (brief.name, brief.description):
        raise ConfigError(
            f"{path} holds the domain {found.name}, of another description; choose another directory for {brief.name}"
        )


def kept_domain(written: Written, verdicts: Sequence[TaskVerdict]) -> Domain:
    """The domain with the tasks that the filters kept."""
    kept = tuple(task for task, verdict in zip(written.tasks, verdicts, strict=True) if verdict.kept)
    return msgspec.structs.replace(written.opened.domain, tasks=kept)


def _report(written: Written, author: Author, solver: Solver | None, verdicts: Sequence[TaskVerdict]) -> MakeReport:
    return MakeReport(
        domain=written.opened.domain.name,
        author=author.engine.info().model,
        solver=solver.policy.name if solver else "",
        replies=len(author.log.rows),
        repaired=author.repaired,
        failed_batches=written.failed_batches,
        written=len(verdicts),
        kept=sum(verdict.kept for verdict in verdicts),
        drops=drops(verdicts),
        verdicts=tuple(verdicts),
    )
