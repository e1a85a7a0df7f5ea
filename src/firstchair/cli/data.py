"""``firstchair data``: splits, audits and training records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from firstchair.cli.session_options import (
    AsJson,
    BadLines,
    Force,
    Labels,
    Limit,
    SkipBad,
    SourceKind,
    Split,
    UsedTool,
    Wide,
    parse_pairs,
    selection_of,
)
from firstchair.core.errors import ConfigError

if TYPE_CHECKING:
    from firstchair.data.similarity import Pair
    from firstchair.traces.session import Session

app = typer.Typer(no_args_is_help=True, help="SFT records, splits, near-duplicate and leakage audits.")

Source = Annotated[str, typer.Argument(help="Trace store (path or URL), export directory, or sessions.jsonl.")]
EMPTY = "in it; check the source and the filters"
"""What is said of a source that gives no row."""

OutFile = Annotated[Path, typer.Option("--out", help="JSONL file to write.")]


@app.command("split")
def split_command(
    source: Source,
    out: Annotated[Path, typer.Option(help="Directory to write; it must not exist.")],
    by: Annotated[
        str, typer.Option(help="Label whose equal values stay together, e.g. task_id; each session alone when empty.")
    ] = "task_id",
    stratify: Annotated[str, typer.Option(help="Label whose mix each part keeps, e.g. reward.")] = "",
    fractions: Annotated[
        list[str] | None, typer.Option("--part", metavar="NAME=FRACTION", help="A part; give at least two.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal splits.")] = 0,
    labels: Labels = None,
    source_kind: SourceKind = "",
    tool: UsedTool = "",
    as_json: AsJson = False,
) -> None:
    """Split sessions into parts that never share a task (train=0.8 heldout=0.2 unless given)."""
    from firstchair.cli.data_view import print_split
    from firstchair.data.sources import open_source
    from firstchair.data.splits import Member, count_alone, member_of, parse_fractions, split, write_split

    shares = parse_fractions(parse_pairs(fractions or ["train=0.8", "heldout=0.2"], "--part"))
    selection = selection_of(labels, source_kind, tool)
    members: list[Member] = []
    known: set[str] = set()
    with open_source(source, selection) as opened:
        for session in opened.sessions():
            members.append(member_of(session, by, stratify))
            known.update(session.labels)
    alone = count_alone(members, by, stratify, known)
    parts = split(members, shares, seed)
    manifest = write_split(out, parts, by=by, stratify=stratify, seed=seed, fractions=shares)
    print_split(out, manifest, alone=alone, as_json=as_json)


@app.command()
def audit(
    left: Annotated[str, typer.Argument(help="Store, export, golden set or SFT file; the larger one.")],
    right: Annotated[
        str,
        typer.Argument(help="What must not overlap with it, a golden set say. Without it: duplicates inside LEFT."),
    ] = "",
    threshold: Annotated[float, typer.Option(help="Jaccard similarity of word runs from which a pair counts.")] = 0.6,
    show: Annotated[int, typer.Option(min=0, help="Pairs to print.")] = 20,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Find near-duplicates in a set, or leakage between two. Exit code 1 when there is any."""
    from firstchair.cli.data_view import print_pairs
    from firstchair.data.audit import audit_sources

    found = audit_sources(left, right, threshold)
    print_pairs(found, show=show, wide=wide, as_json=as_json)
    if found.pairs:
        raise typer.Exit(1)


@app.command()
def sft(
    source: Source,
    out: OutFile,
    loss: Annotated[
        Literal["all", "verified"],
        typer.Option(
            help="all: every assistant message but corrected, malformed and cut ones. verified: confirmed ones only."
        ),
    ] = "all",
    corrections: Annotated[
        Path | None, typer.Option(help="Reviewed corrections (JSONL): the mistakes leave the loss, not the context.")
    ] = None,
    avoid: Annotated[
        str, typer.Option(metavar="SET", help="Leave out sessions that resemble one of this golden set or draft.")
    ] = "",
    threshold: Annotated[float, typer.Option(help="Similarity from which --avoid leaves a session out.")] = 0.6,
    branches: Annotated[
        bool, typer.Option("--branches", help="One more record per correction that ends in the right action.")
    ] = False,
    openai: Annotated[
        bool, typer.Option("--openai", help="Write OpenAI messages and tools, for other trainers.")
    ] = False,
    labels: Labels = None,
    source_kind: SourceKind = "",
    tool: UsedTool = "",
    split: Split = None,
    limit: Limit = None,
    category: Annotated[str, typer.Option(help="Written into each record's meta.")] = "",
    tier: Annotated[str, typer.Option(help="Written into each record's meta.")] = "",
    wave: Annotated[str, typer.Option(help="Written into each record's meta.")] = "",
    skip_bad: SkipBad = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write SFT records: one session a line, and which of its messages are trained."""
    from firstchair.cli.data_view import print_sft
    from firstchair.data.corrections import read_corrections
    from firstchair.data.sft import SftOptions, sft_records, write_sft
    from firstchair.data.sources import open_source

    bad = BadLines(skip_bad, force=force)
    rows = read_corrections(corrections, skip=bad.of(corrections)) if corrections else []
    selection = selection_of(labels, source_kind, tool, split, limit)
    options = SftOptions(loss=loss, branches=branches, category=category, tier=tier, wave=wave)
    left_out: list[str] = []
    avoided: list[Pair] = []
    with open_source(source, selection, training=True, skip=bad.of(Path(source))) as opened:
        sessions = _avoiding(opened.sessions(), avoid, threshold, avoided) if avoid else opened.sessions()
        records = sft_records(sessions, opened.tools, options, corrections=rows, left_out=left_out)
        fix = "check the filters, the corrections and --loss"
        counts = write_sft(out, records, openai=openai, force=force, if_none=fix)
    bad.write()
    print_sft(out, counts, left_out, avoided, as_json=as_json)


def _avoiding(sessions: Iterator[Session], where: str, threshold: float, avoided: list[Pair]) -> Iterator[Session]:
    from firstchair.data.near_duplicates import Avoid
    from firstchair.data.similarity import shingles
    from firstchair.data.sources import conversation_texts

    golden = Avoid(((key, shingles(text)) for key, text in conversation_texts(where)), threshold)
    for session in sessions:
        pair = golden.match(session)
        if pair is None:
            yield session
        else:
            avoided.append(pair)


@app.command()
def decisions(
    source: Annotated[str, typer.Argument(help="Trace store, export, or golden set (then with gold).")],
    out: OutFile,
    context: Annotated[
        bool, typer.Option("--context/--no-context", help="Write what the model saw into each record.")
    ] = True,
    labels: Labels = None,
    source_kind: SourceKind = "",
    tool: UsedTool = "",
    split: Split = None,
    limit: Limit = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write every decision as a record: context, tools, observed action, gold where there is one."""
    from firstchair.cli.data_view import print_written
    from firstchair.core.jsonl import write_jsonl
    from firstchair.data.exports import decision_row
    from firstchair.data.sources import open_source, some

    selection = selection_of(labels, source_kind, tool, split, limit)
    with open_source(source, selection) as opened:

        def rows() -> Iterator[dict[str, Any]]:
            for session in opened.sessions():
                offered = opened.tools(session.catalog_id)
                for decision in opened.decisions(session):
                    yield decision_row(session, decision, offered, with_context=context)

        count = write_jsonl(out, some(rows(), f"no decision {EMPTY}", source), force=force)
    print_written(out, count, "decisions", as_json=as_json)


@app.command("rl-prompts")
def rl_prompts_command(
    source: Annotated[str, typer.Argument(help="Trace store, export, draft golden set, or file of SFT records.")],
    out: OutFile,
    catalog: Annotated[
        Path | None, typer.Option(help="Catalog (YAML) whose matchers say how arguments are compared with gold's.")
    ] = None,
    labels: Labels = None,
    source_kind: SourceKind = "",
    tool: UsedTool = "",
    split: Split = None,
    limit: Limit = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write prompts for reinforcement learning: each stops at a decision; gold is for the verifier alone."""
    from collections import Counter

    from firstchair.catalog.catalog import load_catalog
    from firstchair.cli.data_view import print_prompts
    from firstchair.data.rl_prompts import session_prompts, sft_prompts, write_prompts
    from firstchair.data.sft import read_sft
    from firstchair.data.sources import Selection, holds_sft, open_source

    matchers = load_catalog(catalog).matchers() if catalog else {}
    selection = selection_of(labels, source_kind, tool, split, limit)
    left_out: Counter[str] = Counter()
    if holds_sft(source):
        if selection != Selection():
            raise ConfigError(f"{source} is a file of SFT records; filters are for sessions: use them in `data sft`")
        made = (row for record in read_sft(Path(source)) for row in sft_prompts(record, matchers, left_out))
        manifest = write_prompts(out, made, source=source, left_out=left_out, force=force)
    else:
        with open_source(source, selection, training=True) as opened:
            made = (
                row
                for session in opened.sessions()
                for row in session_prompts(
                    session, opened.decisions(session), opened.tools(session.catalog_id), matchers, left_out
                )
            )
            manifest = write_prompts(out, made, source=source, left_out=left_out, force=force)
    print_prompts(out, manifest, as_json=as_json)


@app.command("pairs")
def pairs_command(
    out: OutFile,
    corrected: Annotated[
        str, typer.Option(metavar="SOURCE", help="Trace store, export or draft golden set: corrected mistakes.")
    ] = "",
    corrections: Annotated[
        Path | None, typer.Option(help="Reviewed corrections (JSONL) of the sessions in --corrected.")
    ] = None,
    split: Split = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE", help="Rollouts labelled group and reward, e.g. the folder of a GRPO run."),
    ] = None,
    contrast: Annotated[
        list[Path] | None, typer.Option(help="SFT records (JSONL) that come in twos by meta.contrast.")
    ] = None,
    margin: Annotated[
        float, typer.Option(min=0, help="Least lead in reward of the best rollout of a group over the worst.")
    ] = 0.0,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many pairs, drawn.")] = None,
    dev: Annotated[
        Path | None, typer.Option(help="JSONL file for held-out pairs: no session and no task is in both files.")
    ] = None,
    dev_fraction: Annotated[float, typer.Option(help="Part of the pairs that --dev gets.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn and what is held out.")] = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write preference pairs: a better and a worse action at one decision. Give at least one kind of source.

    --split says which sessions of --corrected are meant.
    """
    from firstchair.cli.data_view import print_preferences
    from firstchair.data.pair_building import PairInputs, build_pairs, hold_out
    from firstchair.data.pairs import write_pairs

    inputs = PairInputs(
        corrected=corrected,
        corrections=corrections,
        selection=selection_of(None, split=split),
        groups=tuple(groups or ()),
        contrast=tuple(contrast or ()),
    )
    pairs, left_out = build_pairs(inputs, margin=margin, limit=limit, seed=seed)
    files = {out: pairs}
    if dev is not None:
        files[out], files[dev] = hold_out(pairs, fraction=dev_fraction, seed=seed)
    settings = {"margin": margin, "limit": limit, "seed": seed, "dev_fraction": dev_fraction if dev else 0.0}
    manifests = {
        path: write_pairs(path, own, made_from=inputs.words(), left_out=left_out, settings=settings, force=force)
        for path, own in files.items()
    }
    print_preferences(manifests, as_json=as_json)
