"""What is graded of a rollout is all that the model did in it, and nothing else."""

import asyncio
from typing import Any

import pytest
from tests.rollout.test_decision_env import RENDERER, SEND, record, reply

from firstchair.chat.actions import Action
from firstchair.chat.messages import assistant_message, text_message
from firstchair.engines.base import Generation, Request, Sampling, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rewards.samples import NoValue
from firstchair.rewards.verifiers import VERIFIERS
from firstchair.rollout.decision_env import ONE_ACTION, DecisionEnvironment
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.live_episode import EpisodeEnd, Limits
from firstchair.rollout.prompt_record import PromptRecord
from firstchair.rollout.rollouts import Rollout, RolloutPlan, RolloutStatus, run_rollouts
from firstchair.train.rollout_batches import sample_of_rollout

RIGHT = RENDERER.tool_format.render(SEND.calls)
AGAINST_ITS_SCHEMA = '<tool_call>\n{"name": "send", "arguments": {"text": "x"}}\n</tool_call>'


def play(task: PromptRecord, said: Any, limits: Limits = ONE_ACTION) -> Rollout:
    def answer(request: Request) -> Any:
        return said if isinstance(said, str) else said(request)

    encode = RENDERER.encoder.encode
    engine = ScriptedEngine(answer, encode=lambda text: [*encode(text), RENDERER.stop_ids[0]])
    policy = EnginePolicy(engine, RENDERER, Sampling(temperature=1.0))
    plan = RolloutPlan(samples=1, seed=0, limits=limits)

    async def one() -> Rollout:
        (rollout,) = [made async for made in run_rollouts(DecisionEnvironment, [task], policy, plan)]
        return rollout

    return asyncio.run(one())


def graded(rollout: Rollout, task: PromptRecord) -> dict[str, Any]:
    sample = sample_of_rollout(rollout, task)
    return {name: VERIFIERS[name](sample) for name in ("schema_valid", "right_tool", "arguments", "termination")}


@pytest.mark.parametrize(
    ("gold", "said", "expected"),
    [
        (SEND, RIGHT, (1.0, 1.0, 1.0, 1.0)),
        # A call that breaks its schema is a wrong call, and no final reply.
        (reply("Done."), AGAINST_ITS_SCHEMA, (0.0, 0.0, 0.0, 0.0)),
        (SEND, AGAINST_ITS_SCHEMA, (0.0, 1.0, 0.0, 1.0)),
        (SEND, f"{RIGHT}\nAnd now?", (1.0, 1.0, 1.0, 0.0)),
        (reply("Done."), "<tool_call>{", (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_a_decision_is_graded_with_all_that_is_wrong_with_it(
    gold: Action, said: str, expected: tuple[float, ...]
) -> None:
    task = record(gold)
    assert tuple(graded(play(task, said), task).values()) == expected


@pytest.mark.parametrize("limits", [ONE_ACTION, Limits(max_malformed=0, max_tokens=4)])
def test_a_decision_that_a_limit_cut_is_truncated_and_neither_a_call_nor_a_stop(limits: Limits) -> None:
    def cut(request: Request) -> Generation:
        ids = tuple(RENDERER.encoder.encode("Done, and what is more"))[:4]
        text, zeros = RENDERER.encoder.decode(ids), (0.0,) * 4
        return Generation("", Stop.LENGTH, text=text, ids=ids, logprobs=zeros, prompt_ids=request.prompt_ids)

    task = record(reply("Done."))
    rollout = play(task, cut, limits)
    assert (rollout.episode.end, rollout.status) == (EpisodeEnd.MAX_TOKENS, RolloutStatus.TRUNCATED)
    assert set(graded(rollout, task).values()) == {0.0}


def test_what_the_prompt_holds_is_not_taken_for_the_action_that_never_came() -> None:
    async def late(request: Request) -> str:
        await asyncio.sleep(30)
        return RIGHT

    before = (text_message("user", "Hello"), assistant_message("Hello."), text_message("user", "Go on."))
    task = PromptRecord(id="p", messages=before, tools=record(SEND).tools, gold=reply("Hello."))
    rollout = play(task, late, Limits(max_malformed=0, wall_s=0.05))
    assert rollout.episode.end is EpisodeEnd.WALL_CLOCK
    assert all(isinstance(value, NoValue) and value.why == "no_action" for value in graded(rollout, task).values())
