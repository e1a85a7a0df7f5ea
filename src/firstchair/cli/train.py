"""``firstchair train``: a recipe to a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from firstchair.train.config import RecordRecipe
    from firstchair.train.record_run import RecordMethod

Loaded = TypeVar("Loaded", bound="RecordRecipe")

app = typer.Typer(
    no_args_is_help=True,
    help="Fine-tune a model (sft), teach it preferences (dpo), reinforce it (grpo), let a teacher relabel what it "
    "gets itself into (dagger), copy the shipped one (base), make a tiny one (tiny), merge an adapter (merge).",
)

Recipe = Annotated[Path | None, typer.Argument(help="YAML recipe; without one every field comes from --set.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Override a field: --set optimizer.lr=1e-4.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the resolved recipe, the token counts and the time; train nothing.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in `out` from its last checkpoint.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.command()
def sft(
    recipe: Recipe = None,
    overrides: Set = None,
    dry_run: DryRun = False,
    resume: Resume = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune on recorded sessions: full weights or LoRA.

    Ctrl-C saves a checkpoint and exits with 1; `--resume` then goes on, and the losses are those of a run that
    was never stopped.
    """
    from firstchair.core.config import load_recipe
    from firstchair.train.config import SftRecipe

    loaded = load_recipe(SftRecipe, recipe, overrides or ())
    from firstchair.train.sft import SFT

    _on_records(loaded, SFT, dry_run=dry_run, resume=resume, force=force, as_json=as_json)


@app.command()
def dpo(
    recipe: Recipe = None,
    overrides: Set = None,
    dry_run: DryRun = False,
    resume: Resume = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Learn from preference pairs: full weights or LoRA (DPO, IPO). `firstchair data pairs` makes them.

    Ctrl-C saves a checkpoint and exits with 1; `--resume` then goes on, and the losses are those of a run that
    was never stopped.
    """
    from firstchair.core.config import load_recipe
    from firstchair.train.dpo_recipe import DpoRecipe

    loaded = load_recipe(DpoRecipe, recipe, overrides or ())
    from firstchair.train.dpo_run import DPO

    _on_records(loaded, DPO, dry_run=dry_run, resume=resume, force=force, as_json=as_json)


def _on_records(
    recipe: Loaded, method: RecordMethod[Loaded], *, dry_run: bool, resume: bool, force: bool, as_json: bool
) -> None:
    """A run on a file of records, or what it would do."""
    import os

    from firstchair.cli.train_view import print_plan, print_result

    if dry_run:
        import tempfile

        from firstchair.train.sft_plan import plan_on_records

        with tempfile.TemporaryDirectory(prefix="firstchair-") as scratch:
            print_plan(plan_on_records(recipe, method, scratch=Path(scratch)), as_json=as_json)
        return
    from firstchair.core.progress import progress
    from firstchair.train.record_run import train_on_records

    with _interruptible(recipe.out):
        result = train_on_records(
            recipe,
            method,
            resume=resume,
            force=force,
            progress=progress,
            say=_say,
        )
    if os.environ.get("RANK", "0") == "0":
        print_result(result, method.held_out, as_json=as_json)


@app.command()
def grpo(
    recipe: Recipe = None,
    overrides: Set = None,
    resume: Resume = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Reinforce a policy in an environment: groups of rollouts, rewarded by code and judges (GRPO and relatives).

    Ctrl-C saves a checkpoint and exits with 1; `--resume` then plays on with the prompts that come next.
    """
    from firstchair.cli.train_view import print_reinforced
    from firstchair.core.config import load_recipe
    from firstchair.train.grpo_recipe import GrpoRecipe

    loaded = load_recipe(GrpoRecipe, recipe, overrides or ())
    from firstchair.train.grpo_run import train_grpo

    with _interruptible(loaded.out):
        result = train_grpo(loaded, resume=resume, force=force, say=_say)
    print_reinforced(result, as_json=as_json)


@app.command()
def dagger(
    recipe: Recipe = None,
    overrides: Set = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in `out` behind its last finished part.")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Let a policy drive in the desk, relabel what it gets itself into by a teacher, and train on that (DAgger).

    Measures recovery before and after: the share of tasks completed that begin behind a mistake.
    """
    from firstchair.cli.train_view import print_taught
    from firstchair.core.config import load_recipe
    from firstchair.train.dagger_recipe import DaggerRecipe

    loaded = load_recipe(DaggerRecipe, recipe, overrides or ())
    from firstchair.train.dagger_run import train_dagger

    with _interruptible(loaded.out):
        result = train_dagger(loaded, resume=resume, force=force, say=_say)
    print_taught(result, as_json=as_json)


def _say(text: str) -> None:
    """What a run tells beside its result."""
    typer.echo(text, err=True)


@contextmanager
def _interruptible(out: Path) -> Iterator[None]:
    """After Ctrl-C, say how to go on and exit with 1."""
    try:
        yield
    except KeyboardInterrupt:
        begun = (out / "run.json").is_file()
        advice = f"continue {out} with --resume" if begun else "nothing was written"
        typer.secho(f"interrupted; {advice}", err=True, fg="yellow")
        raise typer.Exit(1) from None


@app.command()
def tiny(recipe: Recipe = None, overrides: Set = None, force: Force = False, as_json: AsJson = False) -> None:
    """Make a model of 1 to 5 million random weights with its own tokenizer, trained on the text of SFT records."""
    from firstchair.cli.train_view import print_facts
    from firstchair.core.config import load_recipe
    from firstchair.train.config import TinyRecipe
    from firstchair.train.tiny_recipe import make_tiny

    made = make_tiny(load_recipe(TinyRecipe, recipe, overrides or ()), force=force)
    facts = {
        "model": str(made.directory),
        "parameters": made.parameters,
        "vocabulary": made.vocab_size,
        "records": made.records,
    }
    print_facts("Tiny model", facts, as_json=as_json)


@app.command()
def base(
    out: Annotated[Path, typer.Option(help="Directory of the copy.")],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Copy the tiny base model that ships with the package: it calls tools and knows no platform's rules."""
    from firstchair.cli.train_view import print_facts
    from firstchair.train.base_model import copy_base_model

    copy_base_model(out, force=force)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print_facts("Base model", {"model": str(out), "bytes": size}, as_json=as_json)


@app.command()
def merge(
    adapter: Annotated[Path, typer.Argument(help="Adapter: the model/ folder of a LoRA run.")],
    out: Annotated[Path, typer.Option(help="Directory of the full model.")],
    base: Annotated[
        Path | None, typer.Option(help="Base model; the one that the adapter names, unless given.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make a full model of an adapter and its base."""
    from firstchair.cli.train_view import print_facts
    from firstchair.train.models import merge_adapter

    merge_adapter(adapter, out, base=base, force=force)
    print_facts("Merged", {"model": str(out), "adapter": str(adapter)}, as_json=as_json)
