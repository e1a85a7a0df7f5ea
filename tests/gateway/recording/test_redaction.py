import contextlib
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.chat.messages import ImagePart, Message, RawPart, TextPart, ThinkingPart, ToolCall, text_message
from firstchair.core.errors import ConfigError
from firstchair.gateway.records import CallRecord, Outcome, encode_record
from firstchair.gateway.redaction import Redactor, load_hook
from firstchair.traces.redact import _SECRET_PAIRS, _SECRET_WORDS, REDACTED, may_hold_secret, redact_text

CANARY = "Canary7f3a9cQ81xZ"
LONG = CANARY * 3
FORMS = {
    "bearer": f"Bearer {LONG}",
    "basic": f"basic {LONG}==",
    "openai": f"sk-proj-{LONG}",
    "anthropic": f"sk-ant-api03-{LONG}",
    "gateway": f"fc_{LONG}",
    "github": f"ghp_{LONG}",
    "github_fine": f"github_pat_{LONG}",
    "huggingface": f"hf_{LONG}",
    "slack": f"xoxb-{LONG}",
    "aws": "AKIAC7F3A9CQ81XZQ81X",
    "google": f"AIza{LONG}",
    "jwt": f"eyJ{LONG}.{LONG}.{LONG}",
    "pem": f"-----BEGIN RSA PRIVATE KEY-----\n{LONG}\n-----END RSA PRIVATE KEY-----",
    "pem_cut": f"-----BEGIN PRIVATE KEY-----\n{LONG}",
    "url_user": f"https://me:{LONG}@host/x",
    "url_key": f"https://host/x?api_key={LONG}&a=1",
    "url_token": f"/x?a=1&token={LONG}",
}
HIDDEN = ("Canary7f3a9c", "C7F3A9CQ81")
BEFORE = ("", " ", "\n", "é", '"', "{", "key: ", "日本", "\\n", "(")
AFTER = ("", " ", "\n", '"', ", then", "é")


def escaped_slashes(body: str) -> str:
    return body.replace("/", "\\/")


def escaped_all(body: str) -> str:
    """Every letter and sign within strings as an escape."""
    out, inside = [], False
    for char in body:
        if char == '"':
            inside = not inside
        out.append(f"\\u{ord(char):04x}" if inside and char.isascii() and char not in '"\\' else char)
    return "".join(out)


WRITERS = {
    "plain": lambda value: json.dumps(value, ensure_ascii=False),
    "ascii": json.dumps,
    "compact": lambda value: json.dumps(value, separators=(",", ":")),
    "slashes": lambda value: escaped_slashes(json.dumps(value)),
    "html": lambda value: json.dumps(value).replace("&", "\\u0026").replace("<", "\\u003c"),
}


def shapes(text):
    """Where a client may put a text."""
    arguments = json.dumps({"cmd": text, "n": [1, {"deep": text}]})
    return {
        "message": {"messages": [{"role": "user", "content": text}]},
        "part": {"messages": [{"role": "user", "content": [{"type": "text", "text": f"a {text}"}]}]},
        "arguments": {"messages": [{"tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]},
        "within": {"input": f"The file says: {arguments}"},
        "input": {"messages": [{"content": [{"type": "tool_use", "input": {"cmd": text}}]}]},
        "key": {"metadata": {text: 1}},
        "tool": {
            "tools": [{"name": "f", "description": text, "parameters": {"properties": {"x": {"default": text}}}}]
        },
    }


def is_clean(found: bytes) -> bool:
    seen = [found.decode("utf-8", "replace")]
    with contextlib.suppress(ValueError):
        seen.append(repr(json.loads(found)))
    return not any(word in text for word in HIDDEN for text in seen)


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(sorted(FORMS)),
    st.sampled_from(BEFORE),
    st.sampled_from(AFTER),
    st.sampled_from(sorted(WRITERS)),
    st.sampled_from(sorted(shapes(""))),
    st.booleans(),
)
def test_no_known_form_of_a_secret_survives_and_the_rest_stays_json(form, before, after, writer, shape, cut):
    body = WRITERS[writer](shapes(before + FORMS[form] + after)[shape]).encode()
    if cut:
        body = body[:-3]
    cleaned = Redactor().body(body)
    assert is_clean(cleaned)
    if not cut:
        assert REDACTED in json.dumps(json.loads(cleaned))


def test_letters_written_as_escapes_hide_nothing():
    for form, secret in FORMS.items():
        if "\n" not in secret:
            body = escaped_all(json.dumps({"messages": [{"content": f"use {secret} now"}]})).encode()
            assert is_clean(Redactor().body(body)), form


def test_a_body_without_secrets_comes_back_as_the_same_object():
    text = "A task-oriented risk-management-plan: see https://host/path?q=1&page=2, basic training of bearers. "
    rows = [{"role": "user", "content": f'{text * 5}\n\tline \\ "quoted" \u2028 é {n}'} for n in range(40)]
    body = json.dumps({"model": "m", "max_tokens": 1.50, "messages": rows}, indent=1).encode()
    assert Redactor().body(body) is body
    for odd in (b"", b"{", b"\xff\xfe", b'{"a":"\xff"}', b'"\\', b"null"):
        assert Redactor().body(odd) is odd


def test_only_the_strings_with_a_secret_are_written_anew():
    body = b'{ "model":"m",\t"n":1.0e2, "a":"\\u00e9\\/", "messages":[{"content":"sk-abcdefghijklmnop!\\n"},1]}'
    assert Redactor().body(body) == body.replace(b"sk-abcdefghijklmnop", REDACTED.encode())


def test_fields_named_for_a_credential_lose_it_beside_the_conversation():
    body = {
        "mcp_servers": [{"url": "https://host/mcp", "authorization_token": CANARY, "name": "kept"}],
        "tools": [
            {"type": "mcp", "headers": {"X-Custom": CANARY, "User-Agent": "kept"}, "authorization": CANARY},
            {"name": "login", "input_schema": {"properties": {"password": {"type": "string", "title": "kept"}}}},
        ],
        "metadata": {"api_key": [CANARY, {"x": CANARY}], "user_id": "kept"},
        "extra_headers": [["x-api-key", CANARY]],
        "messages": [{"content": [{"type": "tool_use", "input": {"password": "kept"}}], "signature": "kept"}],
        "max_tokens": 5,
    }
    for writer in WRITERS.values():
        cleaned = Redactor().body(writer(body).encode())
        assert is_clean(cleaned)
        assert json.loads(cleaned)["messages"] == body["messages"]
        assert cleaned.count(b"kept") == 6
    doubled = f'{{"api_key":"{CANARY}","api_key":"other"}}'.encode()
    assert is_clean(Redactor().body(doubled))


def test_an_answer_is_treated_like_its_echo_in_the_next_prompt():
    redactor = Redactor()
    for secret in FORMS.values():
        arguments = json.dumps({"a": f"x {secret}", "b": 1})
        answer = Message(
            role="assistant",
            content=(
                TextPart(text=f"it is {secret}", extra={"openai": {"note": secret}}),
                ThinkingPart(text=secret, signature="kept"),
                ImagePart(url=f"data:{secret}"),
                RawPart(provider="openai", data={"x": [secret]}),
            ),
            tool_calls=(ToolCall(id="c", name="f", arguments=arguments),),
        )
        cleaned = redactor.message(answer)
        assert is_clean(repr(cleaned).encode())
        assert cleaned.content[1].signature == "kept"
        echo = json.loads(redactor.body(json.dumps({"content": f"it is {secret}", "arguments": arguments}).encode()))
        assert echo == {"content": cleaned.content[0].text, "arguments": cleaned.tool_calls[0].arguments}
    plain = text_message("assistant", "nothing here")
    assert redactor.message(plain) is plain


def test_a_whole_record_is_cleaned():
    secret = FORMS["openai"]
    record = CallRecord(
        call_id="c",
        received_us=1,
        worker="w0",
        slot="s",
        dialect="openai",
        requested_model=secret,
        session=secret,
        user=secret,
        outcome=Outcome.FAILED,
        status=502,
        error=f"upstream said {secret}",
        request=json.dumps({"messages": [{"content": secret}]}).encode(),
        answer=text_message("assistant", secret),
    )
    assert is_clean(encode_record(Redactor().record(record)))


def test_own_patterns_and_a_hook_see_every_text():
    seen = []

    def hook(text):
        seen.append(text)
        return text.replace("Ann", "somebody")

    redactor = Redactor(patterns=[r"\bP-\d+\b"], hook=hook)
    body = b'{"messages":[{"content":"Ann has P-123 and\\n more"}]}'
    assert redactor.body(body) == b'{"messages":[{"content":"somebody has [redacted] and\\n more"}]}'
    assert seen == ["Ann has [redacted] and\n more"]
    assert redactor.text("P-1") == REDACTED
    with pytest.raises(ConfigError, match=r"recording\.patterns\[0\]"):
        Redactor(patterns=["("])


def test_a_hook_that_fails_keeps_nothing_and_is_counted():
    redactor = Redactor(hook=lambda text: {"good": text}[text])
    assert json.loads(redactor.body(b'["good", "bad"]')) == ["good", REDACTED]
    assert Redactor(hook=lambda text: None).text("x") == REDACTED
    assert redactor.hook_failures == 1


def test_a_hook_is_named_by_module_and_function():
    assert load_hook("textwrap:dedent")("  x") == "x"
    for wrong in ("textwrap", "textwrap:none", "no.such.module:f", "textwrap:", ":f", "sys:path"):
        with pytest.raises(ConfigError, match="redact_hook"):
            load_hook(wrong)


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=40), st.sampled_from(sorted(FORMS.values())), st.text(max_size=40))
def test_the_quick_look_never_overlooks_what_the_patterns_find(before, secret, after):
    for text in (before, before + secret + after, before + secret[:14] + after):
        if redact_text(text) != text:
            assert may_hold_secret(text.encode())


@pytest.mark.parametrize(
    "piece", ["eyJa-", "a.", "sk-", "bearer ", "://", "&", "-----BEGIN ", "gh", "{", "\\u0041", '\\"']
)
def test_no_text_makes_it_slow(piece):
    text = piece * (100_000 // len(piece)) + " sk-abcdefghijklmnop"
    begin = time.process_time()
    Redactor().body(json.dumps({"messages": [text]}).encode())
    redact_text(text)
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "' + 'x\\"' * 50_000,  # JSON that was cut off in the middle of a string, as tools' output is
        '["' + '\\\\\\"' * 50_000 + "\\",
        "bearer" + "\\n" * 100_000,
        "bearer" + " " * 200_000,
    ],
    ids=["cut off", "cut off behind a backslash", "escapes", "spaces"],
)
def test_no_text_takes_longer_than_its_length_allows(text):
    """Quadratic time would be minutes here, in which a worker answers nobody."""
    secret = "sk-ant-api03-" + "CANARY" * 5
    for body in (f"{secret} {text}".encode(), json.dumps({"content": f"{text} {secret}"}).encode()):
        began = time.process_time()
        cleaned = Redactor().body(body)
        assert time.process_time() - began < 3
        assert secret.encode() not in cleaned


@pytest.mark.parametrize("written", [str.upper, str.title, str.lower, lambda name: name.replace("_", "-")])
def test_every_name_of_a_credential_is_found_beside_the_conversation(written):
    names = [*sorted(_SECRET_WORDS), *("_".join(pair) for pair in sorted(_SECRET_PAIRS))]
    for name in map(written, names):
        body = json.dumps({"model": "m", "max_tokens": 3, "mcp": [{name: "opensesame"}]}, indent=1).encode()
        assert b"opensesame" not in Redactor().body(body), name
        escaped = body.replace(b"e", b"\\u0065")
        assert REDACTED.encode() in Redactor().body(escaped), name
