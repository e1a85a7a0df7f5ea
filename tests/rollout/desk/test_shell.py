import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.rollout.desk.shell import COMMANDS, ShellError, run
from firstchair.rollout.desk.world import World, WorldSeed


def world() -> World:
    files = {"notes/a.txt": "one\ntwo\nthree", "notes/b.md": "x", "plans/c.pdf": "owner: A."}
    return World.start(WorldSeed(date="2026-03-04", time="09:15", web=1, files=files, memory=("my hat size is 7",)))


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("ls", "calendar.txt contacts.txt memory.txt notes/ plans/"),
        ("ls notes", "a.txt b.md"),
        ("cat notes/b.md", "x"),
        ("head -n 1 notes/a.txt", "one"),
        ("tail -n 2 notes/a.txt", "two\nthree"),
        ("wc -l notes/a.txt", "3 notes/a.txt"),
        ("echo hello 'big world'", "hello big world"),
        ("pwd", "/"),
        ("date", "2026-03-04 09:15"),
        ("cat memory.txt", "my hat size is 7"),
    ],
)
def test_a_command_prints_what_a_shell_would(command, output):
    assert run(world(), command) == output


def test_commands_change_the_tree_and_nothing_else():
    here = world()
    run(here, "mkdir box")
    run(here, "mv notes/a.txt box")
    run(here, "cp notes/b.md box/copy.md")
    run(here, "echo hi > box/new.txt")
    run(here, "echo there >> box/new.txt")
    run(here, "rm notes/b.md")
    assert {path for path in here.files if path.startswith("box/")} == {"box/a.txt", "box/copy.md", "box/new.txt"}
    assert here.files["box/new.txt"] == "hi\nthere"
    assert "notes/b.md" not in here.files
    run(here, "rm -r box")
    assert here.files.keys() == {"plans/c.pdf"}


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("find . -name x", "find: command not found"),
        ("cat ../../etc/passwd", "outside the workspace"),
        ("cat plans/c.pdf", "binary file"),
        ("rm contacts.txt", "read-only"),
        ("mv nothing.txt x.txt", "no such file"),
        ("mkdir notes", "exists"),
        ("head -n x notes/a.txt", "needs a number"),
        ("echo 'open", "syntax"),
        ("", "empty command"),
        ("cat", "found 0 operands"),
    ],
)
def test_a_bad_command_says_why(command, problem):
    with pytest.raises(ShellError, match=problem):
        run(world(), command)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*COMMANDS, "find"]),
            st.lists(
                st.sampled_from(["notes/a.txt", "notes", "x/y.txt", "-r", "-n", "2", "..", ">", "a.txt"]), max_size=4
            ),
        ),
        max_size=8,
    )
)
def test_any_commands_leave_a_well_formed_tree(commands):
    here = world()
    for name, arguments in commands:
        try:
            run(here, " ".join([name, *arguments]))
        except ShellError:
            continue
    for path in here.files:
        assert path
        assert not path.startswith("/")
        assert not any(other.startswith(path + "/") for other in here.files)
    assert not here.files.keys() & here.records().keys()
