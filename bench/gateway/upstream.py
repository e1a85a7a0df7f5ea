"""The provider that all targets ask: scripted upstreams in one process, one port for each kind of answer.

    python bench/gateway/upstream.py

Prints one JSON line, kind → base URL, and serves until its input ends.
"""

from __future__ import annotations

import contextlib
import json
import sys

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import ToolCall
from firstchair.testing.scripted_upstream import Reply, Script, scripted_upstream

WORDS = 64
USAGE = TokenCounts(input=120, output=WORDS)
CALLS = (
    ToolCall(id="call_a1", name="find_flights", arguments='{"origin":"HAM","destination":"OSL","day":"2026-03-01"}'),
    ToolCall(id="call_b2", name="get_booking", arguments='{"booking_id":"K7Q2ZX"}'),
)
LONG = " ".join(f"word{number}" for number in range(WORDS))
ANSWERS = {
    "plain": Reply(text="Your flight leaves on Sunday at four.", usage=USAGE),
    "stream": Reply(text=LONG, usage=USAGE),
    "paced": Reply(text=LONG, usage=USAGE, event_pause_s=0.001),
    "tools": Reply(text="Let me look.", calls=CALLS, usage=USAGE),
}
"""``paced`` sends an event a write with a pause before each, as engines do; the others send all they have at once."""


def main() -> None:
    with contextlib.ExitStack() as stack:
        running = {
            kind: stack.enter_context(scripted_upstream(Script((answer,), record=False)))
            for kind, answer in ANSWERS.items()
        }
        print(json.dumps({kind: upstream.base_url for kind, upstream in running.items()}), flush=True)
        while sys.stdin.readline():
            pass


if __name__ == "__main__":
    main()
