"""How the outcomes of ``firstchair data`` are printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from firstchair.cli.tables import Column, counted, number, print_json, print_list, table
from firstchair.data.audit import Audit
from firstchair.data.pairs import PairManifest
from firstchair.data.rl_prompts import PromptManifest
from firstchair.data.sft import SftCounts
from firstchair.data.similarity import Pair
from firstchair.data.splits import SplitManifest


def print_split(out: Path, manifest: SplitManifest, *, alone: int, as_json: bool) -> None:
    """The parts of a split. ``alone``: sessions that lack its label, each a group of its own."""
    if as_json:
        print_json({**msgspec.to_builtins(manifest), "without_label": alone, "path": str(out)})
        return
    made = table("part", "#sessions", "#groups", f"by {manifest.stratify}" if manifest.stratify else "strata")
    for part, counts in manifest.counts.items():
        strata = ", ".join(f"{name}: {count:,}" for name, count in counts["strata"].items())
        made.add_row(Text(part), f"{counts['sessions']:,}", f"{counts['groups']:,}", Text(strata))
    Console().print(made)
    if alone:
        verb = "lacks" if alone == 1 else "lack"
        typer.echo(f"{counted(alone, 'session')} {verb} the label {manifest.by}; each such is a group of its own")
    typer.echo(f"{out}: use a part as --split {out}/{next(iter(manifest.counts))}")


def print_pairs(found: Audit, *, show: int, wide: bool, as_json: bool) -> None:
    """The pairs that an audit found."""
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    what = f"{found.left:,} × {found.right:,}" if found.right else f"{found.left:,}"
    if found.pairs:
        columns = [
            Column("left", "middle", least=20),
            Column("right", "middle", least=20),
            number("similarity"),
            Column("both hold", "end", least=20),
        ]
        pairs = sorted(found.pairs, key=lambda pair: -pair.similarity)[:show]
        rows = [(pair.left, pair.right, f"{pair.similarity:.3f}", pair.shared_text) for pair in pairs]
        print_list(columns, rows, wide=wide)
        if len(found.pairs) > show:
            left = len(found.pairs) - show
            typer.echo(f"… and {left:,} more pairs; --show N prints more, --wide cuts nothing, --json has all")
    kind = "leaking pairs" if found.right else "near-duplicate pairs"
    typer.echo(f"{what} conversations compared at similarity {found.threshold}: {len(found.pairs):,} {kind}")


def print_sft(out: Path, counts: SftCounts, left_out: list[str], avoided: list[Pair], *, as_json: bool) -> None:
    """What was written, and what was not."""
    if as_json:
        rows = [msgspec.to_builtins(pair) for pair in avoided]
        print_json({**msgspec.to_builtins(counts), "left_out": left_out, "avoided": rows, "path": str(out)})
        return
    typer.echo(
        f"{out}: {counts.records:,} records ({counts.branches:,} branches), {counts.trained_spans:,} of "
        f"{counts.assistant_spans:,} assistant messages trained, {counts.tool_calls:,} tool calls"
    )
    if left_out:
        named = ", ".join(left_out[:5]) + (" …" if len(left_out) > 5 else "")
        typer.echo(f"left out, nothing to train in them: {len(left_out):,} ({named})")
    if avoided:
        first = f"{avoided[0].right} resembles {avoided[0].left}, {avoided[0].similarity:.2f}"
        typer.echo(f"left out, too like a golden session: {len(avoided):,} (e.g. {first})")


def print_prompts(out: Path, manifest: PromptManifest, *, as_json: bool) -> None:
    """How many prompts were written, for which routes, and which decisions gave none."""
    if as_json:
        print_json({"path": str(out), **msgspec.to_builtins(manifest)})
        return
    typer.echo(f"{out}: {manifest.prompts:,} prompts, sha256 {manifest.sha256[:12]}…")
    _print_routes("#prompts", manifest.per_route, manifest.left_out)


def print_preferences(manifests: Mapping[Path, PairManifest], *, as_json: bool) -> None:
    """How many pairs each file got, from where, and what gave none."""
    if as_json:
        print_json([{"path": str(path), **msgspec.to_builtins(manifest)} for path, manifest in manifests.items()])
        return
    for path, manifest in manifests.items():
        sources = ", ".join(f"{source} {count:,}" for source, count in manifest.per_source.items())
        typer.echo(f"{path}: {manifest.pairs:,} pairs ({sources}), sha256 {manifest.sha256[:12]}…")
    routes: Counter[str] = Counter()
    for manifest in manifests.values():
        routes.update(manifest.per_route)
    # What was left out is said of all files together.
    _print_routes("#pairs", routes, next(iter(manifests.values())).left_out)


def _print_routes(column: str, per_route: Mapping[str, int], left_out: Mapping[str, int]) -> None:
    made = table("route", column)
    for route, count in per_route.items():
        made.add_row(Text(route), f"{count:,}")
    Console().print(made)
    for reason, count in left_out.items():
        typer.echo(f"left out, {reason}: {count:,}")


def print_written(out: Path, count: int, what: str, *, as_json: bool) -> None:
    """How many records a file got."""
    if as_json:
        print_json({"path": str(out), what: count})
    else:
        typer.echo(f"{out}: {count:,} {what}")
