"""The whole loop on recorded airline sessions of τ-bench, with the public command line only.

    python examples/tau_airline/run.py FOLDER --out airline-run

FOLDER holds ``tools.json`` (the tool schemas, OpenAI form) and one or more files of trajectories (``*.json``,
``*.jsonl``, each also ``.gz``). Every step is a ``firstchair`` command, printed before it runs; copy any of them.

    traces import ─► catalog infer, validate ─► traces stats ─► data split (by task)
        heldout, reward 1 ─► golden build ─► freeze ─────────┐
        train ─► data sft ─► train sft                       │
                                 │                           │
            shipped base ─► eval replay (before, after) ◄────┘ ─► eval compare, eval report
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from firstchair.train.base_model import base_model_dir

CATALOG = Path(__file__).parent / "catalog.yaml"
RECIPE = Path(__file__).parent / "sft.yaml"
BASE = base_model_dir()
"""The tiny model that ships with the package."""

Run = Callable[[Sequence[str]], int]
"""Runs ``firstchair`` with these arguments; returns its exit code."""


class Stopped(Exception):
    """A step failed, or there is nothing to go on with; the message says why and what to do."""


@dataclass(frozen=True)
class Settings:
    """What the loop runs on."""

    folder: Path
    out: Path
    catalog: Path = CATALOG
    recipe: Path = RECIPE
    model: Path = BASE
    heldout: float = 0.3
    """Share of the tasks that are kept for the golden set."""
    seed: int = 0
    skip_bad: int = 0
    """How many unreadable trajectories may be passed over; they are listed."""
    max_new_tokens: int = 256
    """Longest reply in the replay."""
    constrain: bool = False
    """Whether calls are forced to be valid for their schemas in the replay."""
    overrides: tuple[str, ...] = ()
    """``--set`` of ``train sft``."""


def in_a_process(arguments: Sequence[str]) -> int:
    """Run one command as a user would."""
    return subprocess.run([sys.executable, "-m", "firstchair", *arguments], check=False).returncode


class Loop:
    """The steps, one after the other."""

    def __init__(self, settings: Settings, run: Run = in_a_process):
        self.settings, self.run = settings, run
        self.out = settings.out
        self.store = str(self.out / "traces.db")

    def step(self, *arguments: object, if_it_fails: str = "", findings_are_fine: bool = False) -> int:
        """Print and run one command; raise ``Stopped`` when it fails.

        With ``findings_are_fine`` exit code 1 (the command ran and found something) goes on.
        """
        words = [str(argument) for argument in arguments]
        print(f"\n$ firstchair {shlex.join(words)}", flush=True)
        started = time.monotonic()
        code = self.run(words)
        print(f"  ({time.monotonic() - started:.1f} s)", flush=True)
        if code and not (findings_are_fine and code == 1):
            raise Stopped(
                if_it_fails or f"`firstchair {words[0]} {words[1]}` exited with {code}; see its message above"
            )
        return code

    def everything(self) -> None:
        """All steps."""
        self.recordings()
        self.golden_set()
        self.training()
        self.scores()

    def recordings(self) -> None:
        """Import the folder and look at what is in it."""
        tools, files = find_files(self.settings.folder)
        self.step(
            *("traces", "import", *files, "--format", "tau", "--tools", tools, "--store", self.store),
            *("--skip-bad", self.settings.skip_bad, "--skipped-file", self.out / "skipped.jsonl"),
        )
        self.step("catalog", "infer", self.out / "inferred.yaml", "--store", self.store)
        # Recordings may hold wrong calls; those sessions stay out of the golden set, and the reader sees them here.
        self.step("catalog", "validate", self.settings.catalog, "--store", self.store, findings_are_fine=True)
        self.step("traces", "stats", "--store", self.store)

    def golden_set(self) -> None:
        """Split by task; the held-out sessions that reached the task's goal become the golden set."""
        share = self.settings.heldout
        self.step(
            *("data", "split", self.store, "--by", "task_id", "--stratify", "reward", "--seed", self.settings.seed),
            *("--part", f"train={1 - share:g}", "--part", f"heldout={share:g}", "--out", self.out / "split"),
        )
        self.step(
            *("golden", "build", self.store, "--name", "tau-airline", "--out", self.out / "draft"),
            *("--split", self.out / "split" / "heldout", "--label", "reward=1.0", "--verified"),
            *("--dedup", "0.6", "--drop-invalid"),
            if_it_fails="no golden set: the held-out tasks have no session with reward 1.0 and valid calls. "
            "Record more sessions, raise --heldout, or try another --seed",
        )

    def training(self) -> None:
        """Training records of the other tasks, the frozen set, and what the base model learns."""
        corpus, heldout = self.out / "sft.jsonl", self.out / "heldout.jsonl"
        self.step(
            *("data", "sft", self.store, "--split", self.out / "split" / "train", "--avoid", self.out / "draft"),
            *("--out", corpus),
        )
        # The loss of the sessions that the golden set is made of; nothing is chosen by it.
        self.step(
            *("data", "sft", self.store, "--split", self.out / "split" / "heldout", "--label", "reward=1.0"),
            *("--out", heldout),
        )
        self.step(
            *("golden", "freeze", self.out / "draft", "--out", self.out / "golden"),
            *("--catalog", self.settings.catalog, "--against", corpus),
            if_it_fails="the golden set was not frozen. If the catalog lacks a tool: "
            f"{self.out / 'inferred.yaml'} has the tools of these recordings; read it, add matchers, set "
            "`verified: true`, pass it as --catalog",
        )
        overrides = [
            *(f"model={self.settings.model}", f"data.train={corpus}", f"data.dev={heldout}"),
            f"out={self.out / 'sft'}",
            *self.settings.overrides,
        ]
        self.step("train", "sft", self.settings.recipe, *(word for text in overrides for word in ("--set", text)))

    def scores(self) -> None:
        """Replay the golden set against both models, compare, report."""
        golden = self.out / "golden"
        options = ["--max-new-tokens", self.settings.max_new_tokens]
        options += ["--constrain"] if self.settings.constrain else []
        for name, model in (("before", self.settings.model), ("after", self.out / "sft" / "model")):
            self.step("eval", "replay", golden, "--model", model, "--out", self.out / name, *options)
        self.step("eval", "compare", self.out / "before", self.out / "after", findings_are_fine=True)
        self.step(
            *("eval", "report", self.out / "after", "--baseline", self.out / "before", "--golden", golden),
            *("--out", self.out / "report.html"),
        )


def find_files(folder: Path) -> tuple[Path, list[Path]]:
    """``tools.json`` and the trajectory files of a folder. Raises ``Stopped``."""
    tools = folder / "tools.json"
    if not tools.is_file():
        raise Stopped(f"{tools}: no such file; the folder must hold the tool schemas beside the trajectories")
    endings = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
    files = sorted(file for file in folder.iterdir() if file.name.endswith(endings) and file != tools)
    if not files:
        raise Stopped(f"{folder}: no trajectories; expected files that end in {', '.join(endings)}")
    return tools, files


def main(argv: Sequence[str] | None = None, run: Run = in_a_process) -> int:
    """Run the loop; 0 when every step went through, else 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--out", type=Path, default=Path("airline-run"), help="directory for everything; must not exist"
    )
    parser.add_argument("--catalog", type=Path, default=CATALOG, help="verified catalog of the recorded tools")
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="recipe of `train sft`")
    parser.add_argument("--model", type=Path, default=BASE, help="base model; the one that ships with the package")
    parser.add_argument("--heldout", type=float, default=0.3, help="share of the tasks kept for the golden set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip-bad", type=int, default=0, help="pass over up to this many unreadable trajectories")
    parser.add_argument("--max-new-tokens", type=int, default=256, help="longest reply in the replay")
    parser.add_argument("--constrain", action="store_true", help="force valid calls in the replay")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="override a recipe field")
    given = parser.parse_args(argv)
    settings = Settings(**{**vars(given), "overrides": tuple(given.overrides)})
    try:
        if settings.out.exists():
            raise Stopped(f"{settings.out} exists; choose another --out")
        settings.out.mkdir(parents=True)
        Loop(settings, run).everything()
    except Stopped as reason:
        print(f"\nstopped: {reason}", file=sys.stderr)
        return 1
    print(json.dumps({"report": str(settings.out / "report.html"), "golden": str(settings.out / "golden")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
