"""Recipes of the trainer: one YAML file is one frozen model, and its defaults are the tested setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from firstchair.chat.renderer import Arguments
from firstchair.core.config import Strict
from firstchair.core.jsontext import content_id
from firstchair.core.seeds import MAX_SEED
from firstchair.data.orchestration.selection import Which

OverLong = Literal["error", "skip", "truncate-left-keep-last"]
BatchLayout = Literal["padded", "packed", "shared"]
Layout = Literal["auto"] | BatchLayout
Reduction = Literal["token", "sample", "constant"]
ScheduleKind = Literal["cosine", "linear", "constant"]
Tracker = Literal["mlflow", "wandb", "trackio"]

MOST = 10**9
"""Bound of every count that has no nearer one: what is above it is a typing mistake."""


def _plain(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.query:
        raise ValueError("expected an address such as http://127.0.0.1:8000/v1, without user or query")
    return url


PlainUrl = Annotated[str, AfterValidator(_plain)]
"""A server's address. No user, password or query in it: they would stand in messages."""


class ServerAddress(Strict):
    """A server that a run asks, and how patiently."""

    base_url: PlainUrl
    api_key_env: str = ""
    """Environment variable that holds the key."""
    tries: int = Field(default=4, ge=1, le=100)
    """Of one request when the server is busy (429), fails (5xx) or cannot be reached."""
    try_s: float = Field(default=120.0, gt=0)
    """Longest wait for one answer."""


class SftData(Strict):
    """What is learnt from, and what the loss is measured on."""

    train: Path
    """SFT records, JSONL (``.gz`` too)."""
    dev: Path | None = None
    """Held-out SFT records; their loss is measured at the start, every ``eval.every`` steps and at the end."""
    select: Which = "all"
    """Which records of both files are taken: all, those that are ``correct``, or ``correct_routed``: correct, and a
    model was asked at least once. What a record is stands in its ``meta``, see ``firstchair trajectories serialize``.
    """
    clean_only: bool = False
    """Take only what passed the clean gate."""
    template: str | None = None
    """A pinned template or a ``.jinja`` file instead of the model's own."""
    tool_format: str | None = None
    """Tool-call syntax; what the template shows when left out."""
    arguments: Arguments = "verbatim"
    """How call arguments are written: as recorded, or ``respaced`` as servers write them that parse them first."""
    history: Literal["segment", "strict"] = "segment"
    """What to do where the template rewrites earlier turns: one row per stretch that serving sees, or an error."""
    max_tokens: int = Field(default=4096, ge=2, le=MOST)
    """Longest row, in tokens; what is longer goes by ``over_long``."""
    over_long: OverLong = "error"
    """``truncate-left-keep-last`` keeps the end, from a message border on where that leaves something to learn."""
    skip_bad: int = Field(default=0, ge=0, le=MOST)
    """How many lines that cannot be read or rendered may be passed over; each is listed."""
    min_rows: int = Field(default=1, ge=1, le=MOST)
    """Refuse to train on fewer rows."""
    min_trained_tokens: int = Field(default=1, ge=1, le=MOST)
    """Refuse to train on fewer tokens in the loss."""
    workers: int = Field(default=0, ge=0, le=1024)
    """Processes that render and tokenise; 0 does it in this one."""
    cache: Path | None = None
    """Where token files are kept for other runs; by default they live in the run directory."""


class Cut(Strict):
    """How a step is cut to fit memory. Cutting never changes the numbers."""

    micro_tokens: int = Field(default=8192, ge=2, le=MOST)
    """Most tokens of one forward pass (padding included)."""
    layout: Layout = "auto"
    """``shared``: rows end to end without seeing each other, what they have in common at their beginning once.
    ``packed``: each row whole. ``padded``: rows of similar length side by side; for architectures that carry state
    over a row's border. ``auto`` tries them on the model in this order; ``shared`` is for CPUs."""


class Batch(Cut):
    """One optimizer step."""

    sessions: int = Field(default=16, ge=1, le=1_000_000)
    """Rows of one optimizer step, over all processes."""
    reduction: Literal["token", "sample"] = "token"
    """``token``: every trained token weighs the same. ``sample``: every row weighs the same."""


class FullMethod(Strict):
    """Train every weight."""

    type: Literal["full"] = "full"


class LoraMethod(Strict):
    """Train low-rank adapters; the base stays as it is."""

    type: Literal["lora"] = "lora"
    rank: int = Field(default=16, ge=1, le=65_536)
    alpha: float = Field(default=32.0, gt=0)
    """The update is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of linear modules (``q_proj``), or all of them but the LM head."""


class AdamW(Strict):
    """AdamW; weight decay acts on matrices, not on norms and biases."""

    type: Literal["adamw"] = "adamw"
    lr: float = Field(default=1e-4, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)


class Muon(Strict):
    """Orthogonalised momentum for the matrices inside the blocks; AdamW for embeddings, head, norms and biases.

    The step of a matrix is scaled to AdamW's usual size (0.2 × sqrt of its longer side), so rates compare.
    """

    type: Literal["muon"] = "muon"
    lr: float = Field(default=1e-3, gt=0)
    """Of the matrices."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    adamw_lr: float = Field(default=1e-3, gt=0)
    """Of everything else."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)


def type_or(default: str) -> Callable[[Any], str]:
    """The ``type`` of a section, or ``default``: so that one field can be set without repeating the type."""

    def read(value: Any) -> str:
        return str(value.get("type", default) if isinstance(value, dict) else getattr(value, "type", default))

    return read


Method = Annotated[
    Annotated[FullMethod, Tag("full")] | Annotated[LoraMethod, Tag("lora")], Discriminator(type_or("full"))
]
Optimizer = Annotated[Annotated[AdamW, Tag("adamw")] | Annotated[Muon, Tag("muon")], Discriminator(type_or("adamw"))]


class Schedule(Strict):
    """Learning rate over steps: warm up from 0, then decay to ``floor`` × peak."""

    kind: ScheduleKind = "cosine"
    warmup_ratio: float = Field(default=0.03, ge=0, lt=1)
    """Part of all steps; rounded up to whole steps when not 0."""
    floor: float = Field(default=0.1, ge=0, le=1)
    """What is left of the rate at the last step; constant schedules have none."""


class EvalNll(Strict):
    """When the held-out loss is measured; always at the start and at the end."""

    every: int | None = Field(default=None, ge=1, le=MOST)
    """Steps between measurements."""
    micro_tokens: int | None = Field(default=None, ge=2, le=MOST)
    """Tokens of one forward pass; ``batch.micro_tokens`` when left out."""


class Save(Strict):
    """Checkpoints to resume from."""

    every: int | None = Field(default=None, ge=1, le=MOST)
    """Steps between checkpoints; one is always written at the end and on Ctrl-C."""
    keep: int = Field(default=2, ge=1, le=MOST)
    """How many of the newest stay."""


class Log(Strict):
    """Trackers beside ``metrics.jsonl``, which is always written."""

    trackers: tuple[Tracker, ...] = ()
    project: str = "firstchair"
    name: str | None = None
    """Name of the run; the name of the run directory when left out."""


class RunRecipe(Strict):
    """What every run of the trainer is told, whatever it trains for."""

    model: Path
    """Directory of the base model, its tokenizer and its chat template."""
    out: Path
    """Run directory; ``model/`` in it is the result."""
    batch: Cut = Cut()
    method: Method = FullMethod()
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Schedule()
    clip_norm: float | None = Field(default=1.0, gt=0)
    """Largest norm of the whole gradient; ``null`` for no clipping."""
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    """``bf16`` multiplies matrices in bfloat16 and keeps weights, gradients and the optimizer in float32; ``auto``
    is ``bf16`` where the device does that in hardware."""
    base_precision: Literal["fp32", "bf16"] = "fp32"
    """How frozen weights are held; only LoRA has any."""
    export_precision: Literal["base", "fp32", "bf16"] = "base"
    """How full weights are written; ``base`` is the type that the base model is stored in."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    save: Save = Save()
    log: Log = Log()

    @model_validator(mode="after")
    def _freezes_something(self) -> Self:
        if self.base_precision != "fp32" and self.method.type != "lora":
            raise ValueError(
                "base_precision is bf16, but only LoRA has frozen weights; leave it out or use method.type=lora"
            )
        return self

    def resolved(self) -> dict[str, Any]:
        """Every field with its value, as JSON."""
        return self.model_dump(mode="json")

    def sha256(self) -> str:
        """Hash of every field that shapes the result: all but where it is written and what is logged."""
        return content_id(self.shaping())

    def shaping(self) -> dict[str, Any]:
        """The fields that a resumed run must share with the run it resumes."""
        fields = self.resolved()
        for name in ("out", "save", "log"):
            del fields[name]
        return fields


class RecordRecipe(RunRecipe):
    """What every run is told that learns from a file of records."""

    data: SftData
    epochs: float = Field(default=1.0, gt=0, le=1_000_000)
    max_steps: int | None = Field(default=None, ge=1, le=MOST)
    """Stop after this many steps and shape the schedule to them, whatever ``epochs`` says."""
    eval: EvalNll = EvalNll()

    def shaping(self) -> dict[str, Any]:
        """As above, without how the tokens are made and where they are kept."""
        fields = super().shaping()
        del fields["data"]["workers"], fields["data"]["cache"]
        return fields


class SftRecipe(RecordRecipe):
    """Supervised fine-tuning on recorded sessions."""

    batch: Batch = Batch()

    @model_validator(mode="after")
    def _fits(self) -> SftRecipe:
        if self.batch.micro_tokens < self.data.max_tokens:
            raise ValueError(
                f"batch.micro_tokens ({self.batch.micro_tokens}) must be at least data.max_tokens "
                f"({self.data.max_tokens}), or the longest row does not fit; raise the first or lower the second"
            )
        if self.eval.micro_tokens is not None and self.eval.micro_tokens < self.data.max_tokens:
            raise ValueError(
                f"eval.micro_tokens ({self.eval.micro_tokens}) must be at least data.max_tokens "
                f"({self.data.max_tokens}); raise it or leave it out"
            )
        return self


class TinyRecipe(Strict):
    """A model of 1 to 5 million random weights with its own tokenizer, for the demo, for tests and for benchmarks."""

    corpus: tuple[Path, ...] = Field(min_length=1)
    """SFT records; the tokenizer learns from their rendered text."""
    out: Path
    vocab_size: int = Field(default=3072, ge=300, le=1_000_000)
    hidden: int = Field(default=128, ge=8, le=65_536)
    layers: int = Field(default=4, ge=1, le=1024)
    heads: int = Field(default=4, ge=1, le=1024)
    intermediate: int = Field(default=384, ge=8, le=1_000_000)
    max_positions: int = Field(default=16384, ge=16, le=16_777_216)
    seed: int = Field(default=0, ge=0, le=MAX_SEED)

    @model_validator(mode="after")
    def _divides(self) -> TinyRecipe:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(
                f"hidden ({self.hidden}) must be an even multiple of heads ({self.heads}), the width of a head"
            )
        return self
