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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
    def next_text(self) -> str | None:
        """The next line that is not blank."""
        return next((line for line in self._lines[self.at :] if line.strip()), None)

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
        if not line.strip() and not _goes_on(reader):
            reader.at += 1
            continue
        hunks.append(_hunk(reader))
    if not hunks and not moves:
        raise PatchProblem(f"{path}: '{_UPDATE.strip()}' without a change; add lines that begin with '-' or '+'")
    return UpdateFile(path, tuple(hunks), moves[-1].removeprefix(_MOVE).strip() if moves else None)


def _goes_on(reader: _Lines) -> bool:
    """Whether a hunk's line comes after the blank ones here, which are then its lines too."""
    return (reader.next_text or "").startswith((" ", "-", "+"))


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


def apply_hunks(text: str, hunks: Sequence[Hunk], path: str) -> str:
    """``text`` after ``hunks``, which stand in the order of the file. Raises ``PatchProblem``.

    Lines match when they are equal, or equal but for white space at their ends; then the file's own lines stay. A
    hunk whose lines stand at several places is refused, unless an ``@@`` line says after which.
    """
    ending = "\r\n" if "\r\n" in text else "\n"
    whole = text.split(ending)
    is_open = whole[-1] != ""  # no newline after the last line
    if not is_open:
        whole.pop()
    out: list[str] = []
    cursor = 0
    for hunk in hunks:
        start = _place(whole, hunk, cursor, path)
        stop = start + len(hunk.before)
        out += whole[cursor:start]
        out += _merged(hunk, whole[start:stop])
        cursor = stop
    out += whole[cursor:]
    return ending.join(out) + ("" if is_open or not out else ending)


def _merged(hunk: Hunk, found: Sequence[str]) -> Iterator[str]:
    """The lines after the hunk; those that stay are taken as the file has them."""
    present = iter(found)
    for mark, text in hunk.lines:
        own = text if mark == "+" else next(present)
        if mark != "-":
            yield own


def _place(lines: Sequence[str], hunk: Hunk, cursor: int, path: str) -> int:
    """The index of the hunk's first line."""
    start = cursor
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
    places = _places(lines, hunk.before, start)
    if hunk.at_end:
        places = [at for at in places if at + len(hunk.before) == len(lines)]
    if not places:
        raise PatchProblem(f"{path}: {_not_there(lines, hunk, start)}")
    if len(places) > 1 and not hunk.anchors:
        shown = ", ".join(str(at + 1) for at in places[:5])
        raise PatchProblem(
            f"{path}: the lines of the hunk at line {hunk.line} of the patch stand at lines {shown}; add more lines "
            "around them, or an '@@ LINE' that comes before the right place"
        )
    return places[0]


def _places(lines: Sequence[str], wanted: Sequence[str], start: int) -> list[int]:
    """Where ``wanted`` stands: exactly, else but for white space at line ends."""
    for same in (lambda line: line, str.rstrip):
        target = [same(line) for line in wanted]
        have = [same(line) for line in lines]
        found = [at for at in range(start, len(have) - len(target) + 1) if have[at : at + len(target)] == target]
        if found:
            return found
    return []


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
