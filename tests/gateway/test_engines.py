"""In front of real inference servers: the vendors' SDKs in all three dialects, whole and streamed.

Slow: vLLM and SmolLM2 come with ``make slow-env``; llama.cpp is built by ``make llama-env`` and skipped without.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anthropic
import openai
import pytest
from tests.services import missing

from firstchair.core.errors import RunFailed
from firstchair.gateway.records import Outcome
from firstchair.gateway.sink import Sink, SinkConfig
from firstchair.testing.gateway_server import RunningGateway, running_gateway
from firstchair.testing.llama_server import llama_server, running_llama
from firstchair.testing.vllm_server import MODEL, running_vllm
from firstchair.traces.store import TraceStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SMOLLM = Path(".slow/smollm2-135m")
GGUF = Path(".slow/smollm2-135m.gguf")
SYSTEM = "Answer in one short sentence."
QUESTION = "What is the capital of Norway?"
TOKENS = 16
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_vllm(SMOLLM, tmp_path_factory.mktemp("vllm") / "log", max_model_len=1024) as server:
        yield server.openai_url


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        llama_server()
    except RunFailed:
        missing("llama.cpp server", "make llama-env")
    with running_llama(GGUF, tmp_path_factory.mktemp("llama") / "log", context=1024) as server:
        yield server.openai_url


@contextmanager
def gateway_to(folder: Path, url: str, **provider: object) -> Iterator[RunningGateway]:
    # Engines on a busy CPU take their time.
    patient = {"first_token_s": 300, "idle_s": 300, "total_s": 600}
    slot = {"slot": "main", "primary": {"provider": "engine", "model": MODEL}, "timeouts": patient}
    engine = {"type": "openai-compatible", "base_url": url, **provider}
    with running_gateway(folder, {"engine": engine}, [slot]) as gateway:
        yield gateway


def answers(gateway: RunningGateway) -> dict[str, str]:
    """The same question in every dialect, whole and streamed: how it was asked → the text that came back."""
    chat = openai.OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0, timeout=600)
    claude = anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0, timeout=600)
    user = {"role": "user", "content": QUESTION}
    as_chat = {
        "model": "main",
        "messages": [{"role": "system", "content": SYSTEM}, user],
        "max_tokens": TOKENS,
        "temperature": 0,
    }
    as_responses = {
        "model": "main",
        "instructions": SYSTEM,
        "input": [user],
        "max_output_tokens": TOKENS,
        "temperature": 0,
        "store": False,
    }
    as_messages = {
        "model": "main",
        "system": SYSTEM,
        "messages": [user],
        "max_tokens": TOKENS,
        "extra_body": {"temperature": 0},
    }
    found = {
        "chat": chat.chat.completions.create(**as_chat).choices[0].message.content,
        "responses": chat.responses.create(**as_responses).output_text,
        "messages": claude.messages.create(**as_messages).content[0].text,
    }
    with chat.chat.completions.stream(**as_chat) as stream:
        # The SDK raises for an answer that ends at its limit; the deltas are the answer all the same.
        found["chat stream"] = "".join(
            event.chunk.choices[0].delta.content or ""
            for event in stream
            if event.type == "chunk" and event.chunk.choices
        )
    with chat.responses.stream(**as_responses) as stream:
        found["responses stream"] = "".join(
            event.delta for event in stream if event.type == "response.output_text.delta"
        )
    with claude.messages.stream(**as_messages) as stream:
        found["messages stream"] = stream.get_final_text()
    chat.close()
    claude.close()
    return found


def check_answers(gateway: RunningGateway) -> str:
    """All six are one text, and six good records; the text."""
    found = answers(gateway)
    text = found["chat"]
    assert text
    assert found == dict.fromkeys(found, text)
    records = gateway.records(6)
    assert len(records) == 6
    for record in records:
        assert record.outcome is Outcome.OK
        assert not record.estimated
        assert record.answer is not None
        assert record.answer.text == text
        assert record.usage is not None
        assert record.usage.output <= TOKENS
    # A prompt that was read before may be told as read from the cache; together it is the same prompt.
    assert len({record.usage.input + record.usage.cache_read for record in records}) == 1
    return text


def traced(gateway: RunningGateway) -> list:
    """The calls of the trace store, once the sink has taken everything."""
    config = gateway.config
    settings = SinkConfig(
        spool=config.spool,
        database=config.database,
        store=config.recording.store,
        blobs=config.spool / "blobs",
    )
    with Sink(settings) as sink:
        assert sink.drain(60)
    with TraceStore.open(config.recording.store, must_exist=True) as store:
        return [(session, call) for session in store.sessions() for call in session.calls]


def test_vllm_answers_every_dialect_alike_and_its_token_ids_reach_the_trace(vllm: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SMOLLM)
    with gateway_to(tmp_path, vllm, want_tokens=True) as gateway:
        text = check_answers(gateway)
    calls = traced(gateway)
    assert len(calls) == 6
    prompt = tokenizer.apply_chat_template(
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}],
        add_generation_prompt=True,
        return_dict=False,
    )
    for _, call in calls:
        assert call.tokens is not None
        assert list(call.tokens.prompt_ids) == prompt
        assert tokenizer.decode(call.tokens.completion_ids, skip_special_tokens=True) == text
        assert len(call.tokens.logprobs) == len(call.tokens.completion_ids)
        assert call.tokens.completion_ids == calls[0][1].tokens.completion_ids
        assert call.tokens.logprobs == pytest.approx(calls[0][1].tokens.logprobs, abs=1e-3)


def test_vllm_obeys_a_forced_tool_call_from_either_vendors_client(vllm: str, tmp_path: Path) -> None:
    user = {"role": "user", "content": "Look up the weather in Oslo."}
    with gateway_to(tmp_path, vllm) as gateway:
        chat = openai.OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0, timeout=600)
        function = {"name": "weather", "parameters": SCHEMA, "strict": True}
        answer = chat.chat.completions.create(
            model="main",
            messages=[user],
            max_tokens=60,
            temperature=0,
            tools=[{"type": "function", "function": function}],
            tool_choice={"type": "function", "function": {"name": "weather"}},
        )
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "weather"
        claude = anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0, timeout=600)
        reply = claude.messages.create(
            model="main",
            messages=[user],
            max_tokens=60,
            extra_body={"temperature": 0},
            tools=[{"name": "weather", "input_schema": SCHEMA, "strict": True}],
            tool_choice={"type": "tool", "name": "weather"},
        )
        (block,) = [block for block in reply.content if block.type == "tool_use"]
        assert block.name == "weather"
        assert block.input["city"] in ("Oslo", "Rome")
        chat.close()
        claude.close()
        first, second = gateway.records(2)
    assert first.malformed_calls == second.malformed_calls == 0
    assert first.answer.tool_calls[0].parsed() == block.input


def test_llama_cpp_answers_every_dialect_alike(llama: str, tmp_path: Path) -> None:
    with gateway_to(tmp_path, llama) as gateway:
        text = check_answers(gateway)
    calls = traced(gateway)
    assert len(calls) == 6
    assert all(session.messages[-1].text == text for session, _ in calls)
