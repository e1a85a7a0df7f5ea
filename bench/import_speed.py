"""Import of recorded conversations into SQLite: messages a second, and memory against file size.

    python bench/import_speed.py                  # speed, about 120 MB
    python bench/import_speed.py --megabytes 1024 # and the memory of a 1 GB file

Conversations are generated from a seed: an airline desk with 14 tools offered in every record, about 30 messages
each, results of a few hundred to a few thousand bytes. The baseline is what one would write in ten lines: json.loads
a line, one INSERT a message through sqlite3's executemany. It checks nothing, hashes nothing, and importing twice
doubles its rows. "before" is the product's import with the strict JSON reader in pure Python that it began with.
All are timed in one run, in turn, each in a process of its own; the best of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CITIES = ["SFO", "JFK", "LAX", "ORD", "DFW", "ATL", "SEA", "BOS", "PHL", "LGA", "DEN", "MIA"]
WORDS = (  # noqa: SIM905 - a list of words reads better as text
    "the your flight reservation with and for to of will please confirm details payment refund economy business "
    "passenger baggage insurance certificate gift card credit total price date change cancel book would you like "
    "policy available direct departure arrival thank need information user profile membership gold silver regular"
).split(" ")
TOOL_NAMES = (  # noqa: SIM905 - the same
    "book_reservation calculate cancel_reservation get_reservation_details get_user_details list_all_airports "
    "search_direct_flight search_onestop_flight send_certificate think transfer_to_human_agents "
    "update_reservation_baggages update_reservation_flights update_reservation_passengers"
).split(" ")


def make_tools(rng: random.Random) -> list[dict[str, Any]]:
    """Fourteen tool schemas of about 850 bytes each."""
    tools = []
    for name in TOOL_NAMES:
        properties = {
            f"{rng.choice(WORDS)}_{index}": {"type": "string", "description": words(rng, 12)} for index in range(6)
        }
        function = {
            "name": name,
            "description": words(rng, 10),
            "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        }
        tools.append({"type": "function", "function": function})
    return tools


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def reservation(rng: random.Random) -> dict[str, Any]:
    flights = [
        {
            "flight_number": f"HAT{rng.randrange(1000):03d}",
            "date": f"2024-05-{rng.randrange(1, 31):02d}",
            "price": rng.randrange(50, 900),
            "origin": rng.choice(CITIES),
            "destination": rng.choice(CITIES),
        }
        for _ in range(rng.randrange(1, 8))
    ]
    return {"reservation_id": f"{rng.getrandbits(32):08X}", "cabin": "economy", "flights": flights, "insurance": "no"}


def conversation(rng: random.Random, system: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    for _ in range(rng.randrange(4, 10)):
        messages.append({"role": "user", "content": words(rng, rng.randrange(8, 50))})
        for _ in range(rng.randrange(0, 3)):
            call_id = f"call_{rng.getrandbits(96):024x}"
            arguments = json.dumps({"reservation_id": f"{rng.getrandbits(24):06X}", "cabin": "economy"})
            function = {"name": rng.choice(TOOL_NAMES), "arguments": arguments}
            call = {"id": call_id, "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call_id,
                    "name": function["name"],
                    "content": json.dumps(reservation(rng)),
                }
            )
        messages.append({"role": "assistant", "content": words(rng, rng.randrange(20, 120))})
    return messages


def generate(path: Path, megabytes: float, seed: int = 0) -> tuple[int, int]:
    """Write a file of about this size; returns (sessions, messages)."""
    rng = random.Random(seed)
    tools, system = json.dumps(make_tools(rng)), words(rng, 900)
    sessions = messages = size = 0
    with path.open("w", encoding="utf-8") as out:
        while size < megabytes * 1e6:
            rows = conversation(rng, system)
            size += out.write(
                f'{{"id": "s{sessions}", "messages": {json.dumps(rows)}, "tools": {tools}, '
                f'"labels": {{"task_id": {sessions % 50}, "reward": {float(rng.random() < 0.3)}}}}}\n'
            )
            sessions += 1
            messages += len(rows)
    return sessions, messages


def baseline(path: Path, database: Path) -> int:
    """json.loads a line, one row a message."""
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE messages (session TEXT, position INTEGER, role TEXT, body TEXT)")
    count = 0

    def rows() -> Iterator[tuple[str, int, str, str]]:
        nonlocal count
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                for position, message in enumerate(record["messages"]):
                    count += 1
                    yield record["id"], position, message["role"], json.dumps(message)

    with connection:
        connection.executemany("INSERT INTO messages VALUES (?, ?, ?, ?)", rows())
    connection.close()
    return count


def firstchair(path: Path, database: Path) -> int:
    """The product's import, all or nothing."""
    from firstchair.traces.importers import ImportOptions
    from firstchair.traces.importing import import_file
    from firstchair.traces.store import TraceStore

    with TraceStore.open(database) as store:
        return import_file(store, path, "openai", ImportOptions()).messages


def python_reader(path: Path, database: Path) -> int:
    """The product's import as it was before: every line read by the pure-Python strict reader, tools and all."""
    from firstchair.core import jsontext
    from firstchair.traces.importers import base

    jsontext._loads_quickly = lambda raw, max_depth: jsontext._UNSURE  # type: ignore[assignment]
    base._tools_text = lambda line: b""  # type: ignore[assignment]
    return firstchair(path, database)


WAYS = {"baseline": baseline, "before": python_reader, "firstchair": firstchair}


def run_one(way: str, path: Path) -> None:
    """Child: import once, print what it took. Start-up and imports of modules are not counted."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        WAYS[way](path.parent / "warm.jsonl", Path(folder) / "warm.db")
        wall, cpu = time.perf_counter(), time.process_time()
        messages = WAYS[way](path, Path(folder) / "t.db")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"messages": messages, "wall_s": wall, "cpu_s": cpu, "peak_mb": peak}))


def child(way: str, path: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", way, "--file", str(path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed-megabytes", type=float, default=120)
    parser.add_argument("--megabytes", type=float, default=0, help="also import a file of this size, for its memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="where the files are written")
    parser.add_argument("--child", choices=WAYS)
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    if options.child:
        run_one(options.child, options.file)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        generate(Path(folder) / "warm.jsonl", 0.2)
        path = Path(folder) / "speed.jsonl"
        sessions, messages = generate(path, options.speed_megabytes)
        print(f"{path.stat().st_size / 1e6:,.0f} MB, {sessions:,} sessions, {messages:,} messages")
        best: dict[str, dict[str, float]] = {}
        for _ in range(options.rounds):
            for way in WAYS:
                found = child(way, path)
                if way not in best or found["cpu_s"] < best[way]["cpu_s"]:
                    best[way] = found
        for way, found in best.items():
            print(
                f"{way:10}  {found['messages'] / found['wall_s']:>9,.0f} messages/s  "
                f"({found['messages'] / found['cpu_s']:,.0f} a CPU second)  peak {found['peak_mb']:,.0f} MB"
            )
        for way in ("baseline", "before"):
            ratio = best[way]["cpu_s"] / best["firstchair"]["cpu_s"]
            print(f"firstchair against {way}: {ratio:.2f} times as fast by CPU time")
        path.unlink()
        for size in (options.megabytes / 8, options.megabytes) if options.megabytes else ():
            big = Path(folder) / "big.jsonl"
            _, messages = generate(big, size)
            found = child("firstchair", big)
            assert found["messages"] == messages
            print(
                f"{big.stat().st_size / 1e6:,.0f} MB file: peak {found['peak_mb']:,.0f} MB, "
                f"{found['messages'] / found['wall_s']:,.0f} messages/s"
            )
            big.unlink()


if __name__ == "__main__":
    main()
