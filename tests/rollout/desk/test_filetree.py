import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.rollout.desk.filetree import glob, grep, normalize

SEGMENT = st.text("ab.", min_size=1, max_size=4).filter(lambda name: name.strip("."))
PATHS = st.lists(st.lists(SEGMENT, min_size=1, max_size=3).map("/".join), max_size=6, unique=True)
PATTERNS = st.lists(
    st.text("ab.*?", min_size=1, max_size=4).filter(lambda s: s.strip(".")) | st.just("**"), min_size=1, max_size=4
)


def reference(pattern: list[str], path: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(reference(pattern[1:], path[skip:]) for skip in range(len(path) + 1))
    return bool(path) and bool(re.match(fnmatch.translate(pattern[0]), path[0])) and reference(pattern[1:], path[1:])


@given(PATHS, PATTERNS)
def test_glob_agrees_with_a_plain_recursive_reading(paths, pattern):
    expected = sorted(path for path in paths if reference(pattern, path.split("/")))
    assert glob(paths, "/".join(pattern)) == expected


def test_glob_takes_bounded_time_on_hostile_patterns():
    path = "/".join(["a" * 60] * 40)
    assert glob([path], "/".join(["**", "*a*a*a*a*b"] * 20)) == []


@given(
    st.dictionaries(st.sampled_from(["a/x.txt", "a/b/y.md", "z.txt", "a/p.pdf"]), st.text("ab\n", max_size=12)),
    st.text("aB", min_size=1, max_size=3),
)
def test_grep_finds_exactly_the_lines_that_hold_the_text(files, needle):
    expected = [
        (path, line)
        for path in sorted(files)
        if path.startswith("a/") and not path.endswith(".pdf")
        for line in files[path].split("\n")
        if needle.lower() in line.lower()
    ]
    assert grep(files, needle, "a") == expected


@given(st.text("ab./ ", max_size=20))
def test_a_normal_path_stays_in_the_tree_and_is_its_own_normal_form(path):
    try:
        clean = normalize(path)
    except ValueError:
        return
    assert not clean.startswith("/")
    assert ".." not in clean.split("/")
    assert normalize(clean) == clean


@pytest.mark.parametrize("path", ["..", "../etc/passwd", "a/../../b", "a\0b"])
def test_a_path_out_of_the_tree_is_refused(path):
    with pytest.raises(ValueError, match=r"outside|NUL"):
        normalize(path)
