"""The pairwise judge: which of two answers is better, within the samples of one prompt.

    K answers ─► pairs (all, or a balanced draw within the budget) ─► each pair in both orders ─► share of points

A pair's two verdicts are averaged, so that a judge that always prefers the first answer gives both of them ½.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from firstchair.chat.messages import text_message
from firstchair.core.concurrency import all_or_none
from firstchair.rewards.fence import fenced
from firstchair.rewards.judge_client import JudgeClient, JudgeError, Question
from firstchair.rewards.rubric import DATA_ONLY

Winner = Literal["A", "B", "tie"]
POINTS: dict[Winner, float] = {"A": 1.0, "tie": 0.5, "B": 0.0}
"""Of the first answer shown."""

_INSTRUCTIONS = (
    "You compare two answers, A and B, to one prompt. {data_only} Which one is better by this criterion, and by "
    "nothing else: {criterion}\nTheir order means nothing. Say `tie` when neither is better. Answer with one JSON "
    "object and nothing else: `reason`, one or two sentences, then `winner`, one of A, B, tie."
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "winner": {"type": "string", "enum": ["A", "B", "tie"]}},
    "required": ["reason", "winner"],
    "additionalProperties": False,
}


def read_winner(value: Any) -> Winner:
    """``{"reason": text, "winner": "A"|"B"|"tie"}`` exactly. Raises ``ValueError``."""
    if not isinstance(value, dict) or set(value) != {"reason", "winner"} or not isinstance(value["reason"], str):
        raise ValueError("want {reason, winner}")
    winner = value["winner"]
    if winner not in ("A", "B", "tie"):
        raise ValueError(f"winner={winner!r}, want 'A', 'B' or 'tie'")
    return winner  # type: ignore[no-any-return]


def pair_question(question_id: str, question: str, answers: tuple[str, str], criterion: str) -> Question[Winner]:
    """Ask which of two answers, shown as A and B in this order, is better."""
    return Question(
        question_id=question_id,
        messages=(
            text_message("system", _INSTRUCTIONS.format(data_only=DATA_ONLY, criterion=criterion)),
            text_message("user", fenced({"prompt": question, "answer A": answers[0], "answer B": answers[1]})),
        ),
        schema=SCHEMA,
        read=read_winner,
    )


def draw_pairs(count: int, max_pairs: int, *, seed: int) -> list[tuple[int, int]]:
    """Which of ``count`` answers meet. All pairs when they are at most ``max_pairs``; else a balanced random draw.

    The draw shuffles the answers by ``seed`` and plays the first rounds of the circle method, the schedule of chess
    leagues (Kirkman 1847): in each round everyone meets one other, nobody meets anyone twice. As many whole rounds
    are played as ``max_pairs`` allows, at least one. Each answer's share of points over uniformly drawn opponents is
    an unbiased estimate of its share over all of them, and ranking by it (Borda count) is optimal up to constants
    without any model of the judge (Shah and Wainwright 2018, "Simple, robust and optimal ranking from pairwise
    comparisons"). A tournament that pairs by earlier results would need fewer comparisons to rank, but its shares
    depend on who met whom, and the reward is the share; nor could its comparisons run at once.
    """
    if count * (count - 1) // 2 <= max_pairs:
        return [(i, j) for i in range(count) for j in range(i + 1, count)]
    order: list[int | None] = list(range(count))
    random.Random(seed).shuffle(order)
    if count % 2:
        order.append(None)  # whoever meets it rests
    pairs: list[tuple[int, int]] = []
    for _ in range(max(1, min(max_pairs // (count // 2), len(order) - 1))):
        for place in range(len(order) // 2):
            one, other = order[place], order[-1 - place]
            if one is not None and other is not None:
                pairs.append((min(one, other), max(one, other)))
        order.insert(1, order.pop())  # all but the first move on by one chair
    return sorted(pairs)


@dataclass(frozen=True)
class PairwiseResult:
    """One answer's standing in its group."""

    share: float | None
    """Points over comparisons; by rule 0.0 for a blank answer and 0.5 for one that was to meet nobody. ``None``: it
    was to, and no comparison has both verdicts."""
    comparisons: int = 0
    """Pairs that it was in, both orders counted as one; those that lack a verdict are left out."""
    flips: int = 0
    """Of these, pairs whose winner changed with the order."""
    error: JudgeError | None = None
    """Why ``share`` is ``None``: what befell its first comparison."""


async def judge_group(
    client: JudgeClient,
    group: str,
    question: str,
    answers: Sequence[str],
    criterion: str,
    *,
    max_pairs: int,
    seed: int,
) -> list[PairwiseResult]:
    """The standing of each of ``answers`` to ``question``.

    Blank answers get 0 and are never shown; a single other one gets ½. Equal texts tie without being asked about.
    Both orders of each pair are asked, all at once; a pair on which the judge fails is left out.
    """
    valid = [index for index, answer in enumerate(answers) if answer.strip()]
    pairs = [(valid[i], valid[j]) for i, j in draw_pairs(len(valid), max_pairs, seed=seed)]
    asked = [(i, j) for i, j in pairs if answers[i] != answers[j]]

    async def verdict(first: int, second: int) -> Winner | JudgeError:
        texts = answers[first], answers[second]
        try:
            return await client.ask(pair_question(f"{group}:{first}-{second}", question, texts, criterion))
        except JudgeError as error:
            return error

    found = await all_or_none([verdict(*pair) for i, j in asked for pair in ((i, j), (j, i))])
    verdicts: dict[tuple[int, int], tuple[Winner, Winner]] = {}
    failed: dict[tuple[int, int], JudgeError] = {}
    for pair, forth, back in zip(asked, found[::2], found[1::2], strict=True):
        if isinstance(forth, JudgeError):
            failed[pair] = forth
        elif isinstance(back, JudgeError):
            failed[pair] = back
        else:
            verdicts[pair] = forth, back
    return standings(answers, pairs, verdicts, failed)


def standings(
    answers: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    verdicts: Mapping[tuple[int, int], tuple[Winner, Winner]],
    failed: Mapping[tuple[int, int], JudgeError] = MappingProxyType({}),
) -> list[PairwiseResult]:
    """Each answer's share. ``verdicts``: pair ``(i, j)`` → winner with i shown first, winner with j shown first; a
    pair without verdicts is a tie, unless it is in ``failed``: then it is left out.

    share_i = mean over its pairs of the points that it takes, itself the mean over the two orders of 1, ½ or 0.
    """
    points, met, flips = [0.0] * len(answers), [0] * len(answers), [0] * len(answers)
    errors: dict[int, JudgeError] = {}
    for i, j in pairs:
        if (error := failed.get((i, j))) is not None:
            errors = {i: error, j: error, **errors}
            continue
        forth, back = verdicts.get((i, j), ("tie", "tie"))
        for_i = (POINTS[forth] + 1.0 - POINTS[back]) / 2
        flipped = POINTS[forth] != 1.0 - POINTS[back]
        for index, share in ((i, for_i), (j, 1.0 - for_i)):
            points[index] += share
            met[index] += 1
            flips[index] += flipped

    def standing(k: int) -> PairwiseResult:
        if met[k]:
            return PairwiseResult(share=points[k] / met[k], comparisons=met[k], flips=flips[k])
        if k in errors:
            return PairwiseResult(share=None, error=errors[k])
        return PairwiseResult(share=0.5 if answers[k].strip() else 0.0)

    return [standing(k) for k in range(len(answers))]
