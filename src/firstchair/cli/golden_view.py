"""How a golden set is printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from firstchair.chat.messages import Message
from firstchair.cli.tables import Column, counted, number, print_json, print_list, table
from firstchair.cli.traces_view import call_text
from firstchair.data.corrections import Correction, Dimension, brief
from firstchair.data.exports import decision_row
from firstchair.data.golden import Checked, GoldenSet
from firstchair.data.golden.record import to_row
from firstchair.traces.decisions import DecisionPoint
from firstchair.traces.session import Session


def print_summary(golden: GoldenSet, *, passed_over: Sequence[Correction] | None = None, as_json: bool) -> None:
    """What the set is and holds. ``passed_over``: corrections of other sessions that were not applied to it."""
    manifest = golden.manifest
    if as_json:
        body = {**msgspec.to_builtins(manifest), "path": str(golden.path), "session_ids": list(golden.sessions)}
        print_json(body if passed_over is None else {**body, "passed_over": [row.dp_id for row in passed_over]})
        return
    console = Console()
    facts = {
        "name": golden.name,
        "status": manifest.status,
        "created": manifest.created_at,
        "hash": golden.set_sha256[:12],
        "path": str(golden.path),
        "gold": _gold_words(golden),
        "catalog": f"{manifest.catalog['name']} (verified)" if manifest.catalog else "none yet",
        "sessions": f"{manifest.counts.sessions:,}",
        "turns": f"{manifest.counts.turns:,}",
        "decisions": f"{manifest.counts.decision_points:,}",
        "from": ", ".join(f"{name} {count:,}" for name, count in manifest.counts.per_provenance.items()),
        "review": _review_words(golden),
        "alternatives": str(len(manifest.alternatives) or "none"),
        "duplicates": _dedup_words(manifest.dedup),
        "leakage": _leakage_words(manifest.leakage),
    }
    _print_pairs(console, facts.items())
    actions = table("gold action", "#decisions", "kind")
    for name, count in manifest.counts.per_tool.items():
        actions.add_row(Text(name), f"{count:,}", golden.kinds.get(name, ""))
    console.print(actions)
    if passed_over is not None:
        sessions = len({row.session_id for row in passed_over})
        console.print(
            Text(f"Passed over: {len(passed_over):,} corrections of {sessions:,} sessions outside the draft.")
        )
    if manifest.status == "draft":
        console.print(Text("A draft: correct it (golden correct), then freeze it (golden freeze)."))


def _gold_words(golden: GoldenSet) -> str:
    policy = golden.manifest.gold_policy
    verified = sum(decision.verified for decision in golden.decisions)
    words = [f"{policy.get('gold', '?')}, {verified:,} of {len(golden.decisions):,} verified"]
    words += policy.get("filters", [])
    words += [f"{count:,} {name}, without gold" for name, count in policy.get("without_gold", {}).items()]
    dropped = policy.get("dropped_invalid", [])
    return "; ".join([*words, *([f"{len(dropped)} sessions with invalid actions left out"] if dropped else [])])


def print_sessions(golden: GoldenSet) -> None:
    """The sessions of a set, one a line."""
    rows = [
        [session.session_id, f"{len(session.turns):,}", f"{len(points):,}", f"{sum(p.verified for p in points):,}"]
        for session, points in golden.by_session()
    ]
    print_list([Column("session", "middle"), number("turns"), number("decisions"), number("verified")], rows)


def unverified_words(golden: GoldenSet) -> str:
    """What it means for scores that decisions are not verified; empty when all are."""
    count, total = sum(not decision.verified for decision in golden.decisions), len(golden.decisions)
    if not count:
        return ""
    return f"{count:,} of {total:,} decisions are not verified; a mismatch with them will be undecided"


def _review_words(golden: GoldenSet) -> str:
    rows = golden.manifest.corrections
    counts = Counter(row.dimension.value for row in rows if row.dimension is not Dimension.CONFIRMED)
    if not rows:
        return "no decision reviewed"
    decisions = len({row.dp_id for row in rows})
    detail = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    return (
        f"{counted(decisions, 'reviewed decision')}: "
        f"{counts.total():,} corrected{f' ({detail})' if detail else ''}, {len(rows) - counts.total():,} confirmed"
    )


def _dedup_words(dedup: dict[str, Any]) -> str:
    if not dedup:
        return "not looked for yet"
    return f"{len(dedup.get('dropped', []))} left out at similarity {dedup['threshold']}"


def _leakage_words(leakage: dict[str, Any]) -> str:
    if not leakage:
        return "not compared with training data"
    return "none against " + ", ".join(f"{row['name']} ({row['sessions']:,})" for row in leakage["against"])


def print_checks(golden: GoldenSet, checks: Sequence[Checked], *, as_json: bool) -> None:
    """The outcome of ``verify``."""
    if as_json:
        print_json(
            {
                "name": golden.name,
                "set_sha256": golden.set_sha256,
                "ok": not any(check.problems for check in checks),
                "checks": msgspec.to_builtins(checks),
            }
        )
        return
    made = table("check", "outcome", title=f"{golden.name} {golden.set_sha256[:12]}")
    made.add_row("checksums", "ok")
    for check in checks:
        shown = [*check.problems[:5], *([f"… and {len(check.problems) - 5} more"] if len(check.problems) > 5 else [])]
        made.add_row(check.name, Text("\n".join(shown) or "ok"))
    Console().print(made)


def print_session(golden: GoldenSet, session: Session, *, as_json: bool) -> None:
    """One session from top to bottom, each decision under its message."""
    decisions = [decision for decision in golden.decisions if decision.session_id == session.session_id]
    if as_json:
        print_json(to_row(session, tuple(decisions)))
        return
    console = Console()
    labels = " ".join(f"{name}={value}" for name, value in session.labels.items())
    console.print(Text(f"{session.session_id}  {session.source}  {labels}", style="bold"))
    at = {decision.context_end: decision for decision in decisions}
    for index, message in enumerate(session.messages):
        _print_message(console, index, message)
        if index in at:
            console.print(Text(f"     ▸ {at[index].dp_id}  {_gold_line(at[index])}", style="green"))


def _gold_line(decision: DecisionPoint) -> str:
    if decision.gold is None:
        return "no gold"
    if decision.gold == decision.observed:
        return "gold: as observed" + (" (verified)" if decision.verified else "")
    return f"gold: {brief(decision.gold)}"


def print_decision(golden: GoldenSet, decision: DecisionPoint, *, as_json: bool) -> None:
    """One decision: the end of its context, what was done, what is right, and why."""
    session = golden.sessions[decision.session_id]
    corrections = [row for row in golden.manifest.corrections if row.dp_id == decision.dp_id]
    if as_json:
        row = decision_row(session, decision, golden.tools(decision.session_id))
        print_json({**row, "corrections": msgspec.to_builtins(corrections)})
        return
    console = Console()
    start = max(0, decision.context_end - 6)
    if start:
        console.print(Text(f"… {start} messages before", style="dim"))
    for index in range(start, decision.context_end):
        _print_message(console, index, session.messages[index])
    rows = [("decision", f"{decision.dp_id}  {_turn_words(decision.turn)}, {' '.join(decision.tags) or 'no tags'}")]
    rows.append(("observed", brief(decision.observed, 400)))
    rows.append(("gold", "none" if decision.gold is None else brief(decision.gold, 400)))
    rows += [("known bad", brief(bad, 400)) for bad in decision.known_bad]
    rows += [("also right", brief(option.action, 400) if option.action else str(option.matchers))
             for option in decision.accept]  # fmt: skip
    rows += [("reviewed", f"{row.dimension.value}, by {row.by}: {row.why} (message {row.evidence})")
             for row in corrections]  # fmt: skip
    _print_pairs(console, rows)


def _turn_words(turn: int) -> str:
    return f"turn {turn + 1}" if turn >= 0 else "before the first turn"


def _print_message(console: Console, index: int, message: Message) -> None:
    style = {"user": "cyan", "tool": "dim", "system": "dim"}.get(message.role, "")
    lines = [message.text] if message.text else []
    lines += [call_text(call) for call in message.tool_calls]
    text = "\n     ".join("\n".join(lines).split("\n"))
    mark = " ERROR" if message.is_error else ""
    cut = text if len(text) <= 1200 else text[:1200] + f" … ({len(text):,} characters)"
    console.print(Text(f"{index:>4} {message.role}{mark}: {cut}", style=style))


def _print_pairs(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    made = table("", "", header=False)
    for name, value in rows:
        # Text, not markup: brackets in recorded text are not styles.
        made.add_row(name, Text(value))
    console.print(made)
