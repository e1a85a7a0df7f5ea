"""What people read of a record, whatever file it comes from.

groups     every trajectory, with the gate's findings and what is kept: raw, as the policy saw it
sessions   recorded or evaluated episodes (``labels.completed``)
records    SFT records, with what is trained

All become the same ``View``, so that one page, one transcript and one JSON file show training data and graded samples
alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from firstchair.chat.messages import ImagePart, Message, RawPart, Tool
from firstchair.core.errors import DataError
from firstchair.core.jsonl import read_jsonl
from firstchair.data.orchestration.groups import Group, read_groups
from firstchair.data.orchestration.selection import judge_group
from firstchair.data.orchestration.serialize import record_id, record_meta
from firstchair.data.sft import SftRecord, read_sft
from firstchair.rollout.orchestration.final_answer import marked_answer
from firstchair.rollout.orchestration.trajectory import TrajectoryEnd
from firstchair.traces.session import Session
from firstchair.traces.session_file import read_sessions


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message."""

    role: str
    name: str = ""
    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Name, and the arguments as they were written."""
    failed: bool = False
    trained: bool | None = None
    """``None``: nothing is known about training."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One record as people see it. ``None`` is unknown, never no."""

    id: str
    task: str = ""
    domain: str = ""
    difficulty: str = ""
    dataset: str = ""
    correct: bool | None = None
    broken: bool = False
    """The machinery failed, so nothing is known."""
    clean: bool | None = None
    kept: bool | None = None
    reasons: tuple[tuple[str, str], ...] = ()
    """Why it is not clean, and what was found."""
    experts: tuple[str, ...] = ()
    """Models that were asked, by their names in the catalog."""
    cost_usd: float | None = None
    problem: str = ""
    answer: str = ""
    gold: str = ""
    names: dict[str, str] = {}
    """Label that the policy saw → name in the catalog."""
    facts: dict[str, str] = {}
    uses: tuple[tuple[str, ...], ...] = ()
    """Of each tool and expert, in words: the columns of ``USES``."""
    messages: tuple[Said, ...] = ()
    tools: tuple[Tool, ...] = ()


USES = ("name", "kind", "calls", "failed", "cost", "tokens in", "tokens out", "seconds")


def views_of(path: Path) -> Callable[[], Iterator[View]]:
    """The records of a file: call it as often as they are needed. What a file holds is told by its first line.

    Raises ``DataError`` for a file without a record, and, while they are read, for a bad line.
    """
    if path.is_dir():
        return lambda: map(session_view, read_sessions(path))
    first = next((row for _, row in read_jsonl(path)), None)
    if first is None:
        raise DataError("no record in it", path=str(path))
    if "trajectories" in first:
        return lambda: (view for group in read_groups(path) for view in group_views(group))
    if "session_id" in first:
        return lambda: map(session_view, read_sessions(path))
    return lambda: map(record_view, read_sft(path))


def group_views(group: Group) -> Iterator[View]:
    """Every trajectory of a group."""
    for judged in judge_group(group):
        trajectory = judged.trajectory
        view = _of_meta(record_meta(group.task, judged))
        facts = {
            **view.facts,
            "graded by": ": ".join(filter(None, (trajectory.graded_by, trajectory.grade_detail))),
            "error": trajectory.error or "",
            "trace": trajectory.trace_id,
        }
        yield msgspec.structs.replace(
            view,
            id=record_id(trajectory),
            reasons=tuple((str(finding.reason), finding.found) for finding in judged.findings),
            problem=group.task.problem,
            answer=trajectory.final_answer,
            facts={name: text for name, text in facts.items() if text},
            messages=tuple(_said(message) for message in trajectory.messages),
            tools=trajectory.tools,
        )


def record_view(record: SftRecord) -> View:
    """A training record; what its ``meta`` does not say is unknown."""
    view = _of_meta(record.meta)
    opening = next((message.text for message in record.messages if message.role == "user"), "")
    last = next((message.text for message in reversed(record.messages) if message.role == "assistant"), "")
    return msgspec.structs.replace(
        view,
        id=record.id,
        problem=opening.removeprefix("Problem: "),
        answer=marked_answer(last) or last,
        messages=tuple(
            _said(message, trained if message.role == "assistant" else None)
            for message, trained in zip(record.messages, record.loss, strict=True)
        ),
        tools=record.tools,
    )


def session_view(session: Session) -> View:
    """A recorded episode. Of a benchmark's sample the labels tell what was graded, and against what."""
    labels = dict(session.labels)
    gold, graded = labels.pop("gold", None), labels.pop("graded answer", None)
    costs = [call.cost_usd for call in session.calls]
    completed = labels.get("completed")
    facts = {"source": session.source, "recorded": session.created_at}
    facts |= {name: str(value) for name, value in labels.items()}
    replies = [message.text for message in session.messages if message.role == "assistant" and message.text]
    return View(
        id=session.session_id,
        task=str(labels.get("task_id", "")),
        domain=str(labels.get("domain", labels.get("category", ""))),
        correct=completed if isinstance(completed, bool) else None,
        broken=completed is None and bool(labels.get("error")),
        cost_usd=None if not costs or None in costs else sum(cost for cost in costs if cost is not None),
        problem=next((message.text for message in session.messages if message.role == "user"), ""),
        answer=str(graded) if graded is not None else replies[-1] if replies else "",
        gold="" if gold is None else str(gold),
        facts={name: text for name, text in facts.items() if text},
        messages=tuple(_said(message) for message in session.messages),
    )


def _of_meta(meta: Mapping[str, Any]) -> View:
    """What the ``meta`` of a record says; nothing of a record that was not made from a trajectory."""
    if not isinstance(meta.get("metrics"), dict):
        return View(id="", domain=str(meta.get("category", "")), facts=_texts(meta))
    metrics = meta["metrics"]
    tools: dict[str, dict[str, Any]] = metrics.get("tools") or {}
    nudges: dict[str, int] = metrics.get("nudges") or {}
    facts = {
        "policy": meta.get("gen_model"),
        "end": f"{meta.get('end')}, answer salvaged" if meta.get("salvaged") else meta.get("end"),
        "cost": money(metrics.get("cost_usd")),
        "reward": "" if meta.get("reward") is None else f"{meta['reward']:.6f}",
        "latency": f"{metrics.get('latency_s') or 0:,.1f} s",
        "policy's tokens": f"{metrics.get('prompt_tokens') or 0:,} in, {metrics.get('completion_tokens') or 0:,} out",
        "steps": metrics.get("steps"),
        "parse failures": metrics.get("parse_failures"),
        "nudges": ", ".join(f"{kind}: {count}" for kind, count in nudges.items()),
        "graded by": meta.get("graded_by"),
        "area": meta.get("area"),
    }
    return View(
        id="",
        task=str(meta.get("task_id", "")),
        domain=str(meta.get("domain", "")),
        difficulty=str(meta.get("difficulty", "")),
        dataset=str(meta.get("dataset", "")),
        correct=meta.get("correct"),
        broken=meta.get("correct") is None and meta.get("end") == TrajectoryEnd.FAILED,
        clean=meta.get("clean"),
        kept=meta.get("kept"),
        reasons=tuple((str(reason), "") for reason in meta.get("unclean") or ()),
        experts=tuple(sorted(name for name, use in tools.items() if use.get("kind") == "model")),
        cost_usd=metrics.get("cost_usd"),
        gold=str(meta.get("gold_answer") or ""),
        names={str(label): str(name) for label, name in (meta.get("anonymised") or {}).items()},
        facts=_texts(facts),
        uses=tuple(_use(name, use) for name, use in tools.items()),
    )


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in facts.items() if value not in (None, "", (), [], {})}


def _use(name: str, use: Mapping[str, Any]) -> tuple[str, ...]:
    cost = money(use.get("cost_usd")) if use.get("kind") == "model" or use.get("cost_usd") else ""
    counts = (f"{use.get(field) or 0:,}" for field in ("calls", "failed"))
    tokens = (f"{use.get(field) or 0:,}" for field in ("input_tokens", "output_tokens"))
    return (name, str(use.get("kind", "")), *counts, cost, *tokens, f"{use.get('latency_s') or 0:,.1f}")


def money(usd: float | None) -> str:
    """``$0.00123``: three digits, or four decimals from a cent on; ``unknown`` for no known price."""
    if usd is None:
        return "unknown"
    return f"${usd:,.{4 if usd >= 0.01 else 2 - math.floor(math.log10(usd))}f}" if usd > 0 else "$0"


def _said(message: Message, trained: bool | None = None) -> Said:
    others = [part for part in message.content if isinstance(part, ImagePart | RawPart)]
    return Said(
        role=message.role,
        name=message.name or "",
        text=message.text
        + "".join(f"[{'image' if isinstance(part, ImagePart) else 'other part'}]" for part in others),
        thinking=message.thinking,
        calls=tuple((call.name, call.arguments) for call in message.tool_calls),
        failed=message.is_error,
        trained=trained,
    )
