"""The gateway against its peers in front of the same upstream, alternating, in one run.

    python -m venv .venv-litellm && .venv-litellm/bin/pip install 'litellm[proxy]==1.108.7'
    python -m venv .venv-tensorzero && .venv-tensorzero/bin/pip install tensorzero openai
    python bench/gateway/bench.py [--quick] [--only plain,stream] [--targets direct,firstchair,litellm]

    load generator ──▶ direct        the upstream itself
                   ──▶ firstchair    one worker and its sink: keys, ledger, recording, redaction on
                   ──▶ passthrough   the least a Python gateway can be, with nothing of that
                   ──▶ litellm       one worker, a key
                   ──▶ tensorzero    its Rust gateway, observability off

A peer that is not installed is left out with a line that says how to get it. While one target is measured, the
others are stopped (SIGSTOP), so what the sink writes later falls into Firstchair's own rounds. A round is clean when
everything else on the machine used less than ``--max-other`` of a core meanwhile; figures are medians over clean
rounds, and those of a cell without one carry a ``~``. CPU a call is the steadier figure: of every process of the
target but the sink, and of the sink by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import targets
import uvloop
from load_generator import Ask, Measured, drive

SYSTEM = "You are the booking desk of a small airline. Be brief."
TOOL_NAMES = ("find_flights", "get_booking", "change_booking", "refund")
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("origin", "destination", "day", "booking_id")},
}


@dataclass(frozen=True)
class Mode:
    """A kind of traffic."""

    name: str
    answer: str
    """Which upstream answers."""
    dialect: str
    stream: bool
    make: Callable[[], dict[str, Any]]


def chat(text: str = "When does my flight leave? ($N)") -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": 200, "temperature": 0}


def large() -> dict[str, Any]:
    return chat("$N " + "The quick brown fox jumps over the lazy dog. " * 2223)


def agent() -> dict[str, Any]:
    """A session of an agent in Anthropic's words: four tools, one call answered, the next one due."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "get_booking", "input": {"booking_id": "K7Q2ZX"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "HAM to OSL on 2026-03-01, paid"}
    return {
        "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Move booking K7Q2ZX to Monday. ($N)"},
            {"role": "assistant", "content": [{"type": "text", "text": "One moment."}, use]},
            {"role": "user", "content": [result]},
        ],
        "tools": [{"name": name, "description": f"{name}, see there", "input_schema": SCHEMA} for name in TOOL_NAMES],
        "max_tokens": 200,
    }


MODES = (
    Mode("plain", "plain", "openai", False, chat),
    Mode("large", "plain", "openai", False, large),
    Mode("stream", "stream", "openai", True, chat),
    Mode("paced", "paced", "openai", True, chat),
    Mode("translated", "tools", "anthropic", False, agent),
    Mode("translated stream", "tools", "anthropic", True, agent),
)
CONCURRENCY = {
    "plain": (1, 8, 64),
    "large": (1, 8),
    "stream": (1, 8, 64),
    "paced": (8,),
    "translated": (1, 8, 64),
    "translated stream": (8, 64),
}
_TIMES = {"direct": 10}
"""So many times the calls, so that a round lasts long enough to be measured."""


@dataclass
class Round:
    """One target in one cell once."""

    measured: Measured
    worker_s: float
    sink_s: float
    other: float
    """Cores that everything else used."""

    @property
    def rate(self) -> float:
        return self.measured.done / self.measured.wall_s

    def latency(self, share: float) -> float:
        return quantile(self.measured.latency, share)

    @property
    def first(self) -> float:
        return quantile(self.measured.first, 0.5)

    @property
    def worker_ms(self) -> float:
        return 1000 * self.worker_s / max(1, self.measured.done)

    @property
    def sink_ms(self) -> float:
        return 1000 * self.sink_s / max(1, self.measured.done)


@dataclass
class Cell:
    """All rounds of one target in one mode at one concurrency."""

    rounds: list[Round] = field(default_factory=list)
    clean_below: float = 0.0

    @property
    def clean(self) -> list[Round]:
        return [one for one in self.rounds if one.other <= self.clean_below and one.measured.done]

    def median(self, figure: Callable[[Round], float]) -> float:
        rounds = self.clean or [one for one in self.rounds if one.measured.done]
        return statistics.median(map(figure, rounds)) if rounds else float("nan")


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def ask_of(mode: Mode, target: targets.Target) -> Ask:
    body = {"model": target.model.format(mode.answer), **mode.make()}
    if mode.stream:
        body["stream"] = True
    path = "/v1/messages" if mode.dialect == "anthropic" else "/v1/chat/completions"
    headers = dict(target.headers)
    if mode.dialect == "anthropic":
        headers["anthropic-version"] = "2023-06-01"
    terminal = (b"message_stop" if mode.dialect == "anthropic" else b"[DONE]") if mode.stream else b""
    return Ask(target.prefix + path, json.dumps(body).encode(), headers, terminal)


def busy_s() -> float:
    """CPU seconds of the whole machine, what a hypervisor took away included."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def measure(
    target: targets.Target, mode: Mode, upstreams: targets.Upstreams, *, count: int, concurrency: int, limit_s: float
) -> Round:
    """One round after a few calls to warm up."""
    ask, port = ask_of(mode, target), target.ports[mode.answer]
    count *= _TIMES.get(target.name, 1)
    source = psutil.Process(upstreams.process.pid)

    def run(count: int) -> Measured:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(
                drive("127.0.0.1", port, lambda _: ask, count=count, concurrency=concurrency, limit_s=limit_s)
            )

    def ours() -> float:
        spent, mine = source.cpu_times(), os.times()
        return spent.user + spent.system + mine.user + mine.system

    target.resume()
    warm = run(max(8, concurrency))
    target.settle()
    all_before, ours_before, cpu_before = busy_s(), ours(), target.cpu()
    clock = time.perf_counter()
    measured = run(count)
    target.settle()
    wall, cpu = time.perf_counter() - clock, target.cpu()
    worker_s, sink_s = cpu[0] - cpu_before[0], cpu[1] - cpu_before[1]
    other = (busy_s() - all_before - (ours() - ours_before) - worker_s - sink_s) / wall
    target.calls += warm.sent + measured.sent
    target.pause()
    return Round(measured, worker_s, sink_s, max(0.0, other))


def start_all(
    folder: Path, upstreams: targets.Upstreams, options: argparse.Namespace, running: list[targets.Target]
) -> None:
    """Start the targets asked for, one after the other; what cannot be started is left out with a line."""
    makers: dict[str, Callable[[], targets.Target]] = {
        "direct": lambda: targets.direct(upstreams),
        "firstchair": lambda: targets.firstchair(folder, upstreams.urls),
        "passthrough": lambda: targets.passthrough(folder, upstreams),
        "litellm": lambda: targets.litellm(folder, upstreams, options.litellm),
        "tensorzero": lambda: targets.tensorzero(folder, upstreams, options.tensorzero),
    }
    for name in options.targets.split(","):
        try:
            target = makers[name]()
        except targets.NotInstalled as error:
            print(f"{name} is left out: {error}")
            continue
        running.append(target)
        target.pause()


Cells = dict[tuple[str, int, str], Cell]


def run_rounds(
    running: list[targets.Target], upstreams: targets.Upstreams, options: argparse.Namespace, cells: Cells
) -> None:
    """Every cell once a round, the targets in turn; ``cells`` grows, so that a run cut short can report."""
    only = options.only.split(",") if options.only else [mode.name for mode in MODES]
    places = [(mode, at) for mode in MODES if mode.name in only for at in CONCURRENCY[mode.name]]
    for _ in range(options.rounds):
        for mode, concurrency in places:
            count = max(4 * concurrency, options.calls // (1 if concurrency > 1 else 4))
            for target in running:
                if mode.dialect not in target.speaks:
                    continue
                found = measure(
                    target, mode, upstreams, count=count, concurrency=concurrency, limit_s=options.seconds
                )
                key = mode.name, concurrency, target.name
                cells.setdefault(key, Cell([], options.max_other)).rounds.append(found)
                if found.measured.errors:
                    print(f"{mode.name} at {concurrency}, {target.name}: {dict(found.measured.errors)}")


def report(cells: Cells) -> None:
    """One line a cell."""
    print("| mode | at | target | req/s | p50 ms | p99 ms | first token ms | CPU ms a call | sink | clean | other |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (mode, concurrency, name), cell in cells.items():
        # A tilde: no round was clean.
        mark = "" if cell.clean else "~"
        p50 = cell.median(lambda one: one.latency(0.5))
        p99 = cell.median(lambda one: one.latency(0.99))
        first = cell.median(lambda one: one.first)
        sink = f"{cell.median(lambda one: one.sink_ms):.2f}" if name == "firstchair" else ""
        worker = "" if name == "direct" else f"{cell.median(lambda one: one.worker_ms):.2f}"
        other = statistics.median(one.other for one in cell.rounds)
        row = [mode, str(concurrency), name, f"{mark}{cell.median(lambda one: one.rate):,.0f}"]
        row += [f"{p50:.2f}", f"{p99:.2f}", f"{first:.2f}", worker, sink]
        print("| " + " | ".join([*row, f"{len(cell.clean)}/{len(cell.rounds)}", f"{other:.2f}"]) + " |")


def report_ratios(cells: Cells) -> None:
    """Firstchair against the others, from the same run."""
    print()
    for (mode, concurrency, name), cell in cells.items():
        if name != "firstchair":
            continue
        parts = []
        for peer in ("litellm", "tensorzero", "passthrough"):
            other = cells.get((mode, concurrency, peer))
            if other is not None:
                rate = cell.median(lambda one: one.rate) / other.median(lambda one: one.rate)
                cpu = other.median(lambda one: one.worker_ms) / cell.median(lambda one: one.worker_ms)
                parts.append(f"{rate:.2f} × {peer} (CPU {cpu:.2f} ×)")
        base = cells.get((mode, concurrency, "direct"))
        if base is not None and concurrency == 1:
            added = [
                cell.median(figure) - base.median(figure)
                for figure in (lambda one: one.latency(0.5), lambda one: one.latency(0.99), lambda one: one.first)
            ]
            parts.append(
                f"adds {added[0]:.2f} ms median, {added[1]:.2f} ms p99, {added[2]:.2f} ms to the first token"
            )
        print(f"{mode} at {concurrency}: " + ", ".join(parts))
    for name in dict.fromkeys(name for _, _, name in cells):
        plain, paced = cells.get(("plain", 8, name)), cells.get(("paced", 8, name))
        if plain is None or paced is None or name == "direct":
            continue
        events = paced.median(lambda one: one.measured.events / one.measured.done)
        a_call = paced.median(lambda one: one.worker_ms) - plain.median(lambda one: one.worker_ms)
        print(f"{name}: {a_call / events:.4f} ms CPU a streamed event, {events:.0f} events an answer, one at a time")


def finish(running: list[targets.Target]) -> None:
    """Memory, start-up, and what the sink cost in all, sessions included."""
    print()
    for target in running:
        if target.process is None:
            continue
        target.resume()
        rss = target.rss_mb()
        sink = f", sink {rss[1]:.0f} MB" if target.spool is not None else ""
        print(f"{target.name}: started in {target.start_s:.2f} s; {rss[0]:.0f} MB after {target.calls} calls{sink}")
        if target.spool is not None:
            print(f"firstchair's sink, sessions written: {1000 * last_sink_cpu(target) / target.calls:.2f} ms a call")


def last_sink_cpu(target: targets.Target) -> float:
    """CPU seconds of the sink over its whole life: the gateway is ended and the sink drained."""
    process = target.process
    assert process is not None
    sink = psutil.Process(target.sink_pid() or process.pid)
    used = 0.0
    process.terminate()
    while process.poll() is None:
        try:
            times = sink.cpu_times()
            used = times.user + times.system
        except psutil.NoSuchProcess:
            break
        time.sleep(0.05)
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short rounds instead of five longer ones")
    parser.add_argument("--targets", default="direct,firstchair,passthrough,litellm,tensorzero")
    parser.add_argument("--only", default="", help=f"some of: {', '.join(mode.name for mode in MODES)}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--calls", type=int, help="of a round; a quarter of it at concurrency 1")
    parser.add_argument("--seconds", type=float, help="a round of a slow target ends after so long")
    parser.add_argument("--max-other", type=float, default=0.15, help="cores that others may use in a clean round")
    parser.add_argument("--litellm", type=Path, default=Path(".venv-litellm/bin/litellm"))
    parser.add_argument("--tensorzero", type=Path, default=Path(".venv-tensorzero/bin/python"))
    options = parser.parse_args()
    # So that what was started is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.calls = options.calls or (600 if options.quick else 4000)
    options.seconds = options.seconds or (1.0 if options.quick else 5.0)
    running: list[targets.Target] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        upstreams = targets.Upstreams(folder)
        try:
            start_all(folder, upstreams, options, running)
            load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
            print(f"load {load} on {os.cpu_count()} cores; {options.rounds} rounds of up to {options.calls} calls")
            cells: Cells = {}
            try:
                run_rounds(running, upstreams, options, cells)
            finally:
                report(cells)
                report_ratios(cells)
            finish(running)
        finally:
            for target in running:
                target.stop()
            targets.end(upstreams.process)


if __name__ == "__main__":
    main()
