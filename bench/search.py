"""The local search index: how long building, updating and asking take, and what plain Python takes for the same.

    python bench/search.py                     # 2,000 files, about 20,000 passages
    python bench/search.py --files 200

Files are made up: words of a Zipf-like vocabulary, as text has. The peer is BM25 over an inverted index of
dictionaries, as a page of plain Python does it (no dependency); both give the same best five.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import tempfile
import time
from collections import Counter, defaultdict
from heapq import nlargest
from pathlib import Path

from firstchair.tools.search_index import SearchIndex, build_index
from firstchair.tools.text_chunks import chunks, words

QUERIES = 200


class PlainBm25:
    """BM25 in Lucene's variant, k1 = 1.5, b = 0.75."""

    def __init__(self, documents: list[list[str]]):
        self.lengths = [len(document) for document in documents]
        self.average = sum(self.lengths) / len(documents)
        self.postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, document in enumerate(documents):
            for word, count in Counter(document).items():
                self.postings[word].append((number, count))

    def best(self, query: list[str], limit: int) -> list[int]:
        scores: dict[int, float] = defaultdict(float)
        for word in query:
            found = self.postings.get(word, [])
            idf = math.log(1 + (len(self.lengths) - len(found) + 0.5) / (len(found) + 0.5))
            for number, count in found:
                norm = 1.5 * (0.25 + 0.75 * self.lengths[number] / self.average)
                scores[number] += idf * count / (count + norm)
        return nlargest(limit, scores, key=lambda number: (scores[number], -number))


def write_files(folder: Path, count: int, rng: random.Random) -> list[str]:
    """Made-up files of about 12,000 characters; returns the vocabulary."""
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(30_000)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(vocabulary) + 1)))
    folder.mkdir()
    for number in range(count):
        text = "\n".join(" ".join(rng.choices(vocabulary, cum_weights=weights, k=12)) for _ in range(150))
        (folder / f"{number:06}.txt").write_text(text)
    return vocabulary


def timed(what: str, started: float, count: int = 1) -> None:
    seconds = time.process_time() - started
    print(f"{what}: {seconds / count * (1000 if count > 1 else 1):.2f} {'ms each' if count > 1 else 's'} of CPU")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--files", type=int, default=2_000)
    count, rng = options.parse_args().files, random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place) / "files", Path(place) / "index"
        vocabulary = write_files(folder, count, rng)
        started = time.process_time()
        report = build_index(folder, out)
        timed(f"build: {report.files:,} files, {report.chunks:,} passages", started)
        (folder / "000000.txt").write_text("one file that changed")
        started = time.process_time()
        build_index(folder, out, force=True)
        timed("update after a change of one file", started)
        started = time.process_time()
        index = SearchIndex.load(out)
        timed("load", started)

        queries = [rng.sample(vocabulary[:5_000], 5) for _ in range(QUERIES)]
        started = time.process_time()
        ours = [[hit.url for hit in index.search(" ".join(query), 5)] for query in queries]
        timed("search, five words", started, QUERIES)

        paths = sorted(folder.iterdir())
        rows = [
            (f"{path.name}:{chunk.line}", words(chunk.text)) for path in paths for chunk in chunks(path.read_text())
        ]
        plain = PlainBm25([document for _, document in rows])
        started = time.process_time()
        theirs = [[rows[number][0] for number in plain.best(query, 5)] for query in queries]
        timed("the same in plain Python", started, QUERIES)
        print(f"same best five: {sum(a == b for a, b in zip(ours, theirs, strict=True))} of {QUERIES}")


if __name__ == "__main__":
    main()
