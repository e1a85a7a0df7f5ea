"""How far a judge can be trusted: agreement with people, pull of the position, and whether it repeats itself.

    hand labels (JSONL) ─► every item asked, in both orders where it is a pair, and ``repeats`` times ─► Calibration

What the judge could not be read on is counted and left out; it is neither agreement nor disagreement.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from firstchair.core.concurrency import all_or_none
from firstchair.core.errors import DataError, GradingError
from firstchair.core.jsonl import read_jsonl
from firstchair.core.progress import Progress, Silent
from firstchair.evals.stats import NO_RATE, Floats, Rate, cluster_sums, rate, replicate_sums
from firstchair.rewards.composition import JudgeComponent
from firstchair.rewards.judge_client import JudgeClient, JudgeError, Question
from firstchair.rewards.pairwise import POINTS, Winner, pair_question
from firstchair.rewards.rubric import rubric_question

_SILENT = Silent()
WINNER = "winner"
"""Name of the one thing that a pairwise judge says."""


class LabelledAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person's scores of one answer."""

    question: str
    answer: str
    scores: dict[str, int]
    by: str = ""


class LabelledPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person's choice between two answers."""

    question: str
    a: str
    b: str
    winner: Literal["a", "b", "tie"]
    by: str = ""


class Agreement(msgspec.Struct, frozen=True):
    """Judge and people on one dimension."""

    dimension: str
    raw: Rate
    """Share of items on which both say the same."""
    kappa: Rate
    """Cohen's κ: agreement beyond what their shares of each answer would give by chance. ``value`` is ``None`` when
    both always say one and the same thing, where it is not defined."""


class PositionBias(msgspec.Struct, frozen=True):
    """Whether the order of two answers decides."""

    flips: Rate
    """Share of pairs whose verdict changes when the answers change places."""
    to_first: int
    """Flips that favour whichever answer is shown first."""
    to_second: int


class Calibration(msgspec.Struct, frozen=True):
    """What came out; ``n`` and 95% intervals stand in every rate."""

    judge: str
    component: str
    mode: str
    items: int
    repeats: int
    agreement: tuple[Agreement, ...]
    position: PositionBias | None
    """``None`` for a rubric, which shows one answer."""
    consistency: Rate
    """Share of questions that get the same verdict every time they are asked; no trial when each is asked once."""
    unscored: dict[str, int]
    """Reason → questions without a verdict."""


def read_labelled(path: Path, component: JudgeComponent) -> list[LabelledAnswer | LabelledPair]:
    """The labelled items of a JSONL file for ``component``. Raises ``DataError`` with file:line."""
    kind: type[LabelledAnswer | LabelledPair] = LabelledAnswer if component.mode == "rubric" else LabelledPair
    scores = {one.name: one.scores for one in component.dimensions}
    items: list[LabelledAnswer | LabelledPair] = []
    for number, row in read_jsonl(path):
        try:
            item = msgspec.convert(row, kind)
        except msgspec.ValidationError as error:
            wanted = "question, answer, scores" if component.mode == "rubric" else "question, a, b, winner"
            raise DataError(f"not a label: {error}; expected {{{wanted}}}", path=str(path), line=number) from None
        if isinstance(item, LabelledAnswer):
            for name, score in item.scores.items():
                if score not in scores.get(name, ()):
                    raise DataError(
                        f"found {score}; expected one of {list(scores[name])}"
                        if name in scores
                        else f"no such dimension; component {component.name} has {', '.join(scores)}",
                        path=str(path),
                        line=number,
                        field=f"scores.{name}",
                    )
        items.append(item)
    if not items:
        raise DataError("found no labels; expected one JSON object a line", path=str(path))
    return items


Said = dict[str, Any]
"""What one verdict says: dimension → score, or ``winner`` → A, B or tie."""


def _questions(
    component: JudgeComponent, items: Sequence[LabelledAnswer | LabelledPair]
) -> list[list[Question[Any]]]:
    """Per item the questions to ask: one for an answer, both orders for a pair."""
    out: list[list[Question[Any]]] = []
    for number, item in enumerate(items):
        if isinstance(item, LabelledAnswer):
            out.append([rubric_question(f"item:{number}", item.question, item.answer, component.dimensions)])
        else:
            out.append(
                [
                    pair_question(f"item:{number}:{order}", item.question, texts, component.criterion)
                    for order, texts in (("ab", (item.a, item.b)), ("ba", (item.b, item.a)))
                ]
            )
    return out


async def calibrate(
    client: JudgeClient,
    component: JudgeComponent,
    items: Sequence[LabelledAnswer | LabelledPair],
    *,
    repeats: int = 1,
    seed: int = 0,
    progress: Progress = _SILENT,
) -> Calibration:
    """Ask everything ``repeats`` times and compare. ``seed`` is that of the bootstrap intervals.

    Raises ``GradingError`` when the judge gave no verdict at all.
    """
    unscored: Counter[str] = Counter()
    failures: list[JudgeError] = []

    async def ask(question: Question[Any], repeat: int) -> Said | None:
        again = replace(question, question_id=f"{question.question_id}:{repeat}", repeat=repeat)
        try:
            said = await client.ask(again)
        except JudgeError as error:
            unscored[str(error.why)] += 1
            failures.append(error)
            return None
        finally:
            progress.advance()
        return said if isinstance(said, dict) else {WINNER: said}

    questions = _questions(component, items)
    flat = [(question, repeat) for row in questions for question in row for repeat in range(repeats)]
    answers = iter(await all_or_none([ask(*one) for one in flat]))
    # said[item][order][repeat]
    said = [[[next(answers) for _ in range(repeats)] for _ in row] for row in questions]
    if failures and len(failures) == len(flat):
        raise GradingError(f"no verdict on any of {len(flat)} questions; the first: {failures[0]}")
    clusters = [item.question for item in items]
    first = [[order[0] for order in row] for row in said]
    return Calibration(
        judge=client.model,
        component=component.name,
        mode=component.mode,
        items=len(items),
        repeats=repeats,
        agreement=_agreements(items, first, clusters, seed),
        position=_position(first, clusters, seed) if component.mode == "pairwise" else None,
        consistency=_consistency(said, clusters, seed) if repeats > 1 else NO_RATE,
        unscored=dict(unscored),
    )


def _agreements(
    items: Sequence[LabelledAnswer | LabelledPair],
    first: Sequence[Sequence[Said | None]],
    clusters: Sequence[str],
    seed: int,
) -> tuple[Agreement, ...]:
    pairs: dict[str, list[tuple[Any, Any, str]]] = {}
    for item, row, cluster in zip(items, first, clusters, strict=True):
        judged = both_orders(row) if isinstance(item, LabelledPair) else row[0]
        people: Said = {WINNER: item.winner} if isinstance(item, LabelledPair) else item.scores
        if judged is not None:
            for name, label in people.items():
                pairs.setdefault(name, []).append((label, judged[name], cluster))
    return tuple(agreement(name, rows, seed=seed) for name, rows in pairs.items())


def both_orders(row: Sequence[Said | None]) -> Said | None:
    """The winner that two orders agree on; points that add up to a half are a tie. ``None`` when one is missing."""
    forth, back = row
    if forth is None or back is None:
        return None
    points = _points(forth) + 1.0 - _points(back)
    return {WINNER: "a" if points > 1 else "b" if points < 1 else "tie"}


def _points(said: Said) -> float:
    winner: Winner = said[WINNER]
    return POINTS[winner]


def agreement(name: str, rows: Sequence[tuple[Any, Any, str]], *, seed: int = 0) -> Agreement:
    """Raw agreement and κ over ``(label, verdict, cluster)``."""
    same = [float(label == verdict) for label, verdict, _ in rows]
    clusters = [cluster for _, _, cluster in rows]
    return Agreement(
        dimension=name, raw=rate(same, [1.0] * len(same), clusters, seed=seed), kappa=cohens_kappa(rows, seed=seed)
    )


def cohens_kappa(rows: Sequence[tuple[Any, Any, str]], *, seed: int = 0) -> Rate:
    """Cohen's κ of two raters over ``(one, other, cluster)`` with a 95% percentile bootstrap over clusters.

    κ = (p_o − p_e) / (1 − p_e), p_o the share on which they agree, p_e = Σ_k p_k·q_k of their own shares (Cohen 1960,
    "A coefficient of agreement for nominal scales", eq. 1). Replicates in which it is not defined are left out; no
    interval with fewer than two clusters.
    """
    if not rows:
        return NO_RATE
    kinds = sorted({value for one, other, _ in rows for value in (one, other)}, key=str)
    place = {kind: index for index, kind in enumerate(kinds)}
    count = len(kinds)
    cells = np.zeros((len(rows), count * count))
    for index, (one, other, _) in enumerate(rows):
        cells[index, place[one] * count + place[other]] = 1.0
    sums = cluster_sums([cluster for _, _, cluster in rows], *cells.T)
    (value,) = _kappas(np.array([[column.sum() for column in sums]]), count)
    if not np.isfinite(value):
        return Rate(value=None, n=len(rows), low=None, high=None)
    if len(sums[0]) < 2:
        return Rate(value=float(value), n=len(rows), low=None, high=None)
    drawn = _kappas(replicate_sums(sums, seed=seed), count)
    low, high = np.quantile(drawn[np.isfinite(drawn)], (0.025, 0.975))
    return Rate(value=float(value), n=len(rows), low=float(low), high=float(high), method="cluster_bootstrap")


def _kappas(sums_RC: Floats, count: int) -> Floats:
    """κ of each row of confusion counts, ``[rows, count²]`` → ``[rows]``; NaN where it is not defined."""
    table = sums_RC.reshape(-1, count, count)
    total = table.sum(axis=(1, 2))
    agreed = np.trace(table, axis1=1, axis2=2) / total
    chance = (table.sum(axis=2) * table.sum(axis=1)).sum(axis=1) / total**2
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(chance < 1.0, (agreed - chance) / (1.0 - chance), np.nan)


def _position(first: Sequence[Sequence[Said | None]], clusters: Sequence[str], seed: int) -> PositionBias:
    flips: list[float] = []
    seen: list[str] = []
    to_first = to_second = 0
    for (forth, back), cluster in zip(first, clusters, strict=True):
        if forth is None or back is None:
            continue
        # Points of the place that is shown first, over both orders: 1 where the order decides nothing.
        points = _points(forth) + _points(back)
        flips.append(float(points != 1.0))
        seen.append(cluster)
        to_first += points > 1.0
        to_second += points < 1.0
    return PositionBias(rate(flips, [1.0] * len(flips), seen, seed=seed), to_first, to_second)


def _consistency(said: Sequence[Sequence[Sequence[Said | None]]], clusters: Sequence[str], seed: int) -> Rate:
    same: list[float] = []
    seen: list[str] = []
    for row, cluster in zip(said, clusters, strict=True):
        for repeats in row:
            read = [one for one in repeats if one is not None]
            if len(read) == len(repeats):
                same.append(float(all(one == read[0] for one in read)))
                seen.append(cluster)
    return rate(same, [1.0] * len(same), seen, seed=seed)


def run_calibration(
    client: JudgeClient,
    component: JudgeComponent,
    items: Sequence[LabelledAnswer | LabelledPair],
    *,
    repeats: int,
    seed: int,
    progress: Progress,
) -> Calibration:
    """``calibrate`` to its end, the client closed afterwards."""

    async def whole() -> Calibration:
        try:
            return await calibrate(client, component, items, repeats=repeats, seed=seed, progress=progress)
        finally:
            await client.close()

    return asyncio.run(whole())
