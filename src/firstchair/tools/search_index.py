"""A BM25 index of a folder's text files: built, saved, loaded, searched; what did not change is not read anew.

    index/
      search_index.json    format, folder, and of each file: its SHA-256 and its number of passages
      chunks.jsonl         a passage a line: path, line, text; read one by one when they are found
      chunks.npy           where each line begins in it
      words.npy            word ids of all passages, one after the other; words_end.npy: where each passage ends
      bm25/                the scores, as bm25s saves them, with its vocabulary

Scores: BM25 as Lucene computes it (Kamphuis et al. 2020, "Which BM25 do you mean?", table 1), k1 = 1.5, b = 0.75.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from firstchair.core.atomic import atomic_dir, refuse_existing, write_text
from firstchair.core.errors import DataError
from firstchair.core.extras import require
from firstchair.core.globs import glob_match
from firstchair.core.jsontext import dumps, loads, loads_bytes
from firstchair.tools.search_hit import Hit
from firstchair.tools.text_chunks import Chunk, chunks, words

FORMAT = 1
"""Of the index; raised whenever passages or words are cut differently."""
MAX_FILE_BYTES = 4_000_000
MANIFEST = "search_index.json"


@dataclass(frozen=True)
class BuildReport:
    """What building an index met."""

    files: int
    chunks: int
    read: int
    """Files that are new or have changed; the others were taken from the index that was there."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Reason → files."""


@dataclass(frozen=True)
class _File:
    """One file as it goes into the index."""

    path: str
    sha256: str
    rows: tuple[Chunk, ...]
    words: tuple[list[str], ...]
    """Of each passage."""


def build_index(folder: Path, out: Path, *, include: Sequence[str] = (), force: bool = False) -> BuildReport:
    """Index the text files below ``folder`` (those that fit a glob of ``include``, if there are any) at ``out``.

    Hidden files and directories, links, files that are no UTF-8 or larger than 4 MB are left out and counted. With
    ``force`` an index that is there is replaced, and of its passages those of equal files are taken over; when all
    are, it is left as it is.

    Raises ``DataError`` when there is no text, ``ConfigError`` when ``out`` exists without ``force``.
    """
    require("tools")
    refuse_existing(out, force=force)
    if not folder.is_dir():
        raise DataError("no such folder; check the path", path=str(folder))
    old = _known(out)
    skipped: Counter[str] = Counter()
    files: list[_File] = []
    for path in _walk(folder, include, skipped):
        made = _file(folder, path, old, skipped)
        if made is not None and made.rows:
            files.append(made)
    if not files:
        raise DataError(f"no text to index ({dict(skipped) or 'no files'}); check the folder", path=str(folder))
    read = sum(old.get(file.path) is not file for file in files)
    if read or len(files) != len(old):
        with atomic_dir(out, force=force) as temporary:
            _save(temporary, folder, files)
    return BuildReport(len(files), sum(len(file.rows) for file in files), read, dict(skipped))


def _walk(folder: Path, include: Sequence[str], skipped: Counter[str]) -> Iterator[str]:
    """Paths relative to ``folder``, sorted."""
    found = []
    for directory, subdirectories, names in os.walk(folder):
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
        for name in names:
            path = (Path(directory) / name).relative_to(folder).as_posix()
            if path != path.encode("utf-8", "replace").decode("utf-8"):
                skipped["name is no UTF-8"] += 1
            elif name.startswith("."):
                skipped["hidden"] += 1
            elif include and not any(glob_match(pattern, path) for pattern in include):
                skipped["not included"] += 1
            else:
                found.append(path)
    return iter(sorted(found))


def _file(folder: Path, path: str, old: Mapping[str, _File], skipped: Counter[str]) -> _File | None:
    """A file's passages, from ``old`` where its bytes are the same; ``None`` when it is left out."""
    place = folder / path
    if place.is_symlink() or not place.is_file():
        skipped["link or no file"] += 1
        return None
    try:
        if place.stat().st_size > MAX_FILE_BYTES:
            skipped["too large"] += 1
            return None
        raw = place.read_bytes()
    except OSError as error:
        skipped[f"unreadable: {error.strerror}"] += 1
        return None
    digest = hashlib.sha256(raw).hexdigest()
    known = old.get(path)
    if known is not None and known.sha256 == digest:
        return known
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        skipped["no UTF-8 text"] += 1
        return None
    rows = tuple(chunks(text.replace("\r\n", "\n")))
    return _File(path, digest, rows, tuple(words(row.text) for row in rows))


def _save(directory: Path, folder: Path, files: Sequence[_File]) -> None:
    import bm25s

    vocabulary = {word: rank for rank, word in enumerate(sorted({w for f in files for row in f.words for w in row}))}
    ids = [[vocabulary[word] for word in row] for file in files for row in file.words]
    scores = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    scores.index((ids, dict(vocabulary)), show_progress=False)
    scores.save(directory / "bm25", show_progress=False)
    lines = [
        (dumps({"path": file.path, "line": row.line, "text": row.text}) + "\n").encode()
        for file in files
        for row in file.rows
    ]
    (directory / "chunks.jsonl").write_bytes(b"".join(lines))
    np.save(directory / "chunks.npy", np.cumsum([0, *map(len, lines)], dtype=np.int64))
    np.save(directory / "words.npy", np.array([one for row in ids for one in row], dtype=np.int32))
    np.save(directory / "words_end.npy", np.cumsum([len(row) for row in ids], dtype=np.int64))
    known = [{"path": file.path, "sha256": file.sha256, "chunks": len(file.rows)} for file in files]
    write_text(
        directory / MANIFEST, dumps({"format": FORMAT, "folder": str(folder.resolve()), "files": known}) + "\n"
    )


def _known(out: Path) -> dict[str, _File]:
    """The files of an index that is there; none when it cannot be read or is of another format."""
    try:
        with SearchIndex.load(out) as index:
            return index.files()
    except DataError:
        return {}


class SearchIndex:
    """An index on disk, opened; its passages stay there until they are found. A context manager."""

    def __init__(self, directory: Path, manifest: Mapping[str, Any], scores: Any, starts: Any, chunks_fd: int):
        self._directory, self._manifest, self._scores, self._starts = directory, manifest, scores, starts
        self._chunks_fd = chunks_fd

    @classmethod
    def load(cls, directory: Path) -> SearchIndex:
        """Open the index at ``directory``. Raises ``DataError`` when there is none that can be read."""
        require("tools")
        import bm25s

        try:
            manifest = loads((directory / MANIFEST).read_text(encoding="utf-8"))
            if manifest["format"] != FORMAT:
                raise ValueError(f"format {manifest['format']}, expected {FORMAT}")
            scores = bm25s.BM25.load(directory / "bm25", mmap=True, show_progress=False)
            starts = np.load(directory / "chunks.npy", mmap_mode="r")
            return cls(directory, manifest, scores, starts, os.open(directory / "chunks.jsonl", os.O_RDONLY))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"not a search index ({type(error).__name__}: {error}); build one with `firstchair tools index`",
                path=str(directory),
            ) from None

    def search(self, query: str, limit: int) -> list[Hit]:
        """The best passages, best first; equal scores in the order of the files. Passages without any of the query's
        words are no hits.
        """
        known = [word for word in words(query) if word in self._scores.vocab_dict]
        if not known:
            return []
        scores = self._scores.get_scores(known)
        found = np.flatnonzero(scores)
        if len(found) > limit:
            found = found[scores[found] >= np.partition(scores[found], -limit)[-limit]]
        best = found[np.lexsort((found, -scores[found]))[:limit]]
        return [self._hit(int(one), float(scores[one])) for one in best]

    def _hit(self, number: int, score: float) -> Hit:
        row = self._row(number)
        return Hit(row["path"], f"{row['path']}:{row['line']}", row["text"], score)

    def _row(self, number: int) -> dict[str, Any]:
        start, stop = int(self._starts[number]), int(self._starts[number + 1])
        return dict(loads_bytes(os.pread(self._chunks_fd, stop - start, start)))

    def files(self) -> dict[str, _File]:
        """Path → the file as it was indexed, its words included. Raises ``DataError``."""
        try:
            ids = np.load(self._directory / "words.npy")
            ends = np.load(self._directory / "words_end.npy")
        except (OSError, ValueError) as error:
            raise DataError(f"not a whole search index: {error}", path=str(self._directory)) from None
        by_id = {number: word for word, number in self._scores.vocab_dict.items()}
        rows = [[by_id[int(one)] for one in part] for part in np.split(ids, ends[:-1])]
        found: dict[str, _File] = {}
        at = 0
        for entry in self._manifest["files"]:
            numbers = range(at, at + entry["chunks"])
            own = tuple(Chunk(row["line"], row["text"]) for row in map(self._row, numbers))
            found[entry["path"]] = _File(entry["path"], entry["sha256"], own, tuple(rows[n] for n in numbers))
            at += entry["chunks"]
        return found

    def close(self) -> None:
        """Close its files; closing twice is fine."""
        if self._chunks_fd >= 0:
            os.close(self._chunks_fd)
            self._chunks_fd = -1

    def __enter__(self) -> SearchIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
