import errno
import os
import stat
from pathlib import Path

import pytest

from firstchair.core.atomic import atomic_dir, atomic_writer, make_dirs, refuse_existing
from firstchair.core.errors import ConfigError, RunFailed


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path):
    target = tmp_path / "set"
    with pytest.raises(ZeroDivisionError), atomic_dir(target) as temporary:
        (temporary / "a").write_text("1")
        raise ZeroDivisionError
    assert not any(tmp_path.iterdir())
    with atomic_dir(target) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "a").write_text("1")
    assert (target / "sub" / "a").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_force_replaces_a_directory_and_only_force(tmp_path: Path):
    target = tmp_path / "set"
    for text in ("old", "new"):
        with atomic_dir(target, force=text == "new") as temporary:
            (temporary / "run.json").write_text(text)
    assert (target / "run.json").read_text() == "new"
    with pytest.raises(ConfigError, match="--force"), atomic_dir(target):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_full_disk_is_a_failed_run_and_leaves_the_old_file(tmp_path: Path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match="No space left"), atomic_writer(path, force=True) as out:
        out.write("new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("below", ["file", "file/deeper"])
def test_a_path_below_a_file_is_refused_by_name(tmp_path: Path, below: str):
    (tmp_path / "file").write_text("mine")
    target, reason = (
        tmp_path / below / "out",
        rf"cannot write {tmp_path / below}/out: {tmp_path}/file is a file, not a directory; choose",
    )
    with pytest.raises(ConfigError, match=reason), atomic_dir(target):
        pass
    with pytest.raises(ConfigError, match=reason), atomic_writer(target):
        pass
    with pytest.raises(ConfigError, match=reason):
        make_dirs(target)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("place", ["/proc/out", "/proc/sub/out", f"/tmp/{'x' * 300}"])
def test_a_path_where_nothing_can_be_made_is_refused(place: str):
    for opened in (atomic_dir(Path(place)), atomic_writer(Path(place))):
        with pytest.raises(ConfigError, match=r"cannot write .*; choose another path"), opened:
            pass


def test_force_replaces_files_by_files_and_our_directories_by_directories(tmp_path: Path):
    mine, file, pipe, empty = (tmp_path / name for name in ("mine", "file", "pipe", "empty"))
    mine.mkdir()
    empty.mkdir()
    (mine / "thesis.txt").write_text("years")
    file.write_text("text")
    os.mkfifo(pipe)
    for path, writer, reason in (
        (mine, atomic_dir, "other things in it"),
        (mine, atomic_writer, "other things in it"),
        (empty, atomic_writer, "is a directory"),
        (file, atomic_dir, "is a file"),
        (pipe, atomic_dir, "pipe"),
        (pipe, atomic_writer, "pipe"),
        (Path(os.devnull), atomic_writer, "device"),
    ):
        with pytest.raises(ConfigError, match=reason), writer(path, force=True):
            pass
    with pytest.raises(ConfigError, match="other things in it"):
        refuse_existing(mine, force=True)
    assert (mine / "thesis.txt").read_text() == "years"
    assert file.read_text() == "text"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with atomic_dir(empty, force=True) as temporary:
        (temporary / "a").write_text("1")
    assert (empty / "a").is_file()


@pytest.mark.parametrize(("mask", "file_mode", "dir_mode"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_what_is_written_keeps_to_the_umask(tmp_path: Path, mask: int, file_mode: int, dir_mode: int):
    before = os.umask(mask)
    try:
        with atomic_writer(tmp_path / "file"), atomic_dir(tmp_path / "dir"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == file_mode
    assert stat.S_IMODE((tmp_path / "dir").stat().st_mode) == dir_mode
