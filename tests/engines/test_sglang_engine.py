"""SGLang's ``/generate`` as an engine, by its documented wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firstchair.chat.messages import text_message
from firstchair.chat.renderer import Renderer
from firstchair.engines.base import ErrorKind, Generation, Request, Sampling, Stop
from firstchair.engines.http_engine import HttpOptions
from firstchair.engines.http_retry import RetryPolicy
from firstchair.engines.sglang_engine import SglangEngine
from firstchair.testing.fault_server import Answer, FaultServer, Seen
from firstchair.testing.tiny_models import collect
from firstchair.train.base_model import copy_base_model

SAMPLING = Sampling(max_new_tokens=7, temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer.from_pretrained(copy_base_model(Path(tmp_path_factory.mktemp("model")) / "base"))


def answer(**about: Any) -> Answer:
    meta = {
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 1,
        "output_token_logprobs": [[-0.5, 40, None], [-1.5, 41, None]],
        **about,
    }
    return Answer({"text": "skips special tokens", "output_ids": [40, 41], "meta_info": meta})


def ask(renderer: Renderer, said: Answer, request: Request, **options: Any) -> tuple[Generation, Seen]:
    with FaultServer(lambda seen, number: said) as server:
        # Its OpenAI address is understood too.
        url, one_try = f"{server.base_url}/v1", HttpOptions(retry=RetryPolicy(tries=1))
        (made,) = collect(SglangEngine(url, renderer, options=one_try, **options), [request]).values()
    return made, server.seen[0]


def test_ids_go_out_and_ids_with_their_log_probabilities_come_back(renderer: Renderer):
    made, seen = ask(renderer, answer(), Request("r", prompt_ids=(5, 6, 7), sampling=SAMPLING), lora_name="mine")
    assert made.error is None
    assert (made.ids, made.logprobs, made.stop) == ((40, 41), (-0.5, -1.5), Stop.END)
    assert (made.prompt_ids, made.prompt_tokens, made.cached_tokens) == ((5, 6, 7), 3, 1)
    assert made.text == renderer.decode((40, 41))
    assert made.dropped == ("sampling.seed",)
    assert seen.path == "/generate"
    assert (seen.body["input_ids"], seen.body["lora_path"]) == ([5, 6, 7], "mine")
    assert seen.body["sampling_params"]["stop_token_ids"] == list(renderer.stop_ids)
    assert seen.body["sampling_params"]["max_new_tokens"] == 7


def test_messages_are_rendered_here(renderer: Renderer):
    messages = (text_message("user", "Hello."),)
    made, seen = ask(renderer, answer(), Request("r", messages=messages))
    assert seen.body["input_ids"] == list(renderer.prompt_ids(messages, ())) == list(made.prompt_ids or ())
    assert "lora_path" not in seen.body


@pytest.mark.parametrize(
    ("about", "kind"),
    [
        ({"finish_reason": {"type": "abort", "message": "out of memory"}}, ErrorKind.SERVER),
        ({"output_token_logprobs": [[-0.5, 40, None], [-1.5, 9, None]]}, ErrorKind.BAD_RESPONSE),
        ({"finish_reason": None}, ErrorKind.BAD_RESPONSE),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_no_reply(renderer: Renderer, about: dict[str, Any], kind: ErrorKind):
    made, _ = ask(renderer, answer(**about), Request("r", prompt_ids=(5, 6, 7)))
    assert (made.stop, made.error_kind, made.ids) == (Stop.ERROR, kind, None)


def test_what_it_cannot_do_is_refused_and_a_cut_reply_is_cut(renderer: Renderer):
    refused, _ = ask(renderer, answer(finish_reason={"type": "length"}), Request("r", prompt_ids=(5,)))
    assert refused.stop is Stop.LENGTH
    with FaultServer(lambda seen, number: answer()) as server:
        engine = SglangEngine(server.base_url, renderer)
        (made,) = collect(engine, [Request("r", prompt_ids=(5,), constrain=True)]).values()
    assert made.error_kind is ErrorKind.BAD_REQUEST
    assert server.seen == []
