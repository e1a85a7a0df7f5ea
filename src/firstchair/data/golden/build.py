"""From recorded sessions to a draft, and the reviewed corrections of a draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from firstchair.chat.messages import Tool
from firstchair.core.atomic import refuse_existing
from firstchair.core.errors import DataError
from firstchair.data.alternatives import Alternative, apply_alternatives
from firstchair.data.corrections import Correction, apply_corrections
from firstchair.data.golden.checks import point_problem
from firstchair.data.golden.golden_set import CatalogRow, GoldenSet
from firstchair.data.golden.manifest import Manifest
from firstchair.data.golden.write import alone, write_set
from firstchair.traces.decisions import DecisionPoint, decision_points
from firstchair.traces.session import Session, catalog_id_of, turns_of

GoldPolicy = Literal["observed", "none"]


@dataclass(frozen=True)
class BuildOptions:
    """How a draft is made."""

    name: str
    created_at: str
    """ISO 8601, UTC; given, not taken from the clock, so that equal input gives equal bytes."""
    gold: GoldPolicy = "observed"
    """``observed``: the recorded action is gold until a correction says otherwise; one that was cut or refused is
    not, and is counted in the manifest. ``none``: a decision has no gold until a correction
    (``confirmed`` among them) gives it one."""
    verified: bool = False
    """Whether the sessions are known to be right (a reviewer read them, or code checked their outcome)."""
    dedup: float | None = None
    """Leave out sessions this similar to one before them (Jaccard), e.g. 0.6; ``None`` leaves none out."""
    drop_invalid: bool = False
    """Leave out sessions with an action that cannot be gold: a call that is malformed, of an unknown tool or against
    the tool's schema, a reply that was cut or refused."""
    filters: tuple[str, ...] = ()
    """How the sessions were chosen, in words, for the manifest."""


def build(
    sessions: Iterable[Session],
    tools: Callable[[str], tuple[Tool, ...]],
    out: Path,
    options: BuildOptions,
    *,
    corrections: Sequence[Correction] = (),
    passed_over: list[Correction] | None = None,
    force: bool = False,
) -> GoldenSet:
    """Write the draft of a golden set to the directory ``out``, with ``corrections`` applied as ``correct`` does.

    ``tools`` gives the tools of a catalog id. Sessions without an assistant message are refused, as are two with one
    id. Raises ``DataError`` naming the session or the correction; nothing is written then.
    """
    refuse_existing(out, force=force)
    chosen, policy, dedup = _choose(sessions, tools, options)
    catalogs: dict[str, CatalogRow] = {}
    kept_sessions: dict[str, Session] = {}
    decisions: list[DecisionPoint] = []
    for session in chosen:
        if session.catalog_id and session.catalog_id not in catalogs:
            catalogs[session.catalog_id] = _catalog_row(session, tools)
        kept_sessions[session.session_id] = msgspec.structs.replace(
            session, turns=session.turns or turns_of(session.messages)
        )
        for point in decision_points(session):
            gold = point.observed if options.gold == "observed" and point.ending is None else None
            decisions.append(
                msgspec.structs.replace(point, gold=gold, verified=options.verified and gold is not None)
            )
    endings = Counter(point.ending for point in decisions if point.ending)
    if endings:
        policy["without_gold"] = dict(sorted(endings.items()))
    manifest = Manifest(
        name=options.name,
        created_at=options.created_at,
        gold_policy=policy,
        dedup=dedup,
    )
    ordered = dict(sorted(catalogs.items()))
    golden = GoldenSet(manifest, kept_sessions, tuple(decisions), ordered)
    if corrections:
        golden = _corrected(golden, corrections, out, passed_over)
    with alone(out):
        return write_set(golden, out, force=force)


def correct(
    draft: Path, corrections: Sequence[Correction], *, passed_over: list[Correction] | None = None
) -> GoldenSet:
    """Apply reviewed corrections to a draft, in place and all or none, and record them in its manifest.

    Corrections of sessions that the draft does not hold are refused, unless ``passed_over`` is given: they then go
    there. Raises ``DataError`` with field and dp_id when one does not fit, and when all are of other sessions; the
    draft is then unchanged.
    """
    with alone(draft):
        golden = _corrected(_load_draft(draft), corrections, draft, passed_over)
        return write_set(golden, draft, force=True)


def _corrected(
    golden: GoldenSet, corrections: Sequence[Correction], draft: Path, passed_over: list[Correction] | None
) -> GoldenSet:
    own = [row for row in corrections if row.session_id in golden.sessions]
    others = [row for row in corrections if row.session_id not in golden.sessions]
    if others and (passed_over is None or not own):
        fix = "leave it out, or pass --ignore-other-sessions" if own else "check that file and draft belong together"
        raise DataError(
            f"{others[0].dp_id!r} is of session {others[0].session_id!r}, which is not in the draft, as are "
            f"{len(others):,} of {len(corrections):,} corrections; {fix}",
            path=str(draft),
            field="dp_id",
        )
    if passed_over is not None:
        passed_over += others
    decisions = apply_corrections(golden.decisions, own)
    manifest = msgspec.structs.replace(golden.manifest, corrections=(*golden.manifest.corrections, *own))
    return GoldenSet(manifest, golden.sessions, decisions, golden.catalogs)


def accept(draft: Path, alternatives: Sequence[Alternative]) -> GoldenSet:
    """Add reviewed alternatives to a draft, in place and all or none, and record them in its manifest.

    Raises ``DataError`` with field and dp_id when one does not fit; the draft is then unchanged.
    """
    with alone(draft):
        golden = _load_draft(draft)
        decisions = apply_alternatives(golden.decisions, alternatives)
        recorded = (*golden.manifest.alternatives, *alternatives)
        manifest = msgspec.structs.replace(golden.manifest, alternatives=recorded)
        return write_set(GoldenSet(manifest, golden.sessions, decisions, golden.catalogs), draft, force=True)


def _load_draft(path: Path) -> GoldenSet:
    golden = GoldenSet.load(path, draft=True)
    if golden.manifest.status != "draft":
        raise DataError("this set is frozen and stays as it is; change its draft and freeze anew", path=str(path))
    return golden


def _choose(
    sessions: Iterable[Session], tools: Callable[[str], tuple[Tool, ...]], options: BuildOptions
) -> tuple[list[Session], dict[str, Any], dict[str, Any]]:
    """The sessions that stay, and what the manifest says about the others (``gold_policy``, ``dedup``)."""
    chosen = _checked(sessions)
    policy: dict[str, Any] = {"gold": options.gold, "verified": options.verified, "filters": list(options.filters)}
    if options.drop_invalid:
        invalid = {session.session_id: problem for session in chosen if (problem := _first_problem(session, tools))}
        chosen = [session for session in chosen if session.session_id not in invalid]
        policy["dropped_invalid"] = [{"session_id": key, "problem": text} for key, text in invalid.items()]
        if not chosen:
            first = next(iter(invalid.items()))
            raise DataError(f"every session has an action that cannot be gold, e.g. {first[0]}: {first[1]}")
    dedup: dict[str, Any] = {}
    if options.dedup is not None:
        from firstchair.data.near_duplicates import drop_near_duplicates  # numpy and LSH are slow to import

        kept, dropped = drop_near_duplicates(chosen, options.dedup)
        dedup = {"threshold": options.dedup, "dropped": [msgspec.to_builtins(pair) for pair in dropped]}
        chosen = kept
    return chosen, policy, dedup


def _checked(sessions: Iterable[Session]) -> list[Session]:
    chosen: dict[str, Session] = {}
    for session in sessions:
        if session.session_id in chosen:
            raise DataError(f"session {session.session_id!r} comes twice; give each its own id", field="session_id")
        if not any(message.role == "assistant" for message in session.messages):
            raise DataError(
                f"session {session.session_id!r} has no assistant message, so nothing to score; leave it out",
                field="messages",
            )
        chosen[session.session_id] = session
    if not chosen:
        raise DataError("no session left to build from; loosen the filters, or check the source")
    return list(chosen.values())


def _first_problem(session: Session, tools: Callable[[str], tuple[Tool, ...]]) -> str | None:
    offered = tools(session.catalog_id)
    problems = (point_problem(point, offered) for point in decision_points(session))
    return next((problem for problem in problems if problem), None)


def _catalog_row(session: Session, tools: Callable[[str], tuple[Tool, ...]]) -> CatalogRow:
    found = tools(session.catalog_id)
    if catalog_id_of(found) != session.catalog_id:
        raise DataError(
            f"session {session.session_id!r}: the tools of catalog {session.catalog_id[:12]}… are missing or "
            "changed; import the session together with its tools",
            field="catalog_id",
        )
    return CatalogRow(catalog_id=session.catalog_id, tools=found)
