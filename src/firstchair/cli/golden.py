"""``firstchair golden``: from recorded sessions to a frozen scoreboard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from firstchair.cli.session_options import (
    AsJson,
    BadLines,
    CreatedAt,
    Force,
    Labels,
    Limit,
    SkipBad,
    SourceKind,
    Split,
    UsedTool,
    created_at_or_now,
    selection_of,
)

if TYPE_CHECKING:
    from firstchair.data.corrections import Correction
    from firstchair.data.golden import TrainingData

app = typer.Typer(
    no_args_is_help=True,
    help="Build, correct, freeze, verify and show golden sets.\n\n"
    "A golden set is a directory of frozen sessions with the right action at every decision. The order of work: "
    "build a draft, correct it with reviewed corrections, freeze it under a verified catalog.",
)

IgnoreOthers = Annotated[
    bool,
    typer.Option(
        "--ignore-other-sessions", help="Pass over corrections of sessions that are not in the draft, and count them."
    ),
]
Directory = Annotated[Path, typer.Argument(metavar="SET", help="Directory of a golden set.")]


@app.command()
def build(
    source: Annotated[str, typer.Argument(help="Trace store (path or URL), export directory, or sessions.jsonl.")],
    out: Annotated[Path, typer.Option(help="Directory of the draft.")],
    name: Annotated[str, typer.Option(help="Name of the set; the directory's name unless given.")] = "",
    gold: Annotated[
        Literal["observed", "none"],
        typer.Option(help="observed: what was recorded is gold until corrected. none: only corrections give gold."),
    ] = "observed",
    verified: Annotated[
        bool, typer.Option("--verified", help="The chosen sessions are known to be right (reviewed, or reward 1).")
    ] = False,
    labels: Labels = None,
    source_kind: SourceKind = "",
    tool: UsedTool = "",
    split: Split = None,
    limit: Limit = None,
    dedup: Annotated[
        float | None, typer.Option(help="Leave out sessions at least this similar to an earlier one, e.g. 0.6.")
    ] = None,
    drop_invalid: Annotated[
        bool,
        typer.Option(
            "--drop-invalid",
            help="Leave out sessions with a call that its tool would refuse, or a cut or refused reply.",
        ),
    ] = False,
    corrections: Annotated[Path | None, typer.Option(help="Corrections to apply at once (JSONL).")] = None,
    ignore_other_sessions: IgnoreOthers = False,
    created_at: CreatedAt = "",
    skip_bad: SkipBad = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Build a draft from recorded sessions."""
    from firstchair.cli.golden_view import print_summary
    from firstchair.data.corrections import read_corrections
    from firstchair.data.golden import BuildOptions
    from firstchair.data.golden import build as build_draft
    from firstchair.data.sources import open_source

    bad = BadLines(skip_bad, force=force)
    rows = read_corrections(corrections, skip=bad.of(corrections)) if corrections else []
    selection = selection_of(labels, source_kind, tool, split, limit)
    options = BuildOptions(
        name=name or out.name,
        created_at=created_at_or_now(created_at),
        gold=gold,
        verified=verified,
        dedup=dedup,
        drop_invalid=drop_invalid,
        filters=selection.words(),
    )
    others: list[Correction] | None = [] if ignore_other_sessions else None
    with open_source(source, selection, skip=bad.of(Path(source))) as opened:
        golden = build_draft(
            opened.sessions(), opened.tools, out, options, corrections=rows, passed_over=others, force=force
        )
    bad.write()
    print_summary(golden, passed_over=others, as_json=as_json)


@app.command("correct")
def correct_command(
    draft: Annotated[Path, typer.Argument(help="Directory of the draft; it is changed in place, all or nothing.")],
    corrections: Annotated[
        Path, typer.Argument(help="JSONL of {dp_id, dimension, before, after, evidence, by, why}.")
    ],
    ignore_other_sessions: IgnoreOthers = False,
    skip_bad: SkipBad = 0,
    as_json: AsJson = False,
) -> None:
    """Apply reviewed corrections to a draft. Any that does not fit refuses them all."""
    from firstchair.cli.golden_view import print_summary
    from firstchair.core.errors import DataError
    from firstchair.data.corrections import read_corrections
    from firstchair.data.golden import correct

    others: list[Correction] | None = [] if ignore_other_sessions else None
    bad = BadLines(skip_bad)
    rows = read_corrections(corrections, skip=bad.of(corrections))
    if not rows:
        raise DataError("no correction in it, so nothing would be changed", path=str(corrections))
    golden = correct(draft, rows, passed_over=others)
    bad.write()
    print_summary(golden, passed_over=others, as_json=as_json)


@app.command("accept")
def accept_command(
    draft: Annotated[Path, typer.Argument(help="Directory of the draft; it is changed in place, all or nothing.")],
    alternatives: Annotated[Path, typer.Argument(help="JSONL of {dp_id, action or matchers, by, why}.")],
    as_json: AsJson = False,
) -> None:
    """Add alternatives that also count as right: another action, or looser matchers for gold's arguments."""
    from firstchair.cli.golden_view import print_summary
    from firstchair.core.errors import DataError
    from firstchair.data.alternatives import read_alternatives
    from firstchair.data.golden import accept

    rows = read_alternatives(alternatives)
    if not rows:
        raise DataError("no alternative in it, so nothing would be changed", path=str(alternatives))
    print_summary(accept(draft, rows), as_json=as_json)


@app.command()
def freeze(
    draft: Annotated[Path, typer.Argument(help="Directory of the draft.")],
    out: Annotated[Path, typer.Option(help="Directory of the frozen set; it must not exist.")],
    catalog: Annotated[Path, typer.Option(help="Verified catalog (YAML): tools, matchers, kinds.")],
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Training data that must not overlap: store, export or SFT file; may be given several times."
        ),
    ] = None,
    threshold: Annotated[float, typer.Option(help="Similarity from which sessions count as near-duplicates.")] = 0.6,
    created_at: CreatedAt = "",
    as_json: AsJson = False,
) -> None:
    """Freeze a draft. Refuses what would make scores lie, and checks that gold passes against itself."""
    from firstchair.catalog.catalog import load_catalog
    from firstchair.catalog.verdict import score
    from firstchair.cli.golden_view import print_summary, unverified_words
    from firstchair.data.golden import FreezeOptions
    from firstchair.data.golden import freeze as freeze_draft

    options = FreezeOptions(
        catalog=load_catalog(catalog),
        scorer=score,
        created_at=created_at_or_now(created_at),
        threshold=threshold,
        against=[_training_data(where) for where in against or []],
    )
    golden = freeze_draft(draft, out, options)
    print_summary(golden, as_json=as_json)
    if words := unverified_words(golden):
        typer.secho(f"warning: {words}", err=True, fg="yellow")


def _training_data(where: str) -> TrainingData:
    from firstchair.data.golden import TrainingData
    from firstchair.data.similarity import shingles
    from firstchair.data.sources import conversation_texts

    name = where if "://" in where else Path(where).name
    return TrainingData(name, [(key, shingles(text)) for key, text in conversation_texts(where)])


@app.command()
def verify(golden_set: Directory, as_json: AsJson = False) -> None:
    """Check a frozen set again from its bytes up. Exit code 2 when a byte changed, 1 when a check fails."""
    from firstchair.catalog.verdict import score
    from firstchair.cli.golden_view import print_checks
    from firstchair.data.golden import verify as verify_set

    golden, checks = verify_set(golden_set, score)
    print_checks(golden, checks, as_json=as_json)
    if any(check.problems for check in checks):
        raise typer.Exit(1)


@app.command()
def show(
    golden_set: Directory,
    what: Annotated[
        str, typer.Argument(metavar="[SESSION|DECISION]", help="A session id or a dp_id; a summary without it.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show what a set holds, one of its sessions, or one of its decisions. Drafts too."""
    from firstchair.cli.golden_view import print_decision, print_session, print_sessions, print_summary
    from firstchair.core.errors import ConfigError
    from firstchair.data.golden import GoldenSet

    golden = GoldenSet.load(golden_set, draft=True)
    by_id = {decision.dp_id: decision for decision in golden.decisions}
    if not what:
        if not as_json:
            print_sessions(golden)
        print_summary(golden, as_json=as_json)
    elif what in golden.sessions:
        print_session(golden, golden.sessions[what], as_json=as_json)
    elif what in by_id:
        print_decision(golden, by_id[what], as_json=as_json)
    else:
        import difflib

        near = difflib.get_close_matches(what, [*golden.sessions, *by_id], n=1)
        hint = f"did you mean {near[0]}?" if near else "without an id the sessions are listed"
        raise ConfigError(f"{golden_set} has no session or decision {what!r}; {hint}")
