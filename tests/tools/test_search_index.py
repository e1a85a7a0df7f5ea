import math
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from firstchair.core.errors import ConfigError, DataError
from firstchair.tools import search_index
from firstchair.tools.search_index import SearchIndex, build_index
from firstchair.tools.text_chunks import CHUNK_CHARS, chunks, words

WORDS = ["red", "green", "blue", "fish", "boat", "sea"]


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def found(index: Path, query: str, limit: int = 10) -> list[tuple[str, float]]:
    with SearchIndex.load(index) as opened:
        return [(hit.url, hit.score or 0.0) for hit in opened.search(query, limit)]


def plain_bm25(documents: list[list[str]], query: list[str], k1: float = 1.5, b: float = 0.75) -> list[float]:
    """BM25 in Lucene's variant, written down from the formula."""
    counts = [Counter(document) for document in documents]
    average = sum(map(len, documents)) / len(documents)
    scores = []
    for document, count in zip(documents, counts, strict=True):
        total = 0.0
        for word in query:
            containing = sum(word in other for other in counts)
            idf = math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))
            total += idf * count[word] / (count[word] + k1 * (1 - b + b * len(document) / average))
        scores.append(total)
    return scores


def test_scores_are_those_of_the_formula(tmp_path: Path):
    rng = random.Random(7)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(3, 30))) for _ in range(40)]
    folder = write(tmp_path / "docs", **{f"f{n:02}": text for n, text in enumerate(texts)})
    build_index(folder, tmp_path / "index")
    wanted = plain_bm25([text.split() for text in texts], ["fish", "boat"])
    have = dict(found(tmp_path / "index", "Fish, boat!", 40))
    assert have == pytest.approx({f"f{n:02}.txt:1": s for n, s in enumerate(wanted) if s > 0}, rel=1e-4)
    best = [score for _, score in found(tmp_path / "index", "fish boat", 5)]
    assert best == pytest.approx(sorted(wanted, reverse=True)[:5], rel=1e-4)


def test_equal_scores_come_in_the_order_of_the_files(tmp_path: Path):
    build_index(write(tmp_path / "docs", b="one fish", a="two fish", c="red fish"), tmp_path / "index")
    assert [url for url, _ in found(tmp_path / "index", "fish", 2)] == ["a.txt:1", "b.txt:1"]


def test_an_update_reads_what_changed_and_equals_a_new_index(tmp_path: Path):
    folder = write(tmp_path / "docs", same="the cat sat", changed="the dog ran", gone="the cow flew")
    build_index(folder, tmp_path / "index")
    write(folder, changed="the dog slept", new="a cat came")
    (folder / "gone.txt").unlink()
    os.utime(folder / "same.txt")  # its bytes count, not its time
    report = build_index(folder, tmp_path / "index", force=True)
    assert (report.files, report.chunks, report.read) == (3, 3, 2)
    build_index(folder, tmp_path / "fresh")
    for query in ("cat", "dog slept", "cow flew", "ran", "the"):
        assert found(tmp_path / "index", query) == found(tmp_path / "fresh", query)
    assert found(tmp_path / "index", "cow") == []
    was = (tmp_path / "index").stat().st_ino
    assert build_index(folder, tmp_path / "index", force=True).read == 0
    assert (tmp_path / "index").stat().st_ino == was


def test_an_index_of_another_format_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write(tmp_path / "docs", a="cat")
    build_index(folder, tmp_path / "index")
    monkeypatch.setattr(search_index, "FORMAT", 99)
    with pytest.raises(DataError, match="format 1, expected 99"):
        SearchIndex.load(tmp_path / "index")
    assert build_index(folder, tmp_path / "index", force=True).read == 1


@pytest.mark.parametrize("broken", ["search_index.json", "chunks.jsonl", "chunks.npy", "bm25/vocab.index.json"])
def test_a_broken_index_is_named_and_built_anew(tmp_path: Path, broken: str):
    folder = write(tmp_path / "docs", a="cat")
    build_index(folder, tmp_path / "index")
    (tmp_path / "index" / broken).unlink()
    with pytest.raises(DataError, match="not a search index"):
        SearchIndex.load(tmp_path / "index")
    if broken != "search_index.json":  # without it nobody can tell that the folder is ours
        assert build_index(folder, tmp_path / "index", force=True).read == 1


def test_nothing_is_replaced_without_being_asked(tmp_path: Path):
    folder = write(tmp_path / "docs", a="cat")
    build_index(folder, tmp_path / "index")
    with pytest.raises(ConfigError, match="pass --force"):
        build_index(folder, tmp_path / "index")
    with pytest.raises(ConfigError, match="does not replace"):
        build_index(folder, folder, force=True)


def test_what_is_no_text_of_ones_own_is_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search_index, "MAX_FILE_BYTES", 100)
    folder = write(tmp_path / "docs", a="cat", big="cat " * 100)
    secret = write(tmp_path / "other", secret="cat secret")
    (folder / "link.txt").symlink_to(secret / "secret.txt")
    (folder / "binary").write_bytes(b"cat \xff\xfe")
    (folder / ".hidden").write_text("cat")
    (folder / ".git").mkdir()
    (folder / ".git" / "x").write_text("cat")
    (folder / "dir_link").symlink_to(secret)
    (folder / "blank.txt").write_text(" \n")
    (Path(os.fsdecode(bytes(folder) + b"/\xff.txt"))).write_text("cat")
    report = build_index(folder, tmp_path / "index")
    assert report.files == 1
    reasons = ("hidden", "link or no file", "too large", "no UTF-8 text", "name is no UTF-8")
    assert report.skipped == dict.fromkeys(reasons, 1)
    assert found(tmp_path / "index", "secret") == []


def test_globs_say_what_is_indexed(tmp_path: Path):
    folder = write(tmp_path / "docs", a="cat")
    (folder / "b.md").write_text("cat")
    assert build_index(folder, tmp_path / "index", include=["*.md"]).skipped == {"not included": 1}
    assert [url for url, _ in found(tmp_path / "index", "cat")] == ["b.md:1"]
    with pytest.raises(DataError, match="no text to index"):
        build_index(folder, tmp_path / "none", include=["*.rst"])
    with pytest.raises(DataError, match="no such folder"):
        build_index(tmp_path / "missing", tmp_path / "none")


def test_passages_hold_the_whole_text_and_know_their_line():
    rng = random.Random(3)
    lines = [rng.choice(["", "word " * rng.randint(1, 60), "x" * rng.randint(1, 3000)]) for _ in range(300)]
    text = "\n".join(lines)
    made = list(chunks(text))
    assert all(0 < len(one.text) <= CHUNK_CHARS for one in made)
    assert "".join("".join(one.text.split()) for one in made) == "".join(text.split())
    short = [one for one in made if len(lines[one.line - 1]) < CHUNK_CHARS]
    assert all(one.text.startswith(lines[one.line - 1]) for one in short)


def test_a_passage_ends_at_a_blank_line_in_its_second_half():
    text = "a" * 700 + "\n\n" + "b" * 300 + "\n"
    assert [(one.line, one.text[0]) for one in chunks(text)] == [(1, "a"), (3, "b")]
    assert len(list(chunks("a" * 300 + "\n\n" + "b" * 300))) == 1


def test_words_are_found_without_case_accents_kept_and_unspaced_scripts_by_character():
    assert words("Straße, snake_case; don't stop 3.14") == [
        "strasse",
        "snake",
        "case",
        "don",
        "t",
        "stop",
        "3",
        "14",
    ]
    assert words("東京 tower") == ["東", "京", "tower"]
    assert words("हिन्दी") == ["हिन्दी"]
