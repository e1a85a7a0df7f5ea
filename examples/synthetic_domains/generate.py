"""Write the ten domains that ship with the package, by the same stages and filters as any author's.

    python examples/synthetic_domains/generate.py [--seed 7] [--out src/firstchair/rollout/synthetic/domains]

Each domain has a module here: its tables and tools as they are, functions that draw its rows and its tasks. A scripted
author answers the stages with them, so what is written has passed every check that a model's work passes. The same
seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import ModuleType

import airline
import clinic
import fleet
import hotel
import library
import msgspec
import payroll
import property as property_
import retail
import telecom
import tickets
from kit import Blueprint, World

from firstchair.core.atomic import write_text
from firstchair.core.jsontext import dumps
from firstchair.core.seeds import seed_of
from firstchair.engines.base import Request
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.synthetic.author import Author
from firstchair.rollout.synthetic.domain import Domain, TaskDraft, domain_text
from firstchair.rollout.synthetic.filters import TaskVerdict, filter_tasks
from firstchair.rollout.synthetic.making import kept_domain, write_domain
from firstchair.rollout.synthetic.opened import OpenDomain
from firstchair.rollout.synthetic.stages import Brief, RowsDraft, TablesDraft, TasksDraft, ToolsDraft

SEED = 7
OUT = Path(__file__).parents[2] / "src" / "firstchair" / "rollout" / "synthetic" / "domains"
BATCH = 8

MODULES: Sequence[ModuleType] = (
    airline,
    clinic,
    fleet,
    hotel,
    library,
    payroll,
    property_,
    retail,
    telecom,
    tickets,
)


def scripted_author(blueprint: Blueprint, seed: int) -> tuple[ScriptedEngine, Brief]:
    """An author that knows one domain, and what to ask it for."""
    rows = blueprint.rows(Random(seed_of(seed, blueprint.name, "rows")))
    tables = TablesDraft(
        title=blueprint.title, today=blueprint.today, rules=tuple(blueprint.rules), tables=tuple(blueprint.tables)
    )
    tasks = _tasks(blueprint, tables, rows, seed)

    def reply(request: Request) -> str:
        name, _, attempt = request.request_id.rpartition(":")
        if attempt != "0":
            raise ValueError(request.messages[-1].text)  # what is wrong in a module here, for whoever edits it
        stage, _, detail = name.partition(" ")
        if stage == "tables":
            return _json(tables)
        if stage == "rows":
            return _json(RowsDraft(rows=tuple(map(tuple, rows[detail]))))
        if stage == "tools":
            return _json(ToolsDraft(tools=tuple(blueprint.tools)))
        start = int(detail) * BATCH
        return _json(TasksDraft(tasks=tuple(tasks[start : start + BATCH])))

    brief = Brief(blueprint.name, blueprint.description, tasks=len(tasks), batch=BATCH)
    return ScriptedEngine(reply, model="examples/synthetic_domains"), brief


def _tasks(blueprint: Blueprint, tables: TablesDraft, rows: dict[str, list[tuple]], seed: int) -> list[TaskDraft]:
    domain = Domain(
        name=blueprint.name,
        title=tables.title,
        description=blueprint.description,
        today=tables.today,
        rules=tables.rules,
        tables=tables.tables,
        rows={name: tuple(map(tuple, some)) for name, some in rows.items()},
        tools=tuple(blueprint.tools),
    )
    world = World(OpenDomain(domain), Random(seed_of(seed, blueprint.name, "tasks")))
    blueprint.tasks(world)
    return world.written


def _json(value: object) -> str:
    return dumps(msgspec.to_builtins(value))


def made(blueprint: Blueprint, seed: int = SEED) -> tuple[Domain, list[TaskVerdict]]:
    """The domain with the tasks that passed, and the verdicts on all."""

    async def whole() -> tuple[Domain, list[TaskVerdict]]:
        engine, brief = scripted_author(blueprint, seed)
        written = await write_domain(brief, Author(engine))
        verdicts = await filter_tasks(written.opened, written.tasks)
        return kept_domain(written, verdicts), verdicts

    return asyncio.run(whole())


def main() -> None:
    """Write every domain; say which tasks were dropped, and why."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    for module in MODULES:
        domain, verdicts = made(module.BLUEPRINT, options.seed)
        write_text(options.out / f"{domain.name}.json", domain_text(domain), force=True)
        print(f"{domain.name}: {len(domain.tasks)} of {len(verdicts)} tasks kept")
        for verdict in verdicts:
            if not verdict.kept:
                print(f"  {verdict.task_id}: {verdict.drop}: {verdict.detail}")


if __name__ == "__main__":
    main()
