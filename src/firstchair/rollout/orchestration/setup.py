"""What a run of orchestrations is made of, as one YAML file; and the one place where it is opened.

catalog: my_experts.yaml
experts: [qwen3_5_9b, claude_opus_4_8]
tools: {tools: [{type: calculator}, {type: think}]}
mcp: {servers: {tickets: {url: "http://127.0.0.1:9000/mcp"}}}
offer: {anonymised: true, sampled: true, jitter: 0.2}
limits: {history_chars: 24000}
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, model_validator

from firstchair.catalog.experts import ExpertCatalog, exclusions
from firstchair.catalog.offers import Offer, anonymised, offer_of, sampled
from firstchair.catalog.prices import PriceTable
from firstchair.core.config import Strict
from firstchair.core.errors import ConfigError
from firstchair.engines.live_experts import LiveExperts
from firstchair.rewards.answers.base import AnswerGrader
from firstchair.rewards.answers.by_domain import AnswerGrading, open_answer_grader
from firstchair.rollout.mcp_servers import McpSpec
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.limits import OrchestrationLimits
from firstchair.rollout.orchestration.offer import OnOffer
from firstchair.rollout.orchestration.rollout_tools import SharedTools
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.sandbox.spec import SandboxSpec, open_sandbox
from firstchair.tools.spec import ToolsSpec
from firstchair.tools.toolset import Toolset


class Presentation(Strict):
    """How what can be called is shown to each rollout."""

    sampled: bool = False
    """A random part of it, of at least one model and one tool."""
    jitter: float = Field(default=0.0, ge=0, lt=1)
    """Of a sampled offer: each expert's price is multiplied by one factor from 1 − jitter to 1 + jitter."""
    anonymised: bool = False
    """Models are random labels that tell nothing but class, size and cost tier."""

    @model_validator(mode="after")
    def _fits_together(self) -> Presentation:
        if self.jitter and not self.sampled:
            raise ValueError("jitter moves the prices of a sampled offer alone; set sampled: true")
        return self


class RolloutParts(Strict):
    """Experts, tools, offer and limits of rollouts."""

    catalog: Path | None = None
    """YAML file of experts and tools, over the packaged one."""
    experts: tuple[str, ...] = ()
    """Only these of the catalog; empty: all that are not excluded."""
    prices: Path | None = None
    """YAML file of prices, over the packaged one."""
    tools: ToolsSpec | None = None
    """What beside models can be called. Each rollout works in a copy of its ``work_dir``."""
    mcp: McpSpec | None = None
    """MCP servers whose tools can be called too. Each rollout connects to them for itself."""
    offer: Presentation = Presentation()
    limits: OrchestrationLimits = OrchestrationLimits()


class OrchestrationSetup(RolloutParts):
    """The parts of a run, and how its answers are graded."""

    grading: AnswerGrading = AnswerGrading()
    sandbox: SandboxSpec | None = None
    """Where the tests of programming tasks run; without one their answers stay ungraded."""


@dataclass(frozen=True)
class OpenedParts:
    """What rollouts share but the grader."""

    full: Offer
    """The experts of this run and the tools that were opened, before anything is sampled or anonymised."""
    prices: PriceTable
    experts: LiveExperts
    tools: SharedTools | None
    parts: RolloutParts

    def toolset(self) -> Toolset | None:
        """The tools of one rollout; what is shared stays open when they are closed."""
        return None if self.tools is None else self.tools.of_rollout()

    def offer(self, task: OrchestrationTask, seed: int) -> Sequence[OnOffer]:
        """What one rollout is offered: a function of the task and its environment's seed.

        Raises ``ConfigError`` for a preference, which stands in the prompt, that names an expert of a hidden name.
        """
        shown, rng = self.parts.offer, random.Random(f"{seed}:{task.task_id}:offer")
        named = {one.name for one in self.full.models} & task.preference.keys()
        if shown.anonymised and named:
            raise ConfigError(
                f"task {task.task_id}: its preference names {min(named)}; offer.anonymised hides that name"
            )
        found = sampled(self.full, rng, jitter=shown.jitter) if shown.sampled else self.full
        return (anonymised(found, rng) if shown.anonymised else found).offered


@dataclass(frozen=True)
class OpenedSetup:
    """Everything that rollouts share."""

    parts: OpenedParts
    grader: AnswerGrader

    def environment(self) -> OrchestrationEnvironment:
        """One environment; what it shares stays open when it is closed."""
        parts = self.parts
        return OrchestrationEnvironment(parts.offer, parts.experts, parts.toolset(), self.grader, parts.parts.limits)


@asynccontextmanager
async def open_setup(setup: OrchestrationSetup, environ: Mapping[str, str]) -> AsyncIterator[OpenedSetup]:
    """Open experts, tools and grader, and close them at the end.

    Raises ``ConfigError`` naming what is missing (an expert without a key, an index, a package, a sandbox) or cannot
    be offered as it is to be, ``UpstreamError`` for an MCP server that cannot be reached.
    """
    async with open_parts(setup, environ) as parts, AsyncExitStack() as stack:
        sandbox = None if setup.sandbox is None else open_sandbox(setup.sandbox)
        grader = open_answer_grader(setup.grading, sandbox)
        stack.push_async_callback(grader.close)
        yield OpenedSetup(parts, grader)


@asynccontextmanager
async def open_parts(wanted: RolloutParts, environ: Mapping[str, str]) -> AsyncIterator[OpenedParts]:
    """Open experts and tools, and close them at the end. Raises as ``open_setup`` does."""
    catalog, prices = ExpertCatalog.load(wanted.catalog, exclusions(environ)), PriceTable.load(wanted.prices)
    if wanted.experts:
        catalog = catalog.only(wanted.experts)
    async with AsyncExitStack() as stack:
        tools = None
        if wanted.tools is not None or wanted.mcp is not None:
            tools = await SharedTools.open(wanted.tools, wanted.mcp)
            stack.push_async_callback(tools.close)
        offered = tools.tools if tools is not None else ()
        known = catalog.with_tools(offered)
        names = {tool.name for tool in offered}
        catalog = known.model_copy(update={"tools": tuple(one for one in known.tools if one.name in names)})
        full = offer_of(catalog, prices)
        _refuse_what_cannot_be_shown(full, wanted.offer)
        experts = LiveExperts(catalog, prices, environ)
        stack.push_async_callback(experts.close)
        yield OpenedParts(full, prices, experts, tools, wanted)


def _refuse_what_cannot_be_shown(full: Offer, shown: Presentation) -> None:
    """Raise ``ConfigError`` now, not in every rollout."""
    if shown.sampled:
        sampled(full, random.Random(0), jitter=shown.jitter)
    if shown.anonymised:
        anonymised(full, random.Random(0))
