import asyncio
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pypdf
import pytest
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from firstchair.core.errors import RunFailed
from firstchair.tools import pdf_extract
from firstchair.tools.base import Failure, ToolFailed
from firstchair.tools.pdf_extract import PdfExtract, PdfExtractSpec, page_numbers
from firstchair.tools.work_dir import WorkDir


def pdf(*texts: str, password: str | None = None) -> bytes:
    """A PDF with one text a page; an empty one is a page without any."""
    writer = pypdf.PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for text in texts:
        page = writer.add_blank_page(300, 300)
        if text:
            stream = DecodedStreamObject()
            stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
            page[NameObject("/Resources")] = DictionaryObject(
                {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
            )
            page[NameObject("/Contents")] = writer._add_object(stream)
    if password is not None:
        writer.encrypt(password, algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


@pytest.fixture
def work_dir(tmp_path: Path) -> Iterator[WorkDir]:
    opened = WorkDir(tmp_path)
    yield opened
    opened.close()


def read(work_dir: WorkDir, pages: str = "", **limits: Any) -> str:
    tool = PdfExtract(PdfExtractSpec(**limits), work_dir)
    return asyncio.run(tool.run({"path": "a.pdf", **({"pages": pages} if pages else {})}))


def test_pages_come_with_their_numbers(work_dir: WorkDir):
    work_dir.write_bytes("a.pdf", pdf("One", "", "Three"))
    assert read(work_dir, max_pages=2) == (
        "--- page 1 of 3 ---\nOne\n\n--- page 2 of 3 ---\n[no text: a scan, perhaps]"
    )
    assert read(work_dir, "3,1", max_chars=6) == "--- page 3 of 3 ---\nThree\n\n--- page 1 of 3 ---\nO"
    with pytest.raises(ToolFailed, match=r"a\.pdf: has 3 pages; there is no page 4"):
        read(work_dir, "2-4")


def test_a_password_is_asked_for_only_where_it_is_needed(work_dir: WorkDir):
    work_dir.write_bytes("a.pdf", pdf("Open", password=""))
    assert read(work_dir).endswith("Open")
    work_dir.write_bytes("a.pdf", pdf("Shut", password="secret"))
    with pytest.raises(ToolFailed, match="is encrypted with a password"):
        read(work_dir)


def test_a_broken_file_is_the_models_to_read(work_dir: WorkDir):
    work_dir.write_bytes("a.pdf", pdf("x")[:200])
    with pytest.raises(ToolFailed, match=r"failed: .*cannot be read as a PDF"):
        read(work_dir)


def test_a_file_that_inflates_beyond_the_memory_is_too_large(work_dir: WorkDir):
    bomb = pypdf.PdfWriter()
    stream = DecodedStreamObject()
    stream.set_data(b"z" * 4_000_000)
    stream[NameObject("/Filter")] = NameObject("/ASCII85Decode")  # each z is four bytes
    page = bomb.add_blank_page(9, 9)
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): DictionaryObject()})
    page[NameObject("/Contents")] = bomb._add_object(stream)
    out = io.BytesIO()
    bomb.write(out)
    work_dir.write_bytes("a.pdf", out.getvalue())
    with pytest.raises(ToolFailed, match="more than 128 MB") as failed:
        read(work_dir, memory_mb=128)
    assert failed.value.kind is Failure.TOO_LARGE


def test_a_file_without_a_page_says_so(work_dir: WorkDir):
    work_dir.write_bytes("a.pdf", pdf())
    with pytest.raises(ToolFailed, match="has no pages"):
        read(work_dir)


def test_a_file_that_is_too_large_or_missing_starts_nothing(work_dir: WorkDir):
    with pytest.raises(ToolFailed, match="not_found"):
        read(work_dir)
    work_dir.write_bytes("a.pdf", bytes(11))
    with pytest.raises(ToolFailed, match="too_large"):
        read(work_dir, max_file_bytes=10)


PYTHON = sys.executable
WORKERS = {
    "busy": "while True: pass",
    "greedy": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "broken": "import sys; sys.exit('no pypdf here')",
}


@pytest.fixture
def worker(work_dir: WorkDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put another program in the worker's place."""
    work_dir.write_bytes("a.pdf", b"%PDF-")

    def place(name: str) -> Path:
        program, pid = tmp_path / "python", tmp_path / "pid"
        program.write_text(f'#!/bin/sh\necho $$ > {pid}\nexec {PYTHON} -c "{WORKERS[name]}"\n')
        program.chmod(0o755)
        monkeypatch.setattr(pdf_extract.sys, "executable", str(program))
        return pid

    return place


def test_a_worker_that_is_killed_or_breaks_is_told_apart(work_dir: WorkDir, worker: Any):
    worker("greedy")
    with pytest.raises(ToolFailed) as failed:
        read(work_dir)
    assert failed.value.kind is Failure.TOO_LARGE
    worker("broken")
    with pytest.raises(RunFailed, match="no pypdf here"):
        read(work_dir)


def test_a_worker_that_hangs_ends_with_its_call(work_dir: WorkDir, worker: Any):
    pid_file = worker("busy")

    async def cancelled() -> None:
        tool = PdfExtract(PdfExtractSpec(), work_dir)
        task = asyncio.create_task(tool.run({"path": "a.pdf"}))
        while not (pid_file.exists() and pid_file.read_text().strip()):  # noqa: ASYNC110 - another process's sign
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Here and not after the loop's end, which would end it too.
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)

    asyncio.run(cancelled())


@pytest.mark.parametrize(("text", "pages"), [("", []), ("3", [3]), ("1-3, 8", [1, 2, 3, 8]), ("2,1-2", [2, 1])])
def test_pages_are_numbers_and_ranges(text: str, pages: list[int]):
    assert page_numbers(text, 20) == pages


@pytest.mark.parametrize("text", ["0", "3-1", "x", "1-", "-1", "1;2", "1-999999", "1-21"])
def test_pages_that_cannot_be_are_refused(text: str):
    with pytest.raises(ToolFailed, match=r"pages: "):
        page_numbers(text, 20)
