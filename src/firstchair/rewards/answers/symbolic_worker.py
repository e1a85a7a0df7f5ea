"""The process in which a computer algebra system compares two answers: ``python -m …symbolic_worker``.

One JSON array a line on standard input, ``[gold, answer, seconds]``; one word a line on standard output: ``ready``
once at the start, then a ``Comparison`` for each. Whoever started it kills it when it takes too long; nothing here
can be trusted to end by itself.
"""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import sys
from typing import Any

from firstchair.rewards.answers.symbolic import Comparison

MEMORY_BYTES = 4 << 30
"""Address space; a power tower asks for more than any machine has."""


def main() -> None:
    """Serve until standard input ends."""
    with os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1) as out:
        os.dup2(2, 1)  # what a library prints is no verdict
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        logging.disable(logging.CRITICAL)
        compare = _comparer()
        out.write("ready\n")
        for line in sys.stdin:
            gold, answer, seconds = json.loads(line)
            _limit_cpu(seconds)
            out.write(f"{compare(gold, answer)}\n")


def _limit_cpu(seconds: float) -> None:
    """Let the kernel end this process some time after its parent should have, in case there is none any more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime + 2 * seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def _comparer() -> Any:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    targets = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())

    def read(text: str) -> list[Any]:
        # Its own timeouts are signals, which a computation in C does not notice.
        return list(parse(text, extraction_config=targets, fallback_mode="no_fallback", parsing_timeout=None))

    def compare(gold: str, answer: str) -> Comparison:
        golds = read(rf"\boxed{{{gold}}}")
        if not golds:
            return Comparison.GOLD_UNREADABLE
        equal = any(
            found and verify(golds, found, float_rounding=6, timeout_seconds=None)
            for found in (read(rf"\boxed{{{answer}}}"), read(answer))
        )
        return Comparison.EQUAL if equal else Comparison.DIFFERENT

    return compare


if __name__ == "__main__":
    main()
