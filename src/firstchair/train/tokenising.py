"""Renders and tokenises a file of records into a ``TokenSet``, in this process or in several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from firstchair.chat.renderer import Arguments, Renderer
from firstchair.chat.token_conversation import TokenConversation
from firstchair.core.atomic import atomic_dir, write_text
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.hashing import sha256_file
from firstchair.core.jsonl import SkipBad, open_text_bytes, parse_line, read_lines
from firstchair.core.progress import Progress, progress
from firstchair.data.orchestration.selection import left_out_because
from firstchair.data.sft import record_from_row
from firstchair.train.config import SftData
from firstchair.train.examples import Example
from firstchair.train.fitting import Fit, fit_row
from firstchair.train.token_sets import FILES, TokenCounts, TokenManifest, TokenSet, TokenSource

ProgressMaker = Callable[..., AbstractContextManager[Progress]]
"""Opens a progress bar: ``(title, total, unit=…)``."""

LINES_AT_ONCE = 64
"""Lines that a worker process gets at a time."""


@dataclass(frozen=True, slots=True)
class Row:
    """One token stream, or what became of it."""

    fit: Fit
    ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    full_length: int
    """Before truncation."""


class RecordKind(Protocol):
    """What kind of record a line is. Worker processes get it pickled."""

    def check(self, path: Path) -> None:
        """Raise ``IntegrityError`` when the file is known not to be as it was written."""
        ...

    def render(
        self, line: dict[str, Any], default_id: str, renderer: Renderer, source: TokenSource
    ) -> Sequence[TokenConversation]:
        """The token streams of a line. Raises ``DataError`` when it cannot be read or rendered: a bad line."""
        ...

    def rows(self, streams: Sequence[TokenConversation], source: TokenSource) -> list[Row]:
        """The rows of a line. Raises ``DataError`` when they cannot be learnt from, which is never passed over."""
        ...


@dataclass(frozen=True, slots=True)
class SftLines:
    """SFT records: a row for each stretch of the conversation that serving sees."""

    def check(self, path: Path) -> None:
        """Nothing is known of a file of records."""

    def render(
        self, line: dict[str, Any], default_id: str, renderer: Renderer, source: TokenSource
    ) -> Sequence[TokenConversation]:
        """None when no message is trained."""
        record = record_from_row(line, default_id=default_id)
        if not record.trained_spans:
            return ()
        return renderer.segments(record.messages, record.tools, record.loss, source.history)

    def rows(self, streams: Sequence[TokenConversation], source: TokenSource) -> list[Row]:
        """One of each stream."""
        if not streams:
            raise DataError("no message has loss: true, so nothing to learn; remove the record", field="messages")
        return [row_of(stream, source, instead="skip or truncate-left-keep-last") for stream in streams]


@dataclass(frozen=True, slots=True)
class TokenRules:
    """How a record becomes rows; everything a worker process needs."""

    model: Path
    template: str | None
    tool_format: str | None
    arguments: Arguments
    source: TokenSource
    path: Path
    kind: RecordKind

    def renderer(self) -> Renderer:
        """The renderer of the model, or of the template that the recipe names instead."""
        return Renderer.from_pretrained(self.model, self.template, self.tool_format, arguments=self.arguments)


def token_rules(
    path: Path, data: SftData, model: Path, renderer: Renderer, vocab_size: int, kind: RecordKind
) -> TokenRules:
    """The rules for ``path`` (the training or the held-out file of ``data``)."""
    if not path.is_file():
        field = "data.dev" if path == data.dev else "data.train"
        raise ConfigError(f"{field}: {path}: no such file; check the path")
    kind.check(path)
    source = TokenSource(
        data_sha256=sha256_file(path),
        template_hash=renderer.template_hash,
        tokenizer_sha256=sha256_file(model / "tokenizer.json"),
        vocab_size=vocab_size,
        history=data.history,
        max_tokens=data.max_tokens,
        over_long=data.over_long,
        skip_bad=data.skip_bad,
        select=data.select,
        clean_only=data.clean_only,
    )
    return TokenRules(model, data.template, data.tool_format, data.arguments, source, path, kind)


def build_token_set(
    rules: TokenRules, directory: Path, *, renderer: Renderer, workers: int = 0, progress: ProgressMaker = progress
) -> TokenSet:
    """Write the token files of ``rules.path``, or open them when they are there already.

    Raises ``DataError`` (file, line, field) for a record that cannot be read or rendered, that has nothing to learn,
    or that is too long under the policy ``error``; ``IntegrityError`` when the files there were made otherwise.
    """
    if (directory / "manifest.json").is_file():
        found = TokenSet.open(directory)
        if found.source == rules.source:
            return found
    counts = TokenCounts()
    offsets = [0]
    with atomic_dir(directory, force=True) as temporary, progress("tokens", _lines(rules.path), unit="rec") as bar:
        with (temporary / "ids.i32").open("wb") as ids, (temporary / "mask.u8").open("wb") as mask:
            for rows in _rows(rules, renderer, workers, counts):
                bar.advance()
                counts.records += bool(rows)
                for row in rows:
                    _count(row, counts)
                    if len(row.ids):
                        row.ids.tofile(ids)
                        row.loss_mask.tofile(mask)
                        offsets.append(offsets[-1] + len(row.ids))
        np.array(offsets, np.int64).tofile(temporary / "offsets.i64")
        sums = {name: sha256_file(temporary / name) for name in FILES}
        manifest = TokenManifest(source=rules.source, counts=counts, files=sums)
        write_text(temporary / "manifest.json", msgspec.json.encode(manifest).decode() + "\n")
    return TokenSet.open(directory)


def _lines(path: Path) -> int:
    """How many lines the file has, for the progress bar."""
    with open_text_bytes(path) as handle:
        return sum(block.count(b"\n") for block in iter(lambda: handle.read(1 << 20), b""))


def _count(row: Row, counts: TokenCounts) -> None:
    counts.longest = max(counts.longest, row.full_length)
    counts.over_long += row.fit is not Fit.WHOLE
    counts.skipped += row.fit is Fit.SKIPPED
    counts.emptied += row.fit is Fit.EMPTIED
    if row.fit is Fit.TRUNCATED:
        counts.truncated += 1
        counts.truncated_tokens += row.full_length - len(row.ids)
    counts.rows += bool(len(row.ids))
    counts.tokens += len(row.ids)
    counts.trained_tokens += int(np.count_nonzero(row.loss_mask))


def _rows(rules: TokenRules, renderer: Renderer, workers: int, counts: TokenCounts) -> Iterator[list[Row]]:
    """Rows of each record, in file order, none of one that is left out. Why it is left out goes to ``counts``, and so
    do bad lines while the allowance lasts.
    """
    skip = SkipBad(rules.source.skip_bad)
    for outcome in _outcomes(rules, renderer, workers):
        if isinstance(outcome, DataError):
            skip.take(outcome)
            counts.bad_lines.append(str(outcome))
        elif isinstance(outcome, str):
            counts.left_out[outcome] = counts.left_out.get(outcome, 0) + 1
            yield []
        else:
            yield outcome


Outcome = list[Row] | str | DataError
"""The rows of a line, why it is left out, or why it cannot be read or rendered."""


def _outcomes(rules: TokenRules, renderer: Renderer, workers: int) -> Iterator[Outcome]:
    lines = read_lines(rules.path)
    if not workers:
        for numbered in lines:
            yield _outcome(numbered, rules, renderer)
        return
    # Spawned, not forked: a fork of a process with running torch threads can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(rules,)) as pool:
        waiting: list[Any] = []
        while chunk := list(islice(lines, LINES_AT_ONCE)):
            waiting.append(pool.submit(_work, chunk))
            if len(waiting) > 2 * workers:
                yield from waiting.pop(0).result()
        for future in waiting:
            yield from future.result()


_worker: list[tuple[TokenRules, Renderer]] = []
"""In a worker process: its rules and its renderer."""


def _start_worker(rules: TokenRules) -> None:
    _worker[:] = [(rules, rules.renderer())]


def _work(lines: Sequence[tuple[int, bytes | DataError]]) -> list[Outcome]:
    rules, renderer = _worker[0]
    return [_outcome(numbered, rules, renderer) for numbered in lines]


def _outcome(numbered: tuple[int, bytes | DataError], rules: TokenRules, renderer: Renderer) -> Outcome:
    """What becomes of one line. One with nothing to learn, or too long, raises."""
    number, raw = numbered
    kind, source = rules.kind, rules.source
    try:
        if isinstance(raw, DataError):
            raise raw
        line = parse_line(raw)
        if (why := _left_out(line, source)) is not None:
            return why
        streams = kind.render(line, f"{rules.path.name}:{number}", renderer, source)
    except DataError as error:
        return error.at(str(rules.path), number)
    try:
        return kind.rows(streams, source)
    except DataError as error:
        raise error.at(str(rules.path), number) from None


def _left_out(line: dict[str, Any], source: TokenSource) -> str | None:
    meta = line.get("meta")
    try:
        return left_out_because(meta if isinstance(meta, dict) else {}, source.select, clean_only=source.clean_only)
    except DataError as error:
        fix = "data.select: all with data.clean_only: false takes records without it"
        raise DataError(f"{error.reason}; {fix}", field=error.field) from None


def row_of(conversation: TokenConversation, source: TokenSource, *, instead: str) -> Row:
    """The stream as a row, cut as ``source`` says. ``instead``: what else ``data.over_long`` may be.

    Raises ``DataError`` for ids outside the vocabulary, for nothing to learn, and for too long a row under ``error``.
    """
    conversation.validate()
    ids = np.array(conversation.ids, np.int32)
    loss_mask = np.array(conversation.loss_mask, np.bool_)
    Example(ids, loss_mask).validate(vocab_size=source.vocab_size)
    if not loss_mask.any():
        raise DataError("no token is in the loss; is an assistant message empty?", field="messages")
    fit, start = fit_row(conversation.loss_mask, conversation.spans, source.max_tokens, source.over_long)
    if fit is Fit.REFUSED:
        raise DataError(
            f"{len(ids):,} tokens; data.max_tokens is {source.max_tokens:,}; raise it, or set data.over_long to "
            f"{instead}",
            field="messages",
        )
    if fit in (Fit.SKIPPED, Fit.EMPTIED):
        return Row(fit, ids[:0], loss_mask[:0], len(ids))
    cut_mask = loss_mask[start:].copy()
    cut_mask[0] = False
    return Row(fit, ids[start:], cut_mask, len(ids))
