"""RL prompts on disk: one ``PromptRecord`` a line, and beside it a manifest that holds the file's checksum.

prompts.jsonl            {id, messages, tools, gold, accept, known_bad, matchers, category, meta}
prompts.manifest.json    what it was made from, sha256, counts

Made from recorded sessions (gold is what a reviewer said, else what was observed), or from SFT records: there only
trained messages are gold, so that known mistakes stay out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from firstchair.chat.actions import Action, action_of
from firstchair.chat.messages import Message, Tool
from firstchair.core.atomic import refuse_existing, write_text
from firstchair.core.errors import DataError, IntegrityError
from firstchair.core.hashing import sha256_file
from firstchair.core.jsonl import read_jsonl, write_jsonl
from firstchair.data.golden.checks import NO_GOLD, action_problem
from firstchair.data.message_rows import messages_from_rows, messages_to_rows, tools_from_rows
from firstchair.data.sft import SftRecord
from firstchair.rollout.prompt_record import PromptRecord
from firstchair.traces.decisions import DecisionPoint, context
from firstchair.traces.session import Session

FORMAT = "firstchair-rl-prompts/1"
MatcherTable = Mapping[str, Mapping[str, str]]
LeftOut = Counter[str]
"""Why decisions gave no prompt → how many."""


class PromptManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What ``….manifest.json`` holds."""

    source: str
    """Where the sessions came from, in words."""
    sha256: str
    """Of the file."""
    prompts: int
    per_route: dict[str, int]
    """Gold's first tool, or ``final_reply`` → prompts."""
    per_category: dict[str, int]
    left_out: dict[str, int]
    format: str = FORMAT


class PromptRenderer(Protocol):
    """The part of ``chat.renderer.Renderer`` that measuring needs."""

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Token ids of the prompt."""
        ...


def session_prompts(
    session: Session,
    decisions: Iterable[DecisionPoint],
    tools: tuple[Tool, ...],
    matchers: MatcherTable,
    left_out: LeftOut,
) -> Iterator[PromptRecord]:
    """A prompt for each decision whose right action is known. ``category`` and ``task_id`` come from the labels."""
    labels = session.labels
    for point in decisions:
        gold = point.gold or (point.observed if point.ending is None else None)
        if gold is None:
            left_out[NO_GOLD[point.ending] if point.ending else "no gold"] += 1
            continue
        meta: dict[str, Any] = {
            "session_id": session.session_id,
            "task_id": labels.get("task_id", session.session_id),
            "verified": point.verified,
            "tags": list(point.tags),
        }
        meta |= {name: labels[name] for name in ("env", "verifier") if name in labels}
        record = PromptRecord(
            id=point.dp_id,
            messages=context(session, point),
            tools=tools,
            gold=gold,
            accept=point.accept,
            known_bad=point.known_bad,
            matchers=_matchers_of((gold, *(option.action for option in point.accept)), matchers),
            category=str(labels.get("category", "")),
            meta=meta,
        )
        yield from _usable(record, left_out)


def sft_prompts(record: SftRecord, matchers: MatcherTable, left_out: LeftOut) -> Iterator[PromptRecord]:
    """A prompt for each trained message of an SFT record."""
    for index, (message, trained) in enumerate(zip(record.messages, record.loss, strict=True)):
        if not trained:
            continue
        gold = action_of(message)
        made = PromptRecord(
            id=f"{record.id}:{index}",
            messages=record.messages[:index],
            tools=record.tools,
            gold=gold,
            matchers=_matchers_of((gold,), matchers),
            category=str(record.meta.get("category", "")),
            meta={"session_id": record.id, "source": record.source},
        )
        yield from _usable(made, left_out)


def _usable(record: PromptRecord, left_out: LeftOut) -> Iterator[PromptRecord]:
    """``record``, unless nothing could be learnt from its gold."""
    gold = record.gold
    if not record.messages:
        left_out["nothing stands before it"] += 1
    elif not gold.calls and not gold.text.strip():
        left_out["gold is an empty reply"] += 1
    elif action_problem(gold, record.tools) is not None:
        left_out["gold is no valid call"] += 1
    else:
        yield record


def _matchers_of(actions: Iterable[Action | None], matchers: MatcherTable) -> dict[str, dict[str, str]]:
    names = {call.name for action in actions if action is not None for call in action.calls}
    return {name: dict(matchers[name]) for name in sorted(names) if name in matchers}


def manifest_path(path: Path) -> Path:
    """Where the manifest of a file of prompts lies."""
    return path.with_suffix(".manifest.json")


def write_prompts(
    path: Path, records: Iterable[PromptRecord], *, source: str, left_out: LeftOut, force: bool = False
) -> PromptManifest:
    """Write the prompts and their manifest; ``left_out`` is read when all records are.

    Raises ``DataError`` for none at all and for two with one id, ``ConfigError`` when one of the files exists without
    ``force``.
    """
    refuse_existing(manifest_path(path), force=force)
    routes: Counter[str] = Counter()
    categories: Counter[str] = Counter()
    known: set[str] = set()

    def rows() -> Iterator[dict[str, Any]]:
        for record in records:
            if record.id in known:
                raise DataError(f"{record.id!r} comes twice; give each session its own id", path=source, field="id")
            known.add(record.id)
            routes[record.gold.calls[0].name if record.gold.calls else "final_reply"] += 1
            categories[record.category] += 1
            yield _row(record)
        if not known:
            why = "; ".join(f"{count:,}: {reason}" for reason, count in left_out.items())
            empty = "no prompt in it; check the source and the filters"
            raise DataError(f"every decision was left out ({why})" if why else empty, path=source)

    count = write_jsonl(path, rows(), force=force)
    manifest = PromptManifest(
        source=source,
        sha256=sha256_file(path),
        prompts=count,
        per_route=dict(sorted(routes.items())),
        per_category=dict(sorted(categories.items())),
        left_out=dict(sorted(left_out.items())),
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode() + "\n"
    write_text(manifest_path(path), text, force=force)
    return manifest


def _row(record: PromptRecord) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(record)
    return {**body, "messages": messages_to_rows(record.messages)}


def read_prompts(path: Path) -> list[PromptRecord]:
    """All prompts of a file, after its checksum. Equal tool lists are one tuple, so that memory holds them once.

    Raises ``IntegrityError`` when there is no manifest or the bytes are others, ``DataError`` (file, line, field) for
    a record that cannot be read.
    """
    place = manifest_path(path)
    try:
        manifest = msgspec.json.decode(place.read_bytes(), type=PromptManifest)
    except (OSError, msgspec.DecodeError) as error:
        raise IntegrityError(
            f"no manifest of prompts: {error}; write them again: firstchair data rl-prompts", path=str(place)
        ) from None
    if manifest.format != FORMAT:
        raise IntegrityError(f"found {manifest.format!r}; expected {FORMAT!r}", path=str(place), field="format")
    if sha256_file(path) != manifest.sha256:
        raise IntegrityError("the bytes are not those of its manifest; write the prompts again", path=str(path))
    tools: dict[bytes, tuple[Tool, ...]] = {}
    records: list[PromptRecord] = []
    for number, row in read_jsonl(path):
        try:
            records.append(_record(row, tools))
        except DataError as error:
            raise error.at(str(path), number) from None
    return records


def _record(row: dict[str, Any], tools: dict[bytes, tuple[Tool, ...]]) -> PromptRecord:
    key = msgspec.json.encode(row.get("tools"))
    if key not in tools:
        tools[key] = tools_from_rows(row.get("tools"))
    messages, _ = messages_from_rows(row)
    try:
        rest = msgspec.convert({**row, "messages": (), "tools": ()}, PromptRecord)
    except msgspec.ValidationError as error:
        raise DataError(str(error)) from None
    return msgspec.structs.replace(rest, messages=messages, tools=tools[key])


def fit_prompts(
    records: Sequence[PromptRecord],
    renderer: PromptRenderer,
    *,
    max_tokens: int,
    over_long: Literal["error", "skip"] = "error",
) -> tuple[list[PromptRecord], list[str]]:
    """The prompts of at most ``max_tokens`` tokens, and the ids of the longer ones.

    ``max_tokens`` is the model's context window less the reply. Raises ``DataError`` naming the first longer one
    under ``over_long="error"``, and under ``"skip"`` when none is left.
    """
    kept: list[PromptRecord] = []
    skipped: list[str] = []
    for record in records:
        count = len(renderer.prompt_ids(record.messages, record.tools))
        if count <= max_tokens:
            kept.append(record)
        elif over_long == "skip":
            skipped.append(record.id)
        else:
            raise DataError(
                f"{record.id}: the prompt has {count:,} tokens, {max_tokens:,} fit beside a reply; leave it out, "
                "skip such prompts, or take a model with a larger context window",
                field="messages",
            )
    if not kept:
        raise DataError(f"none of {len(records):,} prompts fits {max_tokens:,} tokens", field="messages")
    return kept, skipped
