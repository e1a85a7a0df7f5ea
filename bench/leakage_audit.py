"""The leakage audit at size: time, memory, and how it compares with comparing every pair.

    python bench/leakage_audit.py                        # 10,000 training sessions × 3,000 golden ones
    python bench/leakage_audit.py --left 1000 --right 300

The sessions are made up, as long as real ones (about 520 distinct word runs each, like the airline sessions of
τ-bench), share stock phrases as sessions of one harness do, and one golden session in five is a rewritten copy of a
training session at some distance. Three things are measured in one run: the audit of both files as the command does
it, the same pairs found by comparing every pair exactly on a subsample (ratio), and recall against that brute force.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from pathlib import Path

from firstchair.chat.messages import assistant_message, text_message
from firstchair.data.audit import audit_sources
from firstchair.data.near_duplicates import leaks
from firstchair.data.sft import SftRecord, write_sft
from firstchair.data.similarity import conversation_text, jaccard, shingles

THRESHOLD = 0.6


def vocabulary(rng: random.Random, size: int = 8000) -> list[str]:
    """Made-up words."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(size)]


class Author:
    """Writes conversations out of stock sentences and fresh ones."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.words = vocabulary(self.rng)
        self.stock = [self.sentence() for _ in range(400)]

    def sentence(self) -> str:
        return " ".join(self.rng.choices(self.words, k=self.rng.randint(6, 18)))

    def turns(self) -> list[str]:
        """About 28 messages, a fifth of the sentences stock."""
        texts = []
        for _ in range(self.rng.randint(20, 36)):
            count = self.rng.randint(1, 2)
            texts.append(
                " ".join(
                    self.rng.choice(self.stock) if self.rng.random() < 0.2 else self.sentence() for _ in range(count)
                )
            )
        return texts

    def rewritten(self, texts: list[str], share: float) -> list[str]:
        """The same conversation with ``share`` of its words replaced."""
        return [
            " ".join(self.rng.choice(self.words) if self.rng.random() < share else word for word in text.split())
            for text in texts
        ]


def record(name: str, texts: list[str]) -> SftRecord:
    """A conversation of alternating user and assistant messages."""
    messages = tuple(
        text_message("user", text) if place % 2 == 0 else assistant_message(text) for place, text in enumerate(texts)
    )
    return SftRecord(id=name, messages=messages, loss=tuple(message.role == "assistant" for message in messages))


def corpora(left: int, right: int, seed: int) -> tuple[list[SftRecord], list[SftRecord]]:
    """Training and golden conversations; every fifth golden one is a rewritten training one."""
    author = Author(seed)
    training = [author.turns() for _ in range(left)]
    golden = [
        author.rewritten(training[author.rng.randrange(left)], author.rng.uniform(0.0, 0.12))
        if number % 5 == 0
        else author.turns()
        for number in range(right)
    ]
    return (
        [record(f"train-{number}", texts) for number, texts in enumerate(training)],
        [record(f"golden-{number}", texts) for number, texts in enumerate(golden)],
    )


def against_brute_force(left: int, right: int, seed: int) -> None:
    """Time and recall against comparing every pair exactly, on a smaller corpus."""
    training, golden = corpora(left, right, seed)
    sets = [
        [(own.id, shingles(conversation_text(own.messages))) for own in records] for records in (training, golden)
    ]
    started = time.perf_counter()
    exact = {(a, b) for b, y in sets[1] for a, x in sets[0] if jaccard(x, y) >= THRESHOLD}
    brute_s = time.perf_counter() - started
    started = time.perf_counter()
    found = {(pair.left, pair.right) for pair in leaks(sets[0], sets[1], THRESHOLD)}
    quick_s = time.perf_counter() - started
    assert found <= exact, "an audit never reports a pair below the threshold"
    print(
        f"subsample {left:,} × {right:,}: every pair {brute_s:.1f} s, audit {quick_s:.2f} s, "
        f"{brute_s / quick_s:.0f} times faster; recall {len(found)}/{len(exact)} = {len(found) / len(exact):.4f}"
    )


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--left", type=int, default=10_000)
    parser.add_argument("--right", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        paths = [str(Path(directory) / name) for name in ("training.jsonl", "golden.jsonl")]
        for path, records in zip(paths, corpora(arguments.left, arguments.right, arguments.seed), strict=True):
            write_sft(Path(path), records)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        started = time.perf_counter()
        found = audit_sources(*paths, THRESHOLD)
        took = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"audit {found.left:,} × {found.right:,}: {took:.1f} s with reading both files, {len(found.pairs):,} pairs, "
        f"peak {peak:,.0f} MB (making the corpus took {before:,.0f} MB)"
    )
    against_brute_force(max(50, arguments.left // 5), max(50, arguments.right // 5), arguments.seed + 1)


if __name__ == "__main__":
    main()
