"""Where preference pairs come from: corrected mistakes, groups of rollouts, contrastive waves.

    recorded sessions + corrections ─► gold against the observed mistake, at one decision ─┐
    rollouts labelled group, reward ─► best against worst, where the two first part ───────┼─► draw ─► train | dev
    SFT records with meta.contrast ──► the two answers, where the two first part ──────────┘

What gives no pair is counted by its reason.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from firstchair.chat.actions import action_of
from firstchair.chat.messages import Message, Tool, ending
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsontext import sha256_text
from firstchair.data.corrections import Correction, apply_corrections, read_corrections, same_action
from firstchair.data.golden.checks import action_problem
from firstchair.data.pairs import PreferencePair, alike, is_empty
from firstchair.data.sft import SftRecord, read_sft
from firstchair.data.sources import Selection, open_source
from firstchair.data.splits import Member, split
from firstchair.traces.decisions import DecisionPoint, context
from firstchair.traces.rows import label_text
from firstchair.traces.session import Session

LeftOut = Counter[str]
"""Why something gave no pair → how often."""

CUT = "a side was cut, refused or unreadable"
EMPTY = "a side is empty"
INVALID = "the chosen action is no valid call"
WORDS = "they part in the words beside equal calls"
OBSERVATION = "their prompts or observations differ before their actions do"
BEGINNING = "one is the beginning of the other"


# --- corrected mistakes -------------------------------------------------------------------------------------


def corrected_pairs(
    session: Session, decisions: Iterable[DecisionPoint], tools: tuple[Tool, ...], left_out: LeftOut
) -> Iterator[PreferencePair]:
    """A pair for each decision whose gold is not what was observed; ``decisions`` have their corrections applied.

    A reviewer writes the right call, not the words or the thinking before it. Where gold has none, they are taken
    off the observed call too: else the pair would teach to call in silence, before anything else.
    """
    for point in decisions:
        if point.gold is None or same_action(point.gold, point.observed):
            continue
        chosen = point.gold.to_message()
        rejected = _in_the_form_of(chosen, session.messages[point.context_end])
        reason = _unusable(chosen, rejected, tools)
        if reason is not None:
            left_out[f"corrected mistake: {reason}"] += 1
            continue
        yield PreferencePair(
            id=point.dp_id,
            source="corrected",
            messages=context(session, point),
            tools=tools,
            chosen=chosen,
            rejected=rejected,
            meta={"session_ids": [session.session_id], **_task(session)},
        )


def _in_the_form_of(gold: Message, observed: Message) -> Message:
    """``observed`` without thinking, and without text beside its calls, where ``gold`` has none."""
    whole = action = action_of(observed)
    if not gold.thinking:
        action = msgspec.structs.replace(action, thinking="")
    if gold.tool_calls and not gold.text and action.calls:
        action = msgspec.structs.replace(action, text="")
    return observed if action == whole else msgspec.structs.replace(action.to_message(), extra=observed.extra)


# --- groups of rollouts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rollout:
    reward: float
    session: Session


def group_pairs(
    sessions: Iterable[Session],
    tools: Callable[[str], tuple[Tool, ...]],
    *,
    margin: float = 0.0,
    left_out: LeftOut,
) -> Iterator[PreferencePair]:
    """At most one pair of each group: best against worst by reward, at the first decision where the two part.

    Rollouts with equal labels ``batch`` (may be missing) and ``group`` are a group; label ``reward`` is a number, and
    null or missing where the rollout was not graded. Such rollouts are left out, and so are groups with fewer than
    two graded ones, with equal rewards, or with a best that leads by less than ``margin``. Where several are best or
    worst, the first two that give a pair are taken, in the order of ``sessions``. All sessions are in memory at once.
    """
    groups: dict[tuple[str, str], list[_Rollout]] = {}
    for session in sessions:
        labels = session.labels
        if "group" not in labels:
            left_out["rollout: no label group"] += 1
            continue
        members = groups.setdefault((label_text(labels.get("batch")), label_text(labels["group"])), [])
        reward = _reward(session)
        if reward is None:
            left_out["rollout: not graded"] += 1
        else:
            members.append(_Rollout(reward, session))
    for members in groups.values():
        found = _best_and_worst(members, tools, margin)
        if isinstance(found, str):
            left_out[f"group: {found}"] += 1
        else:
            yield found


def _reward(session: Session) -> float | None:
    reward = session.labels.get("reward")
    if reward is None:
        return None
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise DataError(
            f"session {session.session_id!r}: found {reward!r}; expected a number, or null when it was not graded",
            field="labels.reward",
        )
    return float(reward)


def _best_and_worst(
    members: Sequence[_Rollout], tools: Callable[[str], tuple[Tool, ...]], margin: float
) -> PreferencePair | str:
    """The pair of a group, or why there is none."""
    if len(members) < 2:
        return "fewer than two graded rollouts"
    best, worst = (pick(rollout.reward for rollout in members) for pick in (max, min))
    if best == worst:
        return "rewards tie"
    if best - worst < margin:
        return "rewards nearer than the margin"
    reasons: list[str] = []
    tops = [rollout.session for rollout in members if rollout.reward == best]
    bottoms = [rollout.session for rollout in members if rollout.reward == worst]
    for chosen, rejected in product(tops, bottoms):
        found = _parting(chosen, rejected, tools)
        if isinstance(found, PreferencePair):
            return msgspec.structs.replace(found, meta={**found.meta, "rewards": [best, worst]})
        reasons.append(found)
    return reasons[0]


def _parting(best: Session, worst: Session, tools: Callable[[str], tuple[Tool, ...]]) -> PreferencePair | str:
    """The pair at the first decision where two rollouts part, or why there is none."""
    if best.catalog_id != worst.catalog_id:
        return "other tools were on offer"
    place = first_parting(best.messages, worst.messages, max(best.context_end, worst.context_end))
    if isinstance(place, str):
        return place
    if place in _malformed(best) or place in _malformed(worst):
        return CUT
    chosen, rejected, offered = best.messages[place], worst.messages[place], tools(best.catalog_id)
    reason = _unusable(chosen, rejected, offered)
    if reason is not None:
        return reason
    labels = best.labels
    return PreferencePair(
        id=f"{best.session_id}:{place}:{worst.session_id}",
        source="groups",
        messages=best.messages[:place],
        tools=offered,
        chosen=chosen,
        rejected=rejected,
        meta={
            "session_ids": [best.session_id, worst.session_id],
            **_task(best),
            **{name: labels[name] for name in ("batch", "group") if name in labels},
        },
    )


def _malformed(session: Session) -> frozenset[int]:
    """Messages whose action could not be read; their tokens would not come back by rendering."""
    entries = session.meta.get("malformed", ())
    return frozenset(entry["message_index"] for entry in entries if "message_index" in entry)


def first_parting(left: Sequence[Message], right: Sequence[Message], decided_from: int = 0) -> int | str:
    """Index of the first message where two conversations part by what the model did, or why there is none.

    Messages are compared from the beginning. Assistant messages from index ``decided_from`` on are the model's: two
    are equal when text, thinking, and the calls in order are, arguments as JSON values and call ids aside. All others
    are the prompt and the environment's: role, content, name and error mark must be equal, or there is no pair: what
    followed was decided at two different prompts.
    """
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one.role == other.role == "assistant":
            if alike(one, other):
                continue
            return place if place >= decided_from else OBSERVATION
        if not _same_observation(one, other):
            return OBSERVATION
    return BEGINNING


def _same_observation(left: Message, right: Message) -> bool:
    facts = [(m.role, m.content, m.name, m.is_error) for m in (left, right)]
    return facts[0] == facts[1]


# --- contrastive waves --------------------------------------------------------------------------------------


class Contrast(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``meta.contrast`` of an SFT record: which pair it belongs to, and which of the two answers is in it."""

    pair: str
    side: str
    """``chosen`` or ``rejected``."""


def contrast_pairs(records: Iterable[SftRecord], left_out: LeftOut) -> Iterator[PreferencePair]:
    """A pair for every two records with one ``meta.contrast.pair``, at the first message where they part.

    They must answer one prompt: two look-alike requests, each with its own right answer, are two SFT records and no
    pair. The chosen answer must be in the loss of its record; the rejected record is in no SFT file, or has
    ``loss: false`` there. Raises ``DataError`` for a malformed field and for two records with one side.
    """
    waiting: dict[str, dict[str, SftRecord]] = defaultdict(dict)
    for record in records:
        contrast = _contrast(record)
        if contrast is None:
            left_out["record: no meta.contrast"] += 1
            continue
        sides = waiting[contrast.pair]
        if contrast.side in sides:
            raise DataError(
                f"records {sides[contrast.side].id!r} and {record.id!r} are both the {contrast.side} side of "
                f"{contrast.pair!r}; a pair has one of each",
                field="meta.contrast.side",
            )
        sides[contrast.side] = record
    for name, sides in waiting.items():
        found = _contrasted(name, sides) if len(sides) == 2 else f"only the {next(iter(sides))} side"
        if isinstance(found, str):
            left_out[f"contrast: {found}"] += 1
        else:
            yield found


def _contrast(record: SftRecord) -> Contrast | None:
    value = record.meta.get("contrast")
    if value is None:
        return None
    try:
        found = msgspec.convert(value, Contrast)
    except msgspec.ValidationError as error:
        raise DataError(f"record {record.id!r}: {error}", field="meta.contrast") from None
    if found.side not in ("chosen", "rejected"):
        raise DataError(
            f"record {record.id!r}: found {found.side!r}; expected chosen or rejected", field="meta.contrast.side"
        )
    return found


def _contrasted(name: str, sides: Mapping[str, SftRecord]) -> PreferencePair | str:
    better, worse = sides["chosen"], sides["rejected"]
    if better.tools != worse.tools:
        return "other tools were on offer"
    place = first_parting(better.messages, worse.messages)
    if isinstance(place, str):
        return place
    if not better.loss[place]:
        return "the chosen answer is out of its record's loss"
    chosen, rejected = better.messages[place], worse.messages[place]
    return _unusable(chosen, rejected, better.tools) or PreferencePair(
        id=f"contrast:{name}",
        source="contrast",
        messages=better.messages[:place],
        tools=better.tools,
        chosen=chosen,
        rejected=rejected,
        meta={"session_ids": [better.id, worse.id]},
    )


# --- all together --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairInputs:
    """What pairs are built from."""

    corrected: str = ""
    """Store, export or draft golden set."""
    corrections: Path | None = None
    """Reviewed corrections of these sessions; a draft has its own already."""
    selection: Selection = field(default_factory=Selection)
    """Which of these sessions are meant."""
    groups: tuple[str, ...] = ()
    """Store, export, or folder of a run with ``sessions.jsonl`` and ``catalogs.jsonl``."""
    contrast: tuple[Path, ...] = ()
    """Files of SFT records."""

    def words(self) -> tuple[str, ...]:
        """The sources, for the record."""
        corrected = [" ".join((f"corrected {self.corrected}", *self.selection.words()))] if self.corrected else []
        return (
            *corrected,
            *(f"groups {where}" for where in self.groups),
            *(f"contrast {path}" for path in self.contrast),
        )


def build_pairs(
    inputs: PairInputs, *, margin: float = 0.0, limit: int | None = None, seed: int = 0
) -> tuple[list[PreferencePair], LeftOut]:
    """The pairs of all sources, and why something gave none.

    Raises ``ConfigError`` without any source, ``DataError`` for one that cannot be read or does not fit.
    """
    if not inputs.words():
        raise ConfigError("nothing to build pairs from; give --corrected, --groups or --contrast")
    if inputs.corrections is not None and not inputs.corrected:
        raise ConfigError("--corrections are those of the sessions in --corrected; give that too")
    left_out: LeftOut = Counter()
    return draw(_pairs(inputs, margin, left_out), limit=limit, seed=seed, left_out=left_out), left_out


def _pairs(inputs: PairInputs, margin: float, left_out: LeftOut) -> Iterator[PreferencePair]:
    if inputs.corrected:
        yield from _of_recordings(inputs, left_out)
    for where in inputs.groups:
        with open_source(where, training=True) as source:
            yield from group_pairs(source.sessions(), source.tools, margin=margin, left_out=left_out)
    for path in inputs.contrast:
        try:
            yield from contrast_pairs(read_sft(path), left_out)
        except DataError as error:
            raise error if error.path else error.at(str(path)) from None


def _of_recordings(inputs: PairInputs, left_out: LeftOut) -> Iterator[PreferencePair]:
    by_session: dict[str, list[Correction]] = defaultdict(list)
    for correction in read_corrections(inputs.corrections) if inputs.corrections is not None else ():
        by_session[correction.session_id].append(correction)
    with open_source(inputs.corrected, inputs.selection, training=True) as source:
        for session in source.sessions():
            own = by_session.get(session.session_id, ())
            decisions = apply_corrections(source.decisions(session), own)
            yield from corrected_pairs(session, decisions, source.tools(session.catalog_id), left_out)


# --- what all have in common --------------------------------------------------------------------------------


def _unusable(chosen: Message, rejected: Message, tools: tuple[Tool, ...]) -> str | None:
    """Why two actions are no pair, or ``None``."""
    if is_empty(chosen) or is_empty(rejected):
        return EMPTY
    if any(ending(side) or any(call.parsed() is None for call in side.tool_calls) for side in (chosen, rejected)):
        return CUT
    if same_action(action_of(chosen), action_of(rejected)):
        return WORDS
    return INVALID if action_problem(action_of(chosen), tools) is not None else None


def _task(session: Session) -> dict[str, Any]:
    return {"task_id": session.labels["task_id"]} if "task_id" in session.labels else {}


def draw(pairs: Iterable[PreferencePair], *, limit: int | None, seed: int, left_out: LeftOut) -> list[PreferencePair]:
    """At most ``limit`` pairs, drawn by ``seed``, in the order given; one that comes a second time is left out."""
    unique: dict[str, PreferencePair] = {}
    for pair in pairs:
        if pair.id in unique:
            left_out["pair: comes twice"] += 1
        else:
            unique[pair.id] = pair
    if limit is None or len(unique) <= limit:
        return list(unique.values())
    drawn = set(sorted(unique, key=lambda name: sha256_text(f"{seed}\x1f{name}"))[:limit])
    left_out["pair: not drawn"] += len(unique) - limit
    return [pair for pair in unique.values() if pair.id in drawn]


def hold_out(
    pairs: Sequence[PreferencePair], *, fraction: float, seed: int
) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Training pairs and about ``fraction`` held-out ones; no session and no task has pairs on both sides.

    Pairs that share a session or a task, directly or through others, stay together; each source is divided alike.
    Raises ``ConfigError`` when one side would be empty.
    """
    together = _components(pairs)
    members = [
        Member(session_id=pair.id, group=group, stratum=pair.source)
        for pair, group in zip(pairs, together, strict=True)
    ]
    parts = split(members, {"train": 1 - fraction, "dev": fraction}, seed)
    dev = {member.session_id for member in parts["dev"]}
    return [pair for pair in pairs if pair.id not in dev], [pair for pair in pairs if pair.id in dev]


def _components(pairs: Sequence[PreferencePair]) -> list[str]:
    """A name for each pair, equal where they hang together."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            parent[key] = key = parent[parent[key]]
        return key

    keys = [_keys(pair) for pair in pairs]
    for first, *others in keys:
        for other in others:
            # The smaller name wins, so that the name does not depend on the order of the pairs.
            left, right = sorted((root(first), root(other)))
            parent[right] = left
    return [root(first) for first, *_ in keys]


def _keys(pair: PreferencePair) -> list[str]:
    sessions = [f"session {name}" for name in pair.meta.get("session_ids", ())] or [f"pair {pair.id}"]
    return sessions + ([f"task {label_text(pair.meta['task_id'])}"] if "task_id" in pair.meta else [])
