"""The demo, stage by stage. Each stage calls what its command calls, on files that the commands read as well.

harness ──HTTP──► gateway ──HTTP──► teacher
                     └─► store ──► draft ──corrections──► golden set (frozen)
                           └─────► SFT corpus                 │
base model ── replay, episodes (before) ◄─────────────────────┤
    └─► train sft ── replay, episodes (after) ◄───────────────┘ ──► report.html
            └─► gates ─► gateway: promote, outage, rollback ──► summary.json
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from firstchair.catalog.catalog import Catalog
from firstchair.catalog.verdict import score
from firstchair.cli.demo_gates import gates_path, run_gates
from firstchair.cli.demo_gateway import GatewayFiles
from firstchair.cli.demo_live import gateway_summary, live_plan, live_sessions, run_live
from firstchair.cli.demo_record import record
from firstchair.cli.demo_score import Scores, score_model
from firstchair.cli.gates_view import print_gates
from firstchair.cli.tables import rate_row
from firstchair.core.atomic import make_dirs, refuse_existing, write_text
from firstchair.core.clock import utc_now
from firstchair.core.errors import ConfigError
from firstchair.core.extras import require
from firstchair.core.jsonl import write_jsonl
from firstchair.core.jsontext import dumps
from firstchair.data.corrections import correction_from
from firstchair.data.golden import BuildOptions, FreezeOptions, GoldenSet, TrainingData, build, correct, freeze
from firstchair.data.sft import SftOptions, sft_records, write_sft
from firstchair.data.similarity import text_shingles
from firstchair.evals.gate_record import GateRecord, sealed
from firstchair.evals.metrics import measure, standard_slices
from firstchair.evals.run_record import Run
from firstchair.rollout.desk.definitions import desk_catalog
from firstchair.rollout.desk.review import corrections_of
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.traces.session import Session
from firstchair.train.base_model import copy_base_model

TRAIN, GOLDEN, DEV, EPISODES, LIVE = range(5)
"""Each stage draws its tasks from a seed of its own, so that no task is in two of them."""

DEV_SESSIONS = 48
SHOWN = ("strict_pass", "lenient_pass", "tool_name", "argument_quality", "recovery", "stop_precision", "malformed")
MARKER = "demo.json"
"""Stands in every directory that a demo made, so that ``--force`` deletes nothing else."""


@dataclass(frozen=True)
class DemoOptions:
    """How large the demo is."""

    out: Path
    sessions: int = 2000
    golden: int = 66
    episodes: int = 60
    mistake_rate: float = 0.04
    epochs: float = 1.0
    seed: int = 0


@dataclass
class Clock:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str, title: str) -> Iterator[None]:
        """Time one stage and say what it does."""
        _console().print(f"[bold]{len(self.seconds) + 1}. {title}[/]")
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 2)


def _console() -> Console:
    return Console(stderr=True)


def tasks_for(options: DemoOptions, purpose: int, count: int) -> list[DeskTask]:
    """The tasks of one stage."""
    return make_tasks(count, options.seed * 1000 + purpose)


def run_demo(options: DemoOptions, *, force: bool = False) -> dict[str, Any]:
    """Run every stage into ``options.out`` and return the summary.

    Raises ``ConfigError`` when the directory exists without ``force``, or exists and no demo made it.
    """
    out = options.out
    require("train", "gateway")
    _prepare(out, force=force)
    clock, files, catalog = Clock(), GatewayFiles(out), desk_catalog()
    wanted = {TRAIN: options.sessions, GOLDEN: options.golden, DEV: DEV_SESSIONS}
    with clock.stage("record", "The teacher works in the desk; all calls go through the gateway, which records them"):
        tasks = {purpose: tasks_for(options, purpose, count) for purpose, count in wanted.items()}
        recorded, recording = record(tasks, files, mistake_rate=options.mistake_rate, seed=options.seed)
        _console().print(f"   {recording}", highlight=False)
    with clock.stage("golden", "Its mistakes are corrected from the policy; the golden set is frozen"):
        golden = make_golden(recorded[GOLDEN], recorded[TRAIN] + recorded[DEV], catalog, out)
    with clock.stage("corpus", "Sessions become training records; mistakes are out of the loss"):
        records = make_corpus(recorded, catalog, out)
    alive = tasks_for(options, EPISODES, options.episodes)
    base = copy_base_model(out / "base")
    with clock.stage("baseline", "The base model is replayed on the golden set, then works in the desk"):
        before = asyncio.run(score_model(base, golden, alive, out / "baseline", options.seed))
    with clock.stage("train", f"The base model learns from {records:,} sessions"):
        model = train(options, base, out)
    with clock.stage("after", "The trained model is replayed on the same golden set and works in the desk"):
        after = asyncio.run(score_model(model, golden, alive, out / "sft", options.seed))
    with clock.stage("report", "Both runs are compared"):
        write_reports(before, after, golden, out)
    with clock.stage("gates", "Six gates ask whether it may take the slot"):
        gates = run_gates(before, after, golden, files, seed=options.seed)
    with clock.stage("live", "The trained model takes over the desk's calls, fails, and is rolled back"):
        deck = tasks_for(options, LIVE, sum(live_sessions(options.episodes)) + 1)
        plan = live_plan(deck, options.episodes)
        live = run_live(model, plan, files, gates, mistake_rate=options.mistake_rate, seed=options.seed)
        through = gateway_summary(files, live, recording)
    verdicts = {gate.name: str(gate.verdict) for gate in gates.gates}
    summary = {**summary_of(options, before, after, golden, clock), "gates": verdicts, "gateway": through}
    write_text(out / "summary.json", dumps(summary) + "\n")
    _show(summary, gates, out)
    return summary


def _prepare(out: Path, *, force: bool) -> None:
    if force and out.exists() and not (out / MARKER).is_file():
        raise ConfigError(f"{out} exists and no demo made it; choose another directory with --out")
    refuse_existing(out, force=force)
    if out.exists():
        shutil.rmtree(out)
    make_dirs(out)
    write_text(out / MARKER, dumps({"started_at": utc_now()}) + "\n")


def make_golden(sessions: Sequence[Session], training: Sequence[Session], catalog: Catalog, out: Path) -> GoldenSet:
    """Draft, correct and freeze the golden set; near-duplicates are left out, overlap with training is refused."""
    rows = [row for session in sessions for row in corrections_of(session, confirm=True)]
    write_jsonl(out / "corrections.jsonl", rows)
    now, tools = utc_now(), catalog.tool_schemas()
    draft = build(
        sessions, lambda _: tools, out / "golden-draft", BuildOptions(name="desk", created_at=now, dedup=0.6)
    )
    kept = set(draft.sessions)
    correct(out / "golden-draft", [correction_from(row) for row in rows if row["dp_id"].rpartition(":")[0] in kept])
    shingled = [(session.session_id, text_shingles(session)) for session in training]
    options = FreezeOptions(
        catalog=catalog, scorer=score, created_at=now, against=(TrainingData(name="sft", sets=shingled),)
    )
    return freeze(out / "golden-draft", out / "golden", options)


def make_corpus(recorded: dict[int, list[Session]], catalog: Catalog, out: Path) -> int:
    """Write the SFT corpus and its held-out part; returns the training records."""
    tools, written = catalog.tool_schemas(), 0
    for purpose, name in ((DEV, "dev"), (TRAIN, "train")):
        sessions = recorded[purpose]
        corrections = [correction_from(row) for session in sessions for row in corrections_of(session)]
        records = sft_records(sessions, lambda _: tools, SftOptions(category="desk"), corrections=corrections)
        written = write_sft(out / f"{name}.jsonl", records).records
    return written


def summary_of(
    options: DemoOptions, before: Scores, after: Scores, golden: GoldenSet, clock: Clock
) -> dict[str, Any]:
    """What ``summary.json`` holds; every rate as ``rate_row`` writes it. Episodes in ``errors`` are in no rate."""
    return {
        "options": {name: value for name, value in asdict(options).items() if name != "out"},
        "baseline": {name: rate_row(rate) for name, rate in measure(before.run.rows).items()},
        "sft": {name: rate_row(rate) for name, rate in measure(after.run.rows).items()},
        "strict_pass_by_kind": {"baseline": by_kind(before.run, golden), "sft": by_kind(after.run, golden)},
        "completion": {
            "before": rate_row(before.alive.completed),
            "after": rate_row(after.alive.completed),
            "errors": {"before": before.alive.errors, "after": after.alive.errors},
        },
        "golden_sha256": golden.set_sha256,
        "seconds": {**clock.seconds, "total": round(sum(clock.seconds.values()), 2)},
    }


def by_kind(run: Run, golden: GoldenSet) -> dict[str, dict[str, float | int | None]]:
    """Strict pass of final replies, of calls of universal tools and of calls of the desk's own conventions."""
    parts = standard_slices(run.rows, golden.kinds)["tool kind"]
    return {part.name: rate_row(part.strict) for part in sorted(parts, key=lambda part: part.name)}


def train(options: DemoOptions, base: Path, out: Path) -> Path:
    """Fine-tune the base model on the corpus; returns the directory of the trained model."""
    from firstchair.train.config import Batch, Muon, Schedule, SftData, SftRecipe
    from firstchair.train.sft import train_sft

    recipe = SftRecipe(
        model=base,
        out=out / "train",
        data=SftData(train=out / "train.jsonl", dev=out / "dev.jsonl", max_tokens=2048),
        batch=Batch(sessions=3),
        optimizer=Muon(lr=3e-3, adamw_lr=3e-3),
        schedule=Schedule(kind="linear", warmup_ratio=0.05, floor=0.02),
        epochs=options.epochs,
        precision="auto",
        seed=options.seed,
    )
    return train_sft(recipe).model_dir


def write_reports(before: Scores, after: Scores, golden: GoldenSet, out: Path) -> None:
    """``report.html`` and ``report.json``: the trained model's run beside the base model's."""
    from firstchair.evals.report import write_report
    from firstchair.evals.report_data import Completion as ReportedCompletion

    alive = ReportedCompletion(before.alive.completed, after.alive.completed, after.alive.errors, before.alive.errors)
    write_report(after.run, golden, out / "report.html", before.run, completion=alive)


def _show(summary: dict[str, Any], gates: GateRecord, out: Path) -> None:
    table = Table(title="Base model and trained model on the same frozen golden set (95% intervals)")
    for column in ("", "base", "trained"):
        table.add_column(column, justify="right" if column else "left")
    for name in SHOWN:
        table.add_row(name.replace("_", " "), _cell(summary["baseline"][name]), _cell(summary["sft"][name]))
        if name == "strict_pass":
            kinds = summary["strict_pass_by_kind"]
            for kind, rate in kinds["baseline"].items():
                table.add_row(f"  of {kind}", _cell(rate), _cell(kinds["sft"][kind]))
    alive = summary["completion"]
    table.add_row("episodes completed", _cell(alive["before"]), _cell(alive["after"]))
    console = Console()
    console.print(table)
    for name, errors in alive["errors"].items():
        for reason, count in errors.items():
            console.print(f"{count} episodes ({name} training) failed and are in no rate: {reason}", markup=False)
    print_gates(gates, sealed(gates), gates_path(out), as_json=False)
    _show_gateway(console, summary["gateway"])
    console.print(f"{summary['seconds']['total']:.0f} seconds. Everything lies in {out}/:")
    for name, what in (
        ("report.html", "the report; open it in a browser"),
        ("summary.json", "the figures above, for machines"),
        ("gates.json", "the sealed record of the gates"),
        ("golden/", "the frozen golden set"),
        ("train/model/", "the trained model; loads in transformers and vLLM"),
        ("traces.db", "the sessions that the gateway recorded"),
        ("gateway/", "its configuration, ledger and audit log"),
    ):
        console.print(f"  [bold]{name:<14}[/] {what}", highlight=False)
    console.print("Try next:")
    for line in next_commands(out):
        console.print(Text(f"  {line}"), soft_wrap=True)


def _show_gateway(console: Console, through: dict[str, Any]) -> None:
    table = Table(title="Who answered the desk's calls, as the ledger has it")
    names = sorted({name for phase in through["served_by"].values() for name in phase}, reverse=True)
    for column in ("", *names):
        table.add_column(column, justify="right" if column else "left")
    for phase, counts in through["served_by"].items():
        table.add_row(phase.replace("_", " "), *(f"{counts.get(name, 0):,}" for name in names))
    console.print(table)
    total = through["pretend_usd"]["total"]
    console.print(
        f"{through['calls']:,} calls, {through['ledger_rows']:,} rows in the ledger, "
        f"{through['recorded_sessions']:,} recorded sessions, {through['harness_errors']} errors in the harness. "
        f"At pretend prices (gateway/prices.yaml): ${total['cost_usd']:.2f}, saved ${total['saved_usd']:.4f}.",
        highlight=False,
    )


def next_commands(out: Path) -> tuple[str, ...]:
    """Commands that look at what the demo wrote, as they would be typed where the demo was run."""
    return tuple(
        f"firstchair {command}"
        for command in (
            f"golden show {_typed(out / 'golden')}",
            f"traces ls --store {_typed(out / 'traces.db')}",
            f"desk play --model {_typed(out / 'train' / 'model')}",
            f"eval compare {_typed(out / 'baseline')} {_typed(out / 'sft')}",
            f"gateway ledger --by provider --config {_typed(out / 'gateway' / 'gateway.yaml')}",
            f"gateway audit --config {_typed(out / 'gateway' / 'gateway.yaml')}",
        )
    )


def _typed(path: Path) -> str:
    return shlex.quote(str(path))


def _cell(rate: dict[str, float | None]) -> str:
    if rate["value"] is None:
        return "–"
    low, high = rate["low"] or 0.0, rate["high"] or 0.0
    return f"{100 * rate['value']:.1f}% ({100 * low:.1f}–{100 * high:.1f})"
