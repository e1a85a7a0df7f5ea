"""``firstchair train``: a recipe to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    help="Fine-tune a model (sft), copy the shipped one (base), make a tiny one (tiny), merge an adapter (merge).",
)

Recipe = Annotated[Path | None, typer.Argument(help="YAML recipe; without one every field comes from --set.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Override a field: --set optimizer.lr=1e-4.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.command()
def sft(
    recipe: Recipe = None,
    overrides: Set = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the resolved recipe, the token counts and the time; train nothing."),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in `out` from its last checkpoint.")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune on recorded sessions: full weights or LoRA.

    Ctrl-C saves a checkpoint and exits with 1; `--resume` then goes on, and the losses are those of a run that
    was never stopped.
    """
    import os

    from firstchair.cli.train_view import print_plan, print_result
    from firstchair.core.config import load_recipe
    from firstchair.train.config import SftRecipe

    loaded = load_recipe(SftRecipe, recipe, overrides or ())
    if dry_run:
        import tempfile

        from firstchair.train.sft_plan import plan_sft

        with tempfile.TemporaryDirectory(prefix="firstchair-") as scratch:
            print_plan(plan_sft(loaded, scratch=Path(scratch)), as_json=as_json)
        return
    from firstchair.train.sft import train_sft

    try:
        result = train_sft(loaded, resume=resume, force=force, say=lambda text: typer.echo(text, err=True))
    except KeyboardInterrupt:
        begun = (loaded.out / "run.json").is_file()
        advice = f"continue {loaded.out} with --resume" if begun else "nothing was written"
        typer.secho(f"interrupted; {advice}", err=True, fg="yellow")
        raise typer.Exit(1) from None
    if os.environ.get("RANK", "0") == "0":
        print_result(result, as_json=as_json)


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
