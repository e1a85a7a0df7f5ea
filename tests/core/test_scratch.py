import inspect
import os
import sys

import pytest

from firstchair.core.scratch import remove_tree, scratch_dir


def deep(folder, levels):
    """A chain of directories with a file at its end; longer than any path may be."""
    here = os.getcwd()
    try:
        os.chdir(folder)
        for _ in range(levels):
            os.mkdir("d" * 80)
            os.chdir("d" * 80)
        open("end", "w").close()
    finally:
        os.chdir(here)


def test_a_tree_of_any_depth_is_removed(tmp_path):
    with scratch_dir("firstchair-") as folder:
        deep(folder, 60)
        os.symlink(tmp_path, folder / "link")
        tmp_path.joinpath("kept").write_text("x")
        # Fewer calls within calls than there are levels.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(len(inspect.stack(0)) + 40)
        try:
            remove_tree(folder)
        finally:
            sys.setrecursionlimit(limit)
        assert not folder.exists()
    assert not folder.exists()
    assert tmp_path.joinpath("kept").exists()


def test_modes_do_not_keep_it_from_being_removed(tmp_path):
    tree = tmp_path / "tree"
    (tree / "a" / "b" / "c").mkdir(parents=True)
    (tree / "a" / "b" / "file").write_text("x")
    for folder in ("a/b/c", "a/b", "a", "."):
        (tree / folder).chmod(0)
    remove_tree(tree)
    assert not tree.exists()


def test_it_is_gone_when_the_body_fails():
    with pytest.raises(KeyError), scratch_dir("firstchair-") as folder:
        raise KeyError
    assert not folder.exists()
