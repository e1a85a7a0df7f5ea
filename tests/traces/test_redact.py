import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.traces.redact import REDACTED, is_secret_name, redact, redact_text

CANARY = "canary-7f3a9c"


@pytest.mark.parametrize(
    "value",
    [
        {"headers": {"Authorization": CANARY, "X-Custom": CANARY}},
        {"request_headers": [["x-api-key", CANARY], ["cookie", CANARY]]},
        {"default_headers": [{"name": "x-goog-api-key", "value": CANARY}, CANARY]},
        {"extra_headers": CANARY},
        {"http.request.header.authorization": [f"Bearer {CANARY}"]},
        {"http.response.header.set_cookie": [CANARY]},
        {"client": {"apiKey": CANARY, "clientSecret": CANARY, "OPENAI_API_KEY": CANARY}},
        {"env": [{"name": "AWS_SECRET_ACCESS_KEY", "value": CANARY}]},
        {"pairs": [["password", CANARY]]},
        {"session_token": CANARY, "auth": {"user": CANARY}},
        {"url": f"https://me:{CANARY}@host/path?api_key={CANARY}&token={CANARY}#x"},
        {"note": f"sent Bearer {CANARY}xxxxxx and Basic {CANARY}xxxxxx"},
        {"key": f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n"},
    ],
)
def test_a_secret_is_gone_and_the_field_stays(value):
    cleaned = redact(value)
    assert CANARY not in json.dumps(cleaned)
    assert REDACTED in json.dumps(cleaned)
    assert cleaned.keys() == value.keys()


@pytest.mark.parametrize(
    "token",
    ["sk-ant-REDACTED", "ghp_abcdefghijklmnopqrstuvwx", "hf_abcdefghijklmnopqrstuvwx", "AKIAIOSFODNN7EXAMPLE"],
)
def test_well_known_key_forms_are_seen_in_any_text(token):
    assert redact_text(f"use {token} here") == f"use {REDACTED} here"


def test_what_is_harmless_is_kept():
    value = {
        "gen_ai.usage.input_tokens": 12,
        "max_tokens": 100,
        "token_count": 3,
        "keyboard": "sk",
        "author": "Ann",
        "headers": {"Content-Type": "application/json", "x-request-id": "r1"},
        "http.request.header.content_type": ["application/json"],
        "url": "https://host/path?q=1",
        "list": [["a", 1], ["x", [2]], {"name": "n", "value": None}],
        "secret_enabled": False,
        "note": "a bearer of news; basic training",
    }
    assert redact(value) == value


def test_names_are_judged_by_whole_words():
    assert all(map(is_secret_name, ["api_key", "X-API-Key", "apiKey", "clientSecret", "db.password", "refreshToken"]))
    assert not any(map(is_secret_name, ["max_tokens", "tokenizer", "secretary", "author", "api", "key", "passage"]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_any_json_can_be_cleaned_and_cleaning_twice_changes_nothing(value):
    once = redact(value)
    assert redact(once) == once
