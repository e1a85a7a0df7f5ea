"""The demo, stage by stage. Each stage calls what its command calls, on files that the commands read as well.

harness ──HTTP──► gateway ──HTTP──► teacher
                     └─► store ──► draft ──corrections──► golden set (frozen)
                           └─────► SFT corpus                 │
base model ── replay, episodes ◄──────────────────────────────┤
    └─► train sft ── replay, episodes ◄───────────────────────┤ ──► report.html
            └─► rl-ready ─► grpo ─► dagger ── the same ◄──────┘ ──► report-rl.html
                    └─► gates ─► gateway: promote, outage, rollback ──► summary.json
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from firstchair.catalog.catalog import Catalog
from firstchair.catalog.verdict import score
from firstchair.cli.demo_gates import gates_path, open_gates, run_gates
from firstchair.cli.demo_gateway import GatewayFiles
from firstchair.cli.demo_live import gateway_summary, live_plan, live_sessions, run_live
from firstchair.cli.demo_record import record
from firstchair.cli.demo_reinforce import dagger, grpo, readiness, write_rl_prompts
from firstchair.cli.demo_score import Scores, score_model
from firstchair.cli.demo_tasks import Purpose, tasks_for
from firstchair.cli.gates_view import print_side_by_side
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
from firstchair.evals.gate_record import GateRecord
from firstchair.evals.metrics import measure, standard_slices
from firstchair.evals.run_record import Run
from firstchair.rollout.desk.definitions import desk_catalog
from firstchair.rollout.desk.review import corrections_of
from firstchair.rollout.desk.task import DeskTask
from firstchair.traces.session import Session
from firstchair.train.base_model import copy_base_model

if TYPE_CHECKING:
    from firstchair.train.dagger_figures import DaggerFigures

DEV_SESSIONS = 48
MOMENTS = {"baseline": "before", "sft": "after", "rl": "rl"}
"""Model → what the summary calls its episodes."""
TITLES = {"baseline": "base", "sft": "trained", "rl": "reinforced"}
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
    reinforce: bool = True
    """Whether the second half runs: RL-readiness, GRPO, DAgger."""
    grpo_batches: int = 4
    grpo_prompts: int = 128
    """Decisions of a batch; of about a quarter of them some samples are right and some are wrong."""
    dagger_episodes: int = 200
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


def run_demo(options: DemoOptions, *, force: bool = False) -> dict[str, Any]:
    """Run every stage into ``options.out`` and return the summary.

    Raises ``ConfigError`` when the directory exists without ``force``, or exists and no demo made it.
    """
    out = options.out
    require("train", "gateway")
    _prepare(out, force=force)
    clock, files, catalog = Clock(), GatewayFiles(out), desk_catalog()
    wanted = {Purpose.TRAIN: options.sessions, Purpose.GOLDEN: options.golden, Purpose.DEV: DEV_SESSIONS}
    with clock.stage("record", "The teacher works in the desk; all calls go through the gateway, which records them"):
        tasks: dict[int, list[DeskTask]] = {
            purpose: tasks_for(options.seed, purpose, count) for purpose, count in wanted.items()
        }
        recorded, recording = record(tasks, files, mistake_rate=options.mistake_rate, seed=options.seed)
        _console().print(f"   {recording}", highlight=False)
    with clock.stage("golden", "Its mistakes are corrected from the policy; the golden set is frozen"):
        golden = make_golden(recorded[Purpose.GOLDEN], recorded[Purpose.TRAIN] + recorded[Purpose.DEV], catalog, out)
    with clock.stage("corpus", "Sessions become training records; mistakes are out of the loss"):
        records = make_corpus(recorded, catalog, out)
    alive = tasks_for(options.seed, Purpose.EPISODES, options.episodes)
    base = copy_base_model(out / "base")
    with clock.stage("baseline", "The base model is replayed on the golden set, then works in the desk"):
        before = asyncio.run(score_model(base, golden, alive, out / "baseline", options.seed))
    with clock.stage("train", f"The base model learns from {records:,} sessions"):
        model = train(options, base, out)
    with clock.stage("after", "The trained model is replayed on the same golden set and works in the desk"):
        after = asyncio.run(score_model(model, golden, alive, out / "sft", options.seed))
    with clock.stage("report", "Both runs are compared"):
        write_reports(before, after, golden, out / "report.html")
    scores = {"baseline": before, "sft": after}
    recovery: DaggerFigures | None = None
    if options.reinforce:
        model, recovery = reinforced(options, model, scores, golden, catalog, clock)
        with clock.stage("after_rl", "The reinforced model is replayed on the same golden set and works in the desk"):
            scores["rl"] = asyncio.run(score_model(model, golden, alive, out / "rl", options.seed))
            write_reports(after, scores["rl"], golden, out / "report-rl.html")
    with clock.stage("gates", "Six gates ask of each whether it may take the slot"):
        gates = {name: run_gates(found, before, golden, files, seed=options.seed) for name, found in scores.items()}
    with clock.stage("live", "The last model takes over the desk's calls, fails, and is rolled back"):
        deck = tasks_for(options.seed, Purpose.LIVE, sum(live_sessions(options.episodes)) + 1)
        plan, asked = live_plan(deck, options.episodes), list(gates.values())[-1]
        live = run_live(model, plan, files, asked, mistake_rate=options.mistake_rate, seed=options.seed)
        through = gateway_summary(files, live, recording)
    verdicts = {name: {gate.name: str(gate.verdict) for gate in found.gates} for name, found in gates.items()}
    summary = {
        **summary_of(options, scores, golden, clock, recovery),
        "gates": verdicts,
        "gateway": through,
    }
    write_text(out / "summary.json", dumps(summary) + "\n")
    _show(summary, gates, out)
    return summary


def reinforced(
    options: DemoOptions, start: Path, scores: Mapping[str, Scores], golden: GoldenSet, catalog: Catalog, clock: Clock
) -> tuple[Path, DaggerFigures]:
    """The second half up to the model that it leaves, and what its DAgger round did to recovery."""
    out, corpus = options.out, options.out / "train.jsonl"
    with clock.stage("rl_ready", "Is the trained model fit to be reinforced?"):
        ready = readiness(scores["sft"], scores["baseline"], golden, catalog, start, out, seed=options.seed)
        said = "yes" if ready.passed else f"{open_gates(ready)}; the demo goes on, a run of yours should not"
        _console().print(f"   {said}", highlight=False)
    with clock.stage("grpo", f"GRPO: {options.grpo_batches} batches of decisions, rewarded by code"):
        write_rl_prompts(corpus, catalog, out / "rl-prompts.jsonl")
        better = grpo(
            start,
            out / "rl-prompts.jsonl",
            out / "grpo",
            batches=options.grpo_batches,
            prompts_per_batch=options.grpo_prompts,
            seed=options.seed,
        )
    with clock.stage("dagger", f"DAgger: {options.dagger_episodes} episodes, relabelled by the desk's expert"):
        return dagger(
            better,
            corpus,
            out / "dagger",
            episodes=options.dagger_episodes,
            cases=options.episodes,
            seed=options.seed,
        )


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
    for purpose, name in ((Purpose.DEV, "dev"), (Purpose.TRAIN, "train")):
        sessions = recorded[purpose]
        corrections = [correction_from(row) for session in sessions for row in corrections_of(session)]
        records = sft_records(sessions, lambda _: tools, SftOptions(category="desk"), corrections=corrections)
        written = write_sft(out / f"{name}.jsonl", records).records
    return written


def summary_of(
    options: DemoOptions,
    scores: Mapping[str, Scores],
    golden: GoldenSet,
    clock: Clock,
    recovery: DaggerFigures | None = None,
) -> dict[str, Any]:
    """What ``summary.json`` holds; every rate as ``rate_row`` writes it. Episodes in ``errors`` are in no rate."""
    alive = {MOMENTS[name]: found.alive for name, found in scores.items()}
    summary: dict[str, Any] = {
        "options": {name: value for name, value in asdict(options).items() if name != "out"},
        **{
            name: {metric: rate_row(rate) for metric, rate in measure(found.run.rows).items()}
            for name, found in scores.items()
        },
        "strict_pass_by_kind": {name: by_kind(found.run, golden) for name, found in scores.items()},
        "completion": {
            **{moment: rate_row(found.completed) for moment, found in alive.items()},
            "errors": {moment: found.errors for moment, found in alive.items()},
        },
        "golden_sha256": golden.set_sha256,
        "seconds": {**clock.seconds, "total": round(sum(clock.seconds.values()), 2)},
    }
    if recovery is not None:
        summary["recovery_cases"] = {"grpo": rate_row(recovery.before), "dagger": rate_row(recovery.after)}
    return summary


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
    """``out`` and its JSON beside it: the later model's run next to the earlier one's."""
    from firstchair.evals.report import write_report
    from firstchair.evals.report_data import Completion as ReportedCompletion

    alive = ReportedCompletion(before.alive.completed, after.alive.completed, after.alive.errors, before.alive.errors)
    write_report(after.run, golden, out, before.run, completion=alive)


def _show(summary: dict[str, Any], gates: Mapping[str, GateRecord], out: Path) -> None:
    console, names = Console(), list(gates)
    console.print(_figures(summary, names))
    for moment, errors in summary["completion"]["errors"].items():
        for reason, count in errors.items():
            console.print(f"{count} episodes ({moment}) failed and are in no rate: {reason}", markup=False)
    print_side_by_side({TITLES[name]: record for name, record in gates.items()}, gates_path(out, names[-1]))
    _show_gateway(console, summary["gateway"])
    console.print(f"{summary['seconds']['total']:.0f} seconds. Everything lies in {out}/:")
    for name, what in _places(out):
        console.print(f"  [bold]{name:<15}[/] {what}", highlight=False)
    console.print("Try next:")
    for line in next_commands(out):
        console.print(Text(f"  {line}"), soft_wrap=True)


def _figures(summary: dict[str, Any], names: Sequence[str]) -> Table:
    """Every model's rates on the golden set and in the desk."""
    table = Table(title="The models on the same frozen golden set and in the desk (95% intervals)")
    for column in ("", *(TITLES[name] for name in names)):
        table.add_column(column, justify="right" if column else "left")
    for metric in SHOWN:
        table.add_row(metric.replace("_", " "), *(_cell(summary[name][metric]) for name in names))
        if metric == "strict_pass":
            kinds = summary["strict_pass_by_kind"]
            for kind in kinds["baseline"]:
                table.add_row(f"  of {kind}", *(_cell(kinds[name][kind]) for name in names))
    table.add_row("episodes completed", *(_cell(summary["completion"][MOMENTS[name]]) for name in names))
    if "recovery_cases" in summary:
        found = summary["recovery_cases"]
        table.add_row("recovered, GRPO then DAgger", "", _cell(found["grpo"]), _cell(found["dagger"]))
    return table


def _places(out: Path) -> Iterator[tuple[str, str]]:
    """What lies where, as far as this demo went."""
    for name, what in (
        ("report.html", "the report; open it in a browser"),
        ("report-rl.html", "the reinforced model beside the trained one"),
        ("summary.json", "the figures above, for machines"),
        ("gates/", "the sealed records of the gates"),
        ("golden/", "the frozen golden set"),
        ("train/model/", "the trained model; loads in transformers and vLLM"),
        ("dagger/model/", "the reinforced one"),
        ("traces.db", "the sessions that the gateway recorded"),
        ("gateway/", "its configuration, ledger and audit log"),
    ):
        if (out / name).exists():
            yield name, what


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
