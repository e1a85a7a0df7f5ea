"""Write the demo's results into the README, between its two markers.

    python docs/generate_results.py SUMMARY.json [SUMMARY.json …]

The first summary makes the table, the others say how far another seed moves the result. Every figure comes from what
``firstchair demo`` wrote; none is typed in.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firstchair.cli.demo_run import MOMENTS, TITLES
from firstchair.core.atomic import write_text
from firstchair.core.errors import DataError
from firstchair.core.jsontext import loads_bytes

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- demo:begin -->", "<!-- demo:end -->"

ROWS = {
    "strict_pass": "pass, strict",
    "lenient_pass": "pass, lenient",
    "tool_name": "tool name",
    "argument_quality": "argument quality, given the right tool",
    "recovery": "pass after a failed tool result",
    "stop_precision": "stop precision",
    "malformed": "malformed",
}
"""Metric of the summary → what the table calls it."""


def table(summary: dict[str, Any]) -> str:
    """The results as a Markdown table with 95% intervals."""
    names = [name for name in MOMENTS if name in summary]
    heads = " | ".join(TITLES[name] for name in names)
    lines = [f"| | {heads} | n |", "| --- |" + " --- |" * (len(names) + 1)]
    for metric, title in ROWS.items():
        lines.append(row(title, [summary[name][metric] for name in names]))
        if metric == "strict_pass":
            kinds = summary["strict_pass_by_kind"]
            lines += [row(f"… of {kind}", [kinds[name][kind] for name in names]) for kind in kinds["baseline"]]
    alive = summary["completion"]
    lines.append(row("tasks completed in the desk", [alive[MOMENTS[name]] for name in names]))
    options, seconds, golden = summary["options"], summary["seconds"], summary["golden_sha256"]
    epochs = f"{options['epochs']:g} epoch{'' if options['epochs'] == 1 else 's'}"
    size = f"{options['sessions']:,} training sessions, {epochs}, seed {options['seed']}"
    time = f"{seconds['total']:.0f} seconds in all, {seconds['train']:.0f} of them training"
    lines += ["", f"{size}, golden set `{golden[:12]}`. {time}."]
    if (cases := summary.get("recovery_cases")) is not None:
        lines.append(
            f"Put behind a mistake, the model completes {rate(cases['grpo'])} of {cases['grpo']['n']} tasks "
            f"after GRPO, and {rate(cases['dagger'])} after the DAgger round."
        )
    return "\n".join(lines)


def seeds(summaries: Sequence[dict[str, Any]]) -> str:
    """One line a run: other tasks, recordings, golden set and order of training. Nothing for a single run."""
    if len(summaries) < 2:
        return ""
    lines = [
        *("", "", "Every seed that was run draws other tasks, recordings and a golden set of its own:", ""),
        "| seed | pass, strict | malformed | tasks completed | the same when reinforced | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for summary in summaries:
        cells = [summary["sft"]["strict_pass"], summary["sft"]["malformed"], summary["completion"]["after"]]
        last = rate(summary["completion"]["rl"]) if "rl" in summary else "–"
        figures = " | ".join([*map(rate, cells), last])
        lines.append(f"| {summary['options']['seed']} | {figures} | {summary['seconds']['total']:.0f} |")
    return "\n".join(lines)


def row(title: str, found: Sequence[dict[str, Any]]) -> str:
    """One line; where the counts differ, all are given."""
    counts = [f"{one['n']:,}" for one in found]
    shown = counts[0] if len(set(counts)) == 1 else ", ".join(counts)
    return f"| {title} | {' | '.join(map(rate, found))} | {shown} |"


def rate(found: dict[str, Any]) -> str:
    """A rate with its interval, in per cent."""
    if found["value"] is None:
        return "–"
    return f"{100 * found['value']:.1f}% ({100 * found['low']:.1f} to {100 * found['high']:.1f})"


def filled(text: str, summaries: Sequence[dict[str, Any]]) -> str:
    """``text`` with the tables between its markers. Raises ``DataError`` when it has no markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DataError(f"no {BEGIN} … {END}", path=str(README))
    return f"{before}{BEGIN}\n\n{table(summaries[0])}{seeds(summaries)}\n\n{END}{after}"


if __name__ == "__main__":
    found = [loads_bytes(Path(path).read_bytes()) for path in sys.argv[1:]]
    write_text(README, filled(README.read_text(encoding="utf-8"), found), force=True)
