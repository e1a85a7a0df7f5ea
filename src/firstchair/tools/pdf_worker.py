"""The process that reads a PDF for ``pdf_extract``: ``python -m firstchair.tools.pdf_worker``.

A broken or hostile file can keep a parser busy for ever or make it take all memory, and a thread cannot be stopped.
Standard input is a line of JSON and then the file, standard output one JSON object: ``{"pages", "texts"}`` or
``{"problem"}``, which says what is wrong with the file, or ``{"too_large"}``.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import Any

from firstchair.tools.worker_limits import limit_worker


def main() -> None:
    """Read, and say what came of it."""
    head = json.loads(sys.stdin.buffer.readline())
    limit_worker(memory_bytes=head["memory_mb"] << 20, cpu_s=head["cpu_s"])
    logging.disable(logging.CRITICAL)  # pypdf tells all that it forgives
    import pypdf  # before the file is looked at: what fails here is no fault of the file

    try:
        answer = _extracted(pypdf, sys.stdin.buffer.read(), head)
    except MemoryError:
        answer = {"too_large": f"reading it took more than {head['memory_mb']} MB"}
    except Exception as error:  # noqa: BLE001 - a broken file raises anything, and this is a process's main
        answer = {"problem": f"cannot be read as a PDF ({type(error).__name__}: {_unicode(str(error)[:200])})"}
    json.dump(answer, sys.stdout)


def _extracted(pypdf: Any, data: bytes, head: dict[str, Any]) -> dict[str, Any]:
    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return {"problem": "is encrypted with a password; ask for another file"}
    count = len(reader.pages)
    if not count:
        return {"problem": "has no pages"}
    wanted = head["pages"] or list(range(1, min(count, head["max_pages"]) + 1))
    outside = [number for number in wanted if number > count]
    if outside:
        return {"problem": f"has {count} pages; there is no page {outside[0]}"}
    texts: list[tuple[int, str]] = []
    left = head["max_chars"]
    for number in wanted:
        text = _unicode(reader.pages[number - 1].extract_text()[:left])
        left -= len(text)
        texts.append((number, text))
        if left <= 0:
            break
    return {"pages": count, "texts": texts}


def _unicode(text: str) -> str:
    """``text`` without halves of surrogate pairs, which fonts can name and messages can quote."""
    return text.encode("utf-8", "replace").decode("utf-8")


if __name__ == "__main__":
    main()
