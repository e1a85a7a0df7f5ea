import httpx
import pytest

from firstchair.chat.messages import Tool, text_message
from firstchair.chat.parity import Case, Rendered
from firstchair.core.errors import UpstreamError
from firstchair.engines.prompt_endpoint import PromptEndpoint

CASE = Case("one", (text_message("user", "a"),), (Tool(name="f", parameters={"type": "object"}),))


def endpoint(answers, asked=None, **options):
    def handle(request: httpx.Request) -> httpx.Response:
        if asked is not None:
            asked.append((request.url.path, request.read()))
        answer = answers[request.url.path]
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    return PromptEndpoint("http://server/v1/", transport=httpx.MockTransport(handle), **options)


GOOD = {
    "/v1/models": {"data": [{"id": "m"}]},
    "/tokenize": {"tokens": [1, 2]},
    "/detokenize": {"prompt": "ab"},
    "/v1/completions": {"choices": [{"prompt_token_ids": [1, 2]}]},
}


def test_the_servers_prompt_is_asked_for_with_messages_and_tools():
    asked = []
    with endpoint(GOOD, asked, template_kwargs={"enable_thinking": False}) as server:
        assert server.model == "m"
        assert server.prompt(CASE) == Rendered((1, 2), "ab")
        assert server.echo((1, 2)) == (1, 2)
    body = asked[1][1].decode()
    assert '"enable_thinking":false' in body
    assert '"name":"f"' in body


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"/tokenize": {}}, "without tokens"),
        ({"/tokenize": httpx.Response(404, text="no such page")}, "404: no such page"),
        ({"/tokenize": httpx.Response(200, text="<html>")}, "not JSON"),
        ({"/tokenize": [1]}, "expected an object"),
        ({"/v1/completions": {"choices": []}}, "prompt_token_ids"),
        ({"/v1/models": {"data": []}}, "--model-name"),
    ],
)
def test_an_answer_that_is_none_is_an_upstream_error(change, message):
    def ask():
        with endpoint({**GOOD, **change}) as server:
            server.prompt(CASE)
            server.echo((1, 2))

    with pytest.raises(UpstreamError, match=message):
        ask()


def test_a_server_that_is_not_there_is_retryable():
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(UpstreamError, match=r"^http://server:1/v1/models: ConnectError") as caught:
        PromptEndpoint("http://server:1", transport=httpx.MockTransport(refuse))
    assert caught.value.retryable
