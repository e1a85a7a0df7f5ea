"""``apply_patch``: several files of the work dir changed by one patch, all of them or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

from pydantic import Field

from firstchair.chat.messages import Tool
from firstchair.core.config import Strict
from firstchair.tools.base import Failure, ToolFailed, object_schema
from firstchair.tools.file_read import read_text
from firstchair.tools.file_write import refuse_size
from firstchair.tools.patch_text import (
    AddFile,
    Change,
    DeleteFile,
    PatchProblem,
    UpdateFile,
    apply_hunks,
    parse_patch,
)
from firstchair.tools.work_dir import WorkDir, relative

_FORM = """Change files of the work directory with one patch. Its form:
*** Begin Patch
*** Update File: path.py
@@ def greet():
 a line that stays
-a line that goes
+a line that comes
*** Add File: new.txt
+its first line
*** Delete File: old.txt
*** End Patch
There are no line numbers: give three lines around a change, so that its place is the only one; after @@ may stand \
a line of the file that comes before. '*** Move to: PATH' after an Update line renames. A patch that does not fit \
changes nothing."""


MAX_SECTIONS, MAX_HUNKS = 100, 500
"""Of one patch: each costs a look at a whole file."""


class ApplyPatchSpec(Strict):
    """What may be changed."""

    type: Literal["apply_patch"] = "apply_patch"
    max_patch_chars: int = Field(default=200_000, ge=1)
    max_file_bytes: int = Field(default=1_000_000, ge=1)


class ApplyPatch:
    """The tool."""

    timeout_s: float | None = None

    def __init__(self, spec: ApplyPatchSpec, work_dir: WorkDir):
        self._spec, self._work_dir = spec, work_dir
        self.tool = Tool(
            name="apply_patch",
            description=_FORM,
            parameters=object_schema({"patch": {"type": "string"}}, required=("patch",)),
        )

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """What was changed, a line a file."""
        patch, limit = arguments["patch"], self._spec.max_patch_chars
        if len(patch) > limit:
            raise ToolFailed(
                Failure.TOO_LARGE,
                f"the patch has {len(patch):,} characters of at most {limit:,}",
            )
        try:
            files, report = self._planned(parse_patch(patch))
        except PatchProblem as problem:
            raise ToolFailed(Failure.FAILED, f"{problem}. Nothing was changed.") from None
        for path, text in files.items():
            if text is not None:
                self._work_dir.write_bytes(path, text.encode("utf-8"))
        # Last, so that a disk that is full while writing costs no file.
        for path, text in files.items():
            if text is None:
                self._work_dir.delete(path)
        return "\n".join(report)

    async def close(self) -> None:
        """The work dir is closed by who opened it."""

    def _planned(self, changes: tuple[Change, ...]) -> tuple[dict[str, str | None], list[str]]:
        """The files as they shall be (``None``: gone), and what to say of each; nothing is written yet."""
        hunks = sum(len(change.hunks) for change in changes if isinstance(change, UpdateFile))
        for count, most, what in ((len(changes), MAX_SECTIONS, "files"), (hunks, MAX_HUNKS, "hunks")):
            if count > most:
                raise PatchProblem(f"the patch has {count:,} {what} of at most {most}; send several")
        files: dict[str, str | None] = {}
        report: list[str] = []
        for change in changes:
            path = relative(change.path)
            if isinstance(change, AddFile):
                self._refuse_taken(path, files)
                text: str | None = change.text
                target, what = path, "added"
            elif isinstance(change, DeleteFile):
                self._text(path, files)
                text, target, what = None, path, "deleted"
            else:
                text = apply_hunks(self._text(path, files), change.hunks, path)
                target, what = relative(change.move_to or path), "updated"
                if target != path:
                    self._refuse_taken(target, files)
                    files[path] = None
            refuse_size(target, len((text or "").encode("utf-8")), self._spec.max_file_bytes)
            files[target] = text
            report.append(f"{what} {path}" + (f", now {target}" if target != path else ""))
        _refuse_file_as_directory([path for path, text in files.items() if text is not None])
        return files, report

    def _text(self, path: str, files: Mapping[str, str | None]) -> str:
        """The present text of a file, as the patch has left it so far."""
        if path in files:
            text = files[path]
            if text is None:
                raise ToolFailed(Failure.NOT_FOUND, f"{path}: the patch has deleted it above")
            return text
        return read_text(self._work_dir, path, limit=self._spec.max_file_bytes)

    def _refuse_taken(self, path: str, files: Mapping[str, str | None]) -> None:
        taken = files[path] is not None if path in files else self._work_dir.kind(path) is not None
        if taken:
            raise ToolFailed(Failure.FAILED, f"{path}: is there already; use '*** Update File: {path}' to change it")


def _refuse_file_as_directory(paths: Sequence[str]) -> None:
    made = set(paths)
    for path in paths:
        if any(folder in made for folder in accumulate(path.split("/")[:-1], "{}/{}".format)):
            raise PatchProblem(f"{path}: lies in a path that the patch makes a file")
