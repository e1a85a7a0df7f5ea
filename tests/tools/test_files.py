import asyncio
import contextlib
import ctypes
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.services import small_disk

from firstchair.core.errors import ConfigError, RunFailed
from firstchair.tools import file_read
from firstchair.tools.apply_patch import ApplyPatch, ApplyPatchSpec
from firstchair.tools.base import Failure, ToolFailed
from firstchair.tools.file_read import FileRead, FileReadSpec
from firstchair.tools.file_write import FileWrite, FileWriteSpec
from firstchair.tools.work_dir import WorkDir

AT_FDCWD, RENAME_EXCHANGE = -100, 2
TEXT = "one\ntwo\nthree\nfour\n"


class Desk:
    """The three file tools on one work dir, and a secret beside it."""

    def __init__(self, folder: Path, **limits: Any):
        self.root, self.secret = folder / "work", folder / "secret.txt"
        self.secret.write_text("secret")
        self.work_dir = WorkDir(self.root)
        (self.root / "a.txt").write_text(TEXT)
        self._read = FileRead(FileReadSpec(**limits), self.work_dir)
        self._write = FileWrite(FileWriteSpec(**limits), self.work_dir)
        self._patch = ApplyPatch(ApplyPatchSpec(**limits), self.work_dir)

    def read(self, path: str, **arguments: Any) -> str:
        return asyncio.run(self._read.run({"path": path, **arguments}))

    def write(self, path: str, content: str) -> str:
        return asyncio.run(self._write.run({"path": path, "content": content}))

    def patch(self, *lines: str) -> str:
        return asyncio.run(self._patch.run({"patch": "\n".join(("*** Begin Patch", *lines, "*** End Patch"))}))

    def files(self) -> dict[str, str]:
        return {str(p.relative_to(self.root)): p.read_bytes().decode() for p in self.root.rglob("*") if p.is_file()}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def fails(kind: Failure, words: str, act: Any, *arguments: Any, **named: Any) -> None:
    with pytest.raises(ToolFailed) as failed:
        act(*arguments, **named)
    assert words in str(failed.value)
    assert failed.value.kind is kind


def test_a_file_is_read_whole_or_by_lines(desk: Desk):
    assert desk.read("a.txt") == TEXT
    assert desk.read("./a.txt", start_line=2, max_lines=2) == "two\nthree\n[lines 2 to 3 of 4]"
    assert desk.read("a.txt", max_lines=9) == "one\ntwo\nthree\nfour"
    fails(Failure.INVALID_ARGUMENTS, "has 4 lines", desk.read, "a.txt", start_line=5)


def test_a_directory_is_listed_with_what_its_names_are(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    (desk.root / "sub").mkdir()
    (desk.root / "link").symlink_to(desk.secret)
    assert desk.read(".") == "a.txt\nlink@\nsub/"
    assert desk.read("sub/") == "sub/: empty directory"
    monkeypatch.setattr(file_read, "MAX_NAMES", 2)
    assert desk.read(".") == "a.txt\nlink@\n[3 names, the first 2 shown]"


def test_a_file_is_written_with_its_directories_and_keeps_its_mode(desk: Desk):
    (desk.root / "a.txt").chmod(0o700)
    assert desk.write("a.txt", "é") == "2 bytes written to a.txt"
    assert desk.write("x/y/b.txt", "b") == "1 bytes written to x/y/b.txt"
    assert desk.files() == {"a.txt": "é", "x/y/b.txt": "b"}
    assert (desk.root / "a.txt").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("../secret.txt", Failure.REFUSED, "'..' is not allowed"),
        ("sub/../../secret.txt", Failure.REFUSED, "'..' is not allowed"),
        ("/etc/passwd", Failure.REFUSED, "is absolute"),
        ("link", Failure.REFUSED, "link"),
        ("dir_link/secret.txt", Failure.REFUSED, "link"),
        ("dangling", Failure.REFUSED, "link"),
        ("loop/x", Failure.REFUSED, "link"),
        ("a.txt/x", Failure.REFUSED, "no directory"),
        ("pipe", Failure.REFUSED, "pipe"),
        ("a\0b", Failure.INVALID_ARGUMENTS, "NUL"),
        ("n" * 300, Failure.INVALID_ARGUMENTS, "too long"),
    ],
)
def test_nothing_outside_is_read_or_written(desk: Desk, path: str, kind: Failure, words: str):
    (desk.root / "link").symlink_to(desk.secret)
    (desk.root / "dir_link").symlink_to(desk.secret.parent)
    (desk.root / "dangling").symlink_to(desk.secret.with_name("new"))
    (desk.root / "loop").symlink_to("loop")
    os.mkfifo(desk.root / "pipe")
    fails(kind, words, desk.read, path)
    fails(kind, words, desk.write, path, "mine now")
    fails(kind, words, desk.patch, f"*** Delete File: {path}")
    assert desk.secret.read_text() == "secret"
    assert not desk.secret.with_name("new").exists()


def test_a_directory_that_turns_into_a_link_meanwhile_leads_nowhere(desk: Desk):
    """Another thread swaps ``sub`` and a link to the outside in one step; no read or write gets through."""
    outside, sub, link = desk.root.parent / "outside", desk.root / "sub", desk.root / "link"
    outside.mkdir()
    sub.mkdir()
    (outside / "f.txt").write_text("secret")
    (sub / "f.txt").write_text("public")
    link.symlink_to(outside)
    libc, stop = ctypes.CDLL(None), threading.Event()

    def swapping() -> None:
        while not stop.is_set():
            libc.renameat2(AT_FDCWD, bytes(sub), AT_FDCWD, bytes(link), RENAME_EXCHANGE)

    thread = threading.Thread(target=swapping)
    thread.start()
    seen = set()
    try:
        for _ in range(100):
            with contextlib.suppress(ToolFailed):
                seen.add(desk.read("sub/f.txt"))
                desk.write("sub/g.txt", "mine")
    finally:
        stop.set()
        thread.join()
    assert seen == {"public"}
    assert os.listdir(outside) == ["f.txt"]


def test_reading_has_limits_and_says_what_is_there(tmp_path: Path):
    desk = Desk(tmp_path, max_file_bytes=20)
    (desk.root / "big").write_text("x" * 21)
    (desk.root / "binary").write_bytes(b"\x89PNG\xff")
    fails(Failure.TOO_LARGE, "more than the 20 bytes", desk.read, "big")
    fails(Failure.FAILED, "5 bytes of binary data", desk.read, "binary")
    fails(Failure.NOT_FOUND, "missing/b.txt: no such file", desk.read, "missing/b.txt")
    fails(Failure.TOO_LARGE, "would have 21 bytes of at most 20", desk.write, "new", "x" * 21)
    fails(Failure.INVALID_ARGUMENTS, "names the work directory", desk.write, ".", "x")
    (desk.root / "sub").mkdir()
    fails(Failure.INVALID_ARGUMENTS, "is a directory", desk.write, "sub", "x")
    assert sorted(os.listdir(desk.root)) == ["a.txt", "big", "binary", "sub"]


def test_a_full_disk_is_no_fault_of_the_model_and_costs_no_file(tmp_path: Path):
    with small_disk(tmp_path / "disk", 1) as disk:
        work = WorkDir(disk / "work")
        work.write_bytes("a.txt", b"old")
        with pytest.raises(RunFailed, match="No space left"):
            work.write_bytes("a.txt", bytes(2_000_000))
        assert work.read_bytes("a.txt", limit=10) == b"old"
        assert work.names(".") == ["a.txt"]
        work.close()


def test_a_work_dir_that_cannot_be_is_the_users_mistake(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"work_dir: .*name a directory"):
        WorkDir(tmp_path / "file")


def test_a_patch_changes_adds_moves_and_deletes(desk: Desk):
    desk.write("gone.txt", "x")
    desk.write("old.py", "def f():\n    return 1\n\n\ndef g():\n    return 1\n")
    report = desk.patch(
        "*** Update File: a.txt",
        " one",
        "-two",
        "+2",
        " three",
        "*** Update File: ./old.py",
        "*** Move to: new/new.py",
        "@@ def g():",
        "-    return 1",
        "+    return 2",
        "",
        "*** Add File: made.txt",
        "+first",
        "+",
        "+third",
        "*** Delete File: gone.txt",
    )
    assert report.split("\n") == [
        "updated a.txt",
        "updated old.py, now new/new.py",
        "added made.txt",
        "deleted gone.txt",
    ]
    assert desk.files() == {
        "a.txt": "one\n2\nthree\nfour\n",
        "new/new.py": "def f():\n    return 1\n\n\ndef g():\n    return 2\n",
        "made.txt": "first\n\nthird\n",
    }


def test_a_later_part_of_a_patch_sees_what_an_earlier_one_did(desk: Desk):
    desk.patch(
        "*** Update File: a.txt", "-one", "+uno", "*** Update File: a.txt", "-uno", "+eins", "*** Add File: b", "+b"
    )
    assert desk.read("a.txt") == "eins\ntwo\nthree\nfour\n"
    fails(
        Failure.NOT_FOUND,
        "deleted it above",
        desk.patch,
        "*** Delete File: b",
        "*** Update File: b",
        "-b",
        "+c",
    )
    desk.patch("*** Delete File: b", "*** Add File: b", "+again")
    assert desk.read("b") == "again\n"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["*** Update File: a.txt", "-nine", "+9"], "there is no line 'nine' in the file; read the file again"),
        (["*** Update File: a.txt", " one", "-three", "+3"], "its lines do not stand together"),
        (["*** Update File: a.txt", "@@ nowhere", "-two", "+2"], "no line 'nowhere'"),
        (["*** Update File: a.txt", "-four", "+4", "@@", "-one", "+1"], "there is no line 'one' after line 4"),
        (["*** Update File: a.txt", "-one", "+1", "*** End of File"], "at the end of the file"),
        (["*** Update File: twice.txt", "-x", "+y"], "stand at lines 1, 3"),
        (["*** Update File: a.txt", " one", " two"], "no change"),
        (["*** Update File: a.txt"], "without a change"),
        (["*** Update File: a.txt", "one", "-two"], "and then 'one'"),
        (["*** Add File: a.txt", "+x"], "is there already"),
        (["*** Add File: b.txt", "no plus"], "every line of an added file begins with '+'"),
        (["*** Update File: twice.txt", "*** Move to: a.txt"], "is there already"),
        (["*** Update File: missing.txt", "-x", "+y"], "no such file"),
        (["*** Add File: d/x", "+1", "*** Add File: d", "+2"], "d/x: lies in a path that the patch makes a file"),
        (["*** Add File: a.txt/x", "+1"], "leads through something that is no directory"),
        ([], "changes no file"),
    ],
)
def test_a_patch_that_does_not_fit_changes_nothing(desk: Desk, lines: list[str], words: str):
    desk.write("twice.txt", "x\n-\nx\n")
    before = desk.files()
    with pytest.raises(ToolFailed) as failed:
        desk.patch("*** Add File: first.txt", "+written first", *lines) if lines else desk.patch()
    assert words in str(failed.value)
    assert desk.files() == before


def test_the_lines_of_a_patch_fit_but_for_white_space_at_their_ends(desk: Desk):
    desk.write("w.txt", "one  \r\n\r\ntwo\r\nlast")
    desk.patch(
        "*** Update File: w.txt", "@@ -1,3 +1,4 @@", " one", "", "-two", "+2", "+2b", " last", "*** End of File"
    )
    assert desk.files()["w.txt"] == "one  \r\n\r\n2\r\n2b\r\nlast"


def test_lines_alone_go_to_the_end_or_after_their_anchor(desk: Desk):
    desk.patch("*** Update File: a.txt", "+five")
    desk.patch("*** Update File: a.txt", "@@ one", "+one and a half")
    assert desk.read("a.txt") == "one\none and a half\ntwo\nthree\nfour\nfive\n"


def test_a_file_with_both_kinds_of_line_ends_is_patched_and_keeps_them(desk: Desk):
    desk.write("mixed.txt", "one\ntwo\r\nthree\nfour\n")
    desk.patch("*** Update File: mixed.txt", "-one", "+1", " two", " three", "+3b")
    assert desk.files()["mixed.txt"] == "1\ntwo\r\nthree\n3b\nfour\n"
    desk.write("open.txt", "one\r\ntwo")
    desk.patch("*** Update File: open.txt", " two", "+three")
    assert desk.files()["open.txt"] == "one\r\ntwo\r\nthree"
    desk.write("open.txt", "")
    desk.patch("*** Update File: open.txt", "+one")
    assert desk.files()["open.txt"] == "one\n"


BLANK = ["*** Update File: a.txt", "*** Move to: b", *[""] * 60_000, "*** Add File: c"]
SLOW = {
    "a context of many equal lines": ["*** Update File: big", *[" "] * 40_000, "-x", "+y"],
    "blank lines before the next file": BLANK,
    "hunks without end": ["*** Update File: numbers", *(f"@@\n-{n}\n+x" for n in range(9_000))],
    "files without end": [f"*** Add File: {n}" for n in range(9_000)],
}


@pytest.mark.timeout(15)
@pytest.mark.parametrize("lines", SLOW.values(), ids=SLOW)
def test_no_patch_keeps_everything_else_waiting(desk: Desk, lines: list[str]):
    """Each took from a minute to hours where lines were looked for one by one; now it is a second."""
    desk.write("big", "\n" * 200_000)
    desk.write("numbers", "".join(f"{n}\n" for n in range(50_000)))
    with contextlib.suppress(ToolFailed):
        desk.patch(*lines)


def test_a_path_too_long_to_list_or_remove_is_refused_before_anything_is_written(desk: Desk):
    for path in ("a/" * 600 + "b", "new/" + "n" * 256):
        fails(Failure.INVALID_ARGUMENTS, "too long", desk.write, path, "x")
        fails(Failure.INVALID_ARGUMENTS, "too long", desk.patch, "*** Add File: b", "+x", f"*** Add File: {path}")
    assert list(desk.files()) == ["a.txt"]
    assert os.listdir(desk.root) == ["a.txt"]


def test_a_text_that_is_no_patch_is_told_its_form(desk: Desk):
    for text in ("", "--- a\n+++ b\n", "*** Begin Patch"):
        with pytest.raises(ToolFailed, match="begins with the line"):
            asyncio.run(ApplyPatch(ApplyPatchSpec(), desk.work_dir).run({"patch": text}))
    small = ApplyPatch(ApplyPatchSpec(max_patch_chars=10), desk.work_dir)
    with pytest.raises(ToolFailed, match="at most 10"):
        asyncio.run(small.run({"patch": "x" * 11}))
