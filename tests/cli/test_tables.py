"""Lists keep to one line a row and to the width of the terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from firstchair.cli.tables import Column, fitted, number, one_line, print_list, shortened

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
COLUMNS = [Column("session", "middle", least=24), number("calls"), Column("labels", "end")]


def printed(capsys: pytest.CaptureFixture[str], rows: list[list[str]], *, wide: bool = False) -> list[str]:
    print_list(COLUMNS, rows, wide=wide)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_a_row_that_fits_is_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, _, row = printed(capsys, [[ID, "12", "reward=1"]])
    assert row == f"{ID}     12  reward=1"


def test_a_row_that_does_not_fit_is_cut_and_not_folded(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    rows = [[ID, "1,234", "label " * 20], ["short", "5", ""]]
    _, _, first, second = printed(capsys, rows)
    assert cell_len(first) <= 60
    assert first.startswith(ID[:6])
    assert first.split()[0].endswith(ID[-6:])
    assert "1,234" in first
    assert first.endswith("…")
    assert second.split() == ["short", "5"]


def test_a_wide_list_cuts_nothing_in_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    labels = "label " * 20
    _, _, row = printed(capsys, [[ID, "1", labels]], wide=True)
    assert row == f"{ID}      1  {labels.strip()}"


def test_line_breaks_and_control_characters_of_a_recording_stay_out(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, _, row = printed(capsys, [["a\nb\tc", "1", "x \x1b[31mred [bold]kept[/]"]])
    assert row.startswith("a b c")
    assert "\x1b" not in row
    assert row.endswith("[bold]kept[/]")


def test_a_list_without_rows_shows_its_columns(capsys):
    assert printed(capsys, [])[0].split() == ["session", "calls", "labels"]


def test_ids_keep_both_ends_and_texts_their_beginning():
    assert shortened("desk-1-24-3071fd2f05b8", 13, "middle") == "desk-1…2f05b8"
    assert shortened("Rename the file", 9, "end") == "Rename t…"
    assert shortened("Rename", 6, "end") == "Rename"
    assert shortened("Rename", 3, "never") == "Rename"


@given(st.text(max_size=30), st.integers(0, 20), st.sampled_from(["middle", "end"]))
def test_a_shortened_text_never_takes_more_cells_than_it_may(text, width, cut):
    assert cell_len(shortened(one_line(text), width, cut)) <= width


@given(st.lists(st.tuples(st.sampled_from(["never", "middle", "end"]), st.integers(0, 90)), min_size=1, max_size=6))
def test_widths_fit_unless_what_is_never_cut_is_already_too_wide(parts):
    columns = [Column("", cut) for cut, _ in parts]
    natural = [width for _, width in parts]
    widths = fitted(columns, natural, 80)
    assert all(width <= before for width, before in zip(widths, natural, strict=True))
    fixed = [before for column, before in zip(columns, natural, strict=True) if column.cut == "never"]
    assert all(w == n for w, n, c in zip(widths, natural, columns, strict=True) if c.cut == "never")
    assert sum(widths) <= max(80, sum(fixed) + len(parts) - len(fixed))
