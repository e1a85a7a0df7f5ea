"""Patches in the ``*** Begin Patch`` form (V4A): parsed, and applied to text. Pure functions.

    *** Begin Patch
    *** Update File: src/app.py
    *** Move to: src/main.py
    @@ def greet():
     a line that stays
    -a line that goes
    +a line that comes
    *** Add File: notes.txt
    +its first line
    *** Delete File: old.txt
    *** End Patch

There are no line numbers: a hunk is found by the lines that stay and go. Text after ``@@`` is a line of the file that
the hunk comes after. ``*** End of File`` after a hunk's lines says that they are the last ones.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

BEGIN, END = "*** Begin Patch", "*** End Patch"
_ADD, _UPDATE, _DELETE = "*** Add File: ", "*** Update File: ", "*** Delete File: "
_MOVE, _END_OF_FILE = "*** Move to: ", "*** End of File"
_HEADERS = (_ADD, _UPDATE, _DELETE)
_LINE_NUMBERS = re.compile(r"-\d+(,\d+)? \+\d+(,\d+)? @@.*")
"""What unified diffs write after ``@@``; numbers say nothing here."""


class PatchProblem(ValueError):
    """A patch that cannot be read, or does not fit its file; the message says where and what to do."""


@dataclass(frozen=True)
class Hunk:
    """Lines that stand together, and what they become."""

    anchors: tuple[str, ...]
    """Lines that come before, one after the other; not part of the hunk."""
    lines: tuple[tuple[str, str], ...]
    """``(" ", text)`` for one that stays, ``-`` for one that goes, ``+`` for one that comes."""
    at_end: bool
    line: int
    """Of the patch, counted from 1, where it begins."""

    @property
    def before(self) -> tuple[str, ...]:
        """The lines that must be there."""
        return tuple(text for mark, text in self.lines if mark != "+")


@dataclass(frozen=True)
class AddFile:
    """A new file."""

    path: str
    text: str


@dataclass(frozen=True)
class DeleteFile:
    """A file that goes."""

    path: str


@dataclass(frozen=True)
class UpdateFile:
    """A file that changes, and moves when ``move_to`` is given."""

    path: str
    hunks: tuple[Hunk, ...]
    move_to: str | None


Change = AddFile | DeleteFile | UpdateFile


class _Lines:
    """The lines of a patch, one after the other."""

    def __init__(self, lines: Sequence[str]):
        self._lines, self.at = lines, 0

    @property
    def next(self) -> str | None:
        return self._lines[self.at] if self.at < len(self._lines) else None

    @property
    def next_text(self) -> int:
        """The place of the next line that is not blank; behind the last one where there is none."""
        places = range(self.at, len(self._lines))
        return next((at for at in places if self._lines[at].strip()), len(self._lines))

    def while_(self, wanted: Callable[[str], bool]) -> Iterator[str]:
        while self.next is not None and wanted(self.next):
            self.at += 1
            yield self._lines[self.at - 1]


def parse_patch(patch: str) -> tuple[Change, ...]:
    """The changes of a patch, in order. Raises ``PatchProblem``."""
    lines = patch.strip().replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != BEGIN or lines[-1].rstrip() != END or len(lines) < 2:
        raise PatchProblem(f"a patch begins with the line '{BEGIN}' and ends with '{END}'")
    reader = _Lines(lines[:-1])
    reader.at = 1
    changes: list[Change] = []
    while (line := reader.next) is not None:
        if not line.strip():
            reader.at += 1
            continue
        header = next((header for header in _HEADERS if line.startswith(header)), None)
        if header is None:
            raise PatchProblem(
                f"line {reader.at + 1} of the patch: found {line[:80]!r}; expected '{_ADD}PATH', '{_UPDATE}PATH' or "
                f"'{_DELETE}PATH'; every line of an added file begins with '+'"
            )
        reader.at += 1
        changes.append(_change(header, line.removeprefix(header).strip(), reader))
    if not changes:
        raise PatchProblem("the patch changes no file")
    return tuple(changes)


def _change(header: str, path: str, reader: _Lines) -> Change:
    if header == _DELETE:
        return DeleteFile(path)
    if header == _ADD:
        lines = [line[1:] for line in reader.while_(lambda line: line.startswith("+"))]
        return AddFile(path, "".join(line + "\n" for line in lines))
    moves = list(reader.while_(lambda line: line.startswith(_MOVE)))
    hunks: list[Hunk] = []
    while (line := reader.next) is not None and not line.startswith(_HEADERS):
        if not line.strip():
            blank, reader.at = reader.at, reader.next_text
            if not (reader.next or "").startswith((" ", "-", "+")):
                continue
            reader.at = blank  # they are lines of the hunk too
        hunks.append(_hunk(reader))
    if not hunks and not moves:
        raise PatchProblem(f"{path}: '{_UPDATE.strip()}' without a change; add lines that begin with '-' or '+'")
    return UpdateFile(path, tuple(hunks), moves[-1].removeprefix(_MOVE).strip() if moves else None)


def _hunk(reader: _Lines) -> Hunk:
    start = reader.at + 1
    heads = [line[2:].strip() for line in reader.while_(lambda line: line.startswith("@@"))]
    # An empty line is a context line whose single space was lost, as editors and models do.
    lines = [(line[:1] or " ", line[1:]) for line in reader.while_(lambda line: line[:1] in (" ", "-", "+", ""))]
    at_end = bool(list(reader.while_(lambda line: line.rstrip() == _END_OF_FILE)))
    while not at_end and lines and lines[-1] == (" ", ""):
        lines.pop()  # spacing of the patch before its next section, not of the file
    if all(mark == " " for mark, _ in lines):
        raise PatchProblem(
            f"line {start} of the patch: no change, and then {(reader.next or END)[:80]!r}; lines of a hunk "
            "begin with ' ', '-' or '+'"
        )
    anchors = tuple(head for head in heads if head and not _LINE_NUMBERS.fullmatch(head))
    return Hunk(anchors, tuple(lines), at_end, start)


class _Find:
    """Lines as one text, which is searched many times faster than a list is."""

    def __init__(self, lines: Sequence[str]):
        self._text = "\n".join(("", *lines, ""))
        self._starts = list(accumulate((len(line) + 1 for line in lines), initial=0))

    def places(self, wanted: Sequence[str], start: int, most: int) -> list[int]:
        """Indices from ``start`` on of where ``wanted`` begins, the first ``most`` of them."""
        needle, found = "\n".join(("", *wanted, "")), list[int]()
        at = self._text.find(needle, self._starts[start])
        while at >= 0 and len(found) < most:
            found.append(bisect_left(self._starts, at))
            at = self._text.find(needle, at + 1)
        return found


class _Present:
    """The lines of a file as it is, each with its own end: one file may have both kinds."""

    def __init__(self, text: str):
        self.ending = "\r\n" if 2 * text.count("\r\n") > text.count("\n") else "\n"
        self.is_open = text != "" and not text.endswith("\n")  # no newline after the last line
        self.lines = [line + "\n" for line in text.split("\n")]
        self.lines[-1] = self.lines[-1][:-1]
        if not self.lines[-1]:
            self.lines.pop()

    @cached_property
    def exact(self) -> _Find:
        """Without their ends."""
        return _Find([line.removesuffix("\n").removesuffix("\r") for line in self.lines])

    @cached_property
    def trimmed(self) -> _Find:
        """Without white space at their ends."""
        return _Find([line.rstrip() for line in self.lines])

    def joined(self, lines: Sequence[str]) -> str:
        """``lines`` as the text of the file, whose last line ends as the last one did."""
        whole = "".join(line if line.endswith("\n") else line + self.ending for line in lines)
        return whole.removesuffix("\n").removesuffix("\r") if self.is_open else whole


def apply_hunks(text: str, hunks: Sequence[Hunk], path: str) -> str:
    """``text`` after ``hunks``, which stand in the order of the file. Raises ``PatchProblem``.

    Lines match when they are equal, or equal but for white space at their ends; then the file's own lines stay, each
    with the end that it has, and a line that comes ends as most of the file's do. A hunk whose lines stand at several
    places is refused, unless an ``@@`` line says after which.
    """
    present = _Present(text)
    out: list[str] = []
    cursor = 0
    for hunk in hunks:
        start = _place(present, hunk, cursor, path)
        stop = start + len(hunk.before)
        out += present.lines[cursor:start]
        out += _merged(hunk, present.lines[start:stop], present.ending)
        cursor = stop
    return present.joined(out + present.lines[cursor:])


def _merged(hunk: Hunk, found: Sequence[str], ending: str) -> Iterator[str]:
    """The lines after the hunk; those that stay are taken as the file has them."""
    present = iter(found)
    for mark, text in hunk.lines:
        own = text + ending if mark == "+" else next(present)
        if mark != "-":
            yield own


def _place(present: _Present, hunk: Hunk, cursor: int, path: str) -> int:
    """The index of the hunk's first line."""
    lines, start = present.lines, cursor
    for anchor in hunk.anchors:
        found = next((at for at in range(start, len(lines)) if lines[at].strip() == anchor), None)
        if found is None:
            raise PatchProblem(
                f"{path}: no line '{anchor[:120]}' (the text after @@) {_after(start)}; copy it exactly"
            )
        start = found + 1
    if not hunk.before:
        # Only new lines: after the anchor, or at the end.
        return start if hunk.anchors and not hunk.at_end else len(lines)
    places = _places(present, hunk, start)
    if not places:
        raise PatchProblem(f"{path}: {_not_there(lines, hunk, start)}")
    if len(places) > 1 and not hunk.anchors:
        shown = ", ".join(str(at + 1) for at in places)
        raise PatchProblem(
            f"{path}: the lines of the hunk at line {hunk.line} of the patch stand at lines {shown}; add more lines "
            "around them, or an '@@ LINE' that comes before the right place"
        )
    return places[0]


def _places(present: _Present, hunk: Hunk, start: int) -> list[int]:
    """Where the hunk's lines stand, the first few places: exactly, else but for white space at line ends."""
    if hunk.at_end:
        start = max(start, len(present.lines) - len(hunk.before))
    trimmed = [line.rstrip() for line in hunk.before]
    return present.exact.places(hunk.before, start, 5) or present.trimmed.places(trimmed, start, 5)


def _not_there(lines: Sequence[str], hunk: Hunk, start: int) -> str:
    """Why a hunk has no place: the first of its lines that no line of the file equals, or their order."""
    have = {line.rstrip() for line in lines[start:]}
    missing = next((line for line in hunk.before if line.rstrip() not in have), None)
    where = f"the hunk at line {hunk.line} of the patch"
    if missing is not None:
        return f"{where} does not fit: there is no line {missing[:120]!r} {_after(start)}; read the file again"
    end = " at the end of the file" if hunk.at_end else ""
    return f"{where} does not fit: its lines do not stand together{end} {_after(start)}; read the file again"


def _after(start: int) -> str:
    return f"after line {start}" if start else "in the file"
