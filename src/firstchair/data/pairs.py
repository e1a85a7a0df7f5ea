"""Preference pairs on disk: one prompt a line with a better and a worse action, and beside the file its manifest.

pairs.jsonl            {id, source, messages, tools, chosen: [message], rejected: [message], meta}
pairs.manifest.json    what it was made from, sha256, counts

``messages`` is the prompt. Each side is one assistant message: the decision, a call or a reply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec

from firstchair.chat.actions import action_of
from firstchair.chat.messages import Message, Tool
from firstchair.core.atomic import refuse_existing, write_text
from firstchair.core.errors import DataError, IntegrityError
from firstchair.core.hashing import sha256_file
from firstchair.core.jsonl import read_jsonl, write_jsonl
from firstchair.data.corrections import brief, same_action
from firstchair.data.message_rows import messages_from_rows, messages_to_rows, tools_from_rows
from firstchair.data.rl_prompts import manifest_path
from firstchair.traces.checks import check_pairing

FORMAT = "firstchair-pairs/1"
PairSource = Literal["corrected", "groups", "contrast"]


class PreferencePair(msgspec.Struct, frozen=True, kw_only=True):
    """Two actions at one decision, one of them better."""

    id: str
    source: PairSource
    """How it was found: a corrected mistake, two rollouts of a group, two records of a contrastive wave."""
    messages: tuple[Message, ...]
    """The prompt: everything before the decision."""
    tools: tuple[Tool, ...] = ()
    chosen: Message
    rejected: Message
    meta: dict[str, Any] = {}
    """``session_ids`` that it comes from, ``task_id`` where there is one, ``rewards`` of chosen and rejected."""

    def to_row(self) -> dict[str, Any]:
        """The JSON object of the pair."""
        return {
            "id": self.id,
            "source": self.source,
            "messages": messages_to_rows(self.messages),
            "tools": msgspec.to_builtins(self.tools),
            "chosen": messages_to_rows((self.chosen,)),
            "rejected": messages_to_rows((self.rejected,)),
            "meta": self.meta,
        }


class PairManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What ``….manifest.json`` holds."""

    made_from: tuple[str, ...]
    """The sources, in words."""
    sha256: str
    """Of the file."""
    pairs: int
    per_source: dict[str, int]
    per_route: dict[str, int]
    """First tool of the chosen action, or ``final_reply`` → pairs."""
    left_out: dict[str, int]
    """Why something gave no pair → how often, over all that was read."""
    settings: dict[str, Any]
    """Margin, limit, seed, held-out fraction."""
    format: str = FORMAT


def alike(left: Message, right: Message) -> bool:
    """Whether two assistant messages say and do the same: text, thinking, calls in order (their ids aside)."""
    same_words = left.text == right.text and left.thinking == right.thinking
    return same_words and same_action(action_of(left), action_of(right))


def is_empty(message: Message) -> bool:
    """Whether it neither calls nor says anything."""
    return not message.tool_calls and not message.text.strip()


def write_pairs(
    path: Path,
    pairs: Iterable[PreferencePair],
    *,
    made_from: Iterable[str],
    left_out: Mapping[str, int],
    settings: Mapping[str, Any],
    force: bool = False,
) -> PairManifest:
    """Write the pairs and their manifest.

    Raises ``DataError`` for none at all, naming what was left out, and ``ConfigError`` when one of the files exists
    without ``force``.
    """
    refuse_existing(manifest_path(path), force=force)
    sources: Counter[str] = Counter()
    routes: Counter[str] = Counter()
    named = tuple(made_from)

    def rows() -> Iterator[dict[str, Any]]:
        for pair in pairs:
            sources[pair.source] += 1
            routes[pair.chosen.tool_calls[0].name if pair.chosen.tool_calls else "final_reply"] += 1
            yield pair.to_row()
        if not sources:
            why = "; ".join(f"{count:,}: {reason}" for reason, count in sorted(left_out.items()))
            raise DataError(f"no pair in it; left out: {why or 'nothing; check the filters'}", path=", ".join(named))

    count = write_jsonl(path, rows(), force=force)
    manifest = PairManifest(
        made_from=named,
        sha256=sha256_file(path),
        pairs=count,
        per_source=dict(sorted(sources.items())),
        per_route=dict(sorted(routes.items())),
        left_out=dict(sorted(left_out.items())),
        settings=dict(settings),
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode() + "\n"
    write_text(manifest_path(path), text, force=force)
    return manifest


def check_pairs_file(path: Path) -> None:
    """Raise ``IntegrityError`` when a manifest lies beside ``path`` and the bytes are not its; a file of your own
    needs none.
    """
    place = manifest_path(path)
    if not place.is_file():
        return
    try:
        manifest = msgspec.json.decode(place.read_bytes(), type=PairManifest)
    except msgspec.DecodeError as error:
        raise IntegrityError(
            f"no manifest of pairs: {error}; write them again: firstchair data pairs", path=str(place)
        ) from None
    if manifest.format != FORMAT:
        raise IntegrityError(f"found {manifest.format!r}; expected {FORMAT!r}", path=str(place), field="format")
    if sha256_file(path) != manifest.sha256:
        raise IntegrityError("the bytes are not those of its manifest; write the pairs again", path=str(path))


def read_pairs(path: Path) -> Iterator[PreferencePair]:
    """Stream the pairs of a file, after its checksum. Raises ``DataError`` with file, line and field."""
    check_pairs_file(path)
    for number, row in read_jsonl(path):
        try:
            yield pair_from_row(row, default_id=f"{path.name}:{number}")
        except DataError as error:
            raise error.at(str(path), number) from None


def pair_from_row(row: dict[str, Any], *, default_id: str = "") -> PreferencePair:
    """One JSON object as a pair; messages in any form that SFT records have. Raises ``DataError`` with the field."""
    unknown = sorted(set(row) - set(PreferencePair.__struct_fields__))
    if unknown:
        known = ", ".join(PreferencePair.__struct_fields__)
        raise DataError(f"unknown field; known: {known}", field=unknown[0])
    pair_id, source, meta = row.get("id", default_id), str(row.get("source")), row.get("meta", {})
    for field, value, kind in (("id", pair_id, str), ("meta", meta, dict)):
        if not isinstance(value, kind):
            raise DataError(f"found {type(value).__name__}; expected {kind.__name__}", field=field)
    if source not in get_args(PairSource):
        raise DataError(f"found {source!r}; expected one of {', '.join(get_args(PairSource))}", field="source")
    messages, _ = messages_from_rows({"messages": row.get("messages")})
    chosen, rejected = (_side(row.get(name), name, messages) for name in ("chosen", "rejected"))
    if alike(chosen, rejected):
        raise DataError(
            f"both sides are {brief(action_of(chosen), 60)}; a pair has two different ones, remove it",
            field="rejected",
        )
    tools = tools_from_rows(row.get("tools"))
    return PreferencePair(
        id=pair_id,
        source=cast("PairSource", source),
        messages=messages,
        tools=tools,
        chosen=chosen,
        rejected=rejected,
        meta=meta,
    )


def _side(rows: Any, field: str, prompt: tuple[Message, ...]) -> Message:
    """The one assistant message of a side."""
    if not isinstance(rows, list) or len(rows) != 1:
        found = f"{len(rows)} messages" if isinstance(rows, list) else type(rows).__name__
        raise DataError(f"found {found}; expected a list of one assistant message", field=field)
    try:
        messages, _ = messages_from_rows({"messages": rows})
    except DataError as error:
        where = (error.field or "messages").removeprefix("messages")
        raise DataError(error.reason, field=f"{field}{where}") from None
    if len(messages) != 1 or messages[0].role != "assistant":
        raise DataError(
            f"found {', '.join(message.role for message in messages) or 'nothing'}; expected one assistant message",
            field=field,
        )
    if is_empty(messages[0]):
        raise DataError("empty: it neither calls nor says anything; remove the pair", field=field)
    check_pairing((*prompt, messages[0]))
    return messages[0]
