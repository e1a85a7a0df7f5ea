"""What strict scorers wrongly fail and lenient scorers wrongly pass, as data: one case a row.

Columns: name, tool parameters, field matchers, gold calls, produced calls, lenient verdict, rule, undecided.
Calls are ``(tool, arguments JSON text)``; no calls at all is a final reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Case(NamedTuple):
    name: str
    gold: list[tuple[str, str]]
    made: list[tuple[str, str]]
    verdict: str
    rule: str
    properties: Mapping[str, Any] = NOTHING
    matchers: Mapping[str, str] = NOTHING
    required: tuple[str, ...] = ()
    undecided: bool = False
    options: Mapping[str, Any] = NOTHING


def one(text: str, tool: str = "t") -> list[tuple[str, str]]:
    return [(tool, text)]


INTEGER = {"type": "integer"}
STRING = {"type": "string"}
NUMBERS = {"type": "array", "items": {"type": "number"}}
TAGS = {"type": "array", "items": STRING}

FALSE_FAILURES = (
    Case("key order", one('{"a": 1, "b": 2}'), one('{"b":2,"a":1}'), "pass", "equal"),
    Case("1 is 1.0 for an integer", one('{"n": 1}'), one('{"n": 1.0}'), "pass", "numeric", {"n": INTEGER}),
    Case("numbers at depth", one('{"n": [1.0, 2.0]}'), one('{"n": [1, 2]}'), "pass", "numeric", {"n": NUMBERS}),
    Case(
        "a default spelled out",
        one('{"q": "x"}'),
        one('{"q": "x", "unit": "km"}'),
        "pass",
        "default",
        {"q": STRING, "unit": {"type": "string", "default": "km"}},
    ),
    Case(
        "a default left out",
        one('{"q": "x", "unit": "km"}'),
        one('{"q": "x"}'),
        "pass",
        "default",
        {"q": STRING, "unit": {"type": "string", "default": "km"}},
    ),
    Case(
        "an extra value that is not the default",
        one('{"q": "x"}'),
        one('{"q": "x", "unit": "mi"}'),
        "wrong_args",
        "value",
        {"q": STRING, "unit": {"type": "string", "default": "km"}},
    ),
    Case(
        "a declared date in two spellings",
        one('{"d": "April 1, 2024"}'),
        one('{"d": "2024-04-01"}'),
        "pass",
        "date",
        {"d": STRING},
        {"d": "date"},
    ),
    Case(
        "a date that is not declared one",
        one('{"d": "April 1, 2024"}'),
        one('{"d": "2024-04-01"}'),
        "wrong_args",
        "value",
        {"d": STRING},
    ),
    Case(
        "a format the schema demands",
        one('{"d": "2024-04-01"}'),
        one('{"d": "April 1, 2024"}'),
        "wrong_args",
        "format",
        {"d": {"type": "string", "format": "date"}},
        {"d": "date"},
    ),
    Case(
        "an ambiguous date is for a judge",
        one('{"d": "2024-04-01"}'),
        one('{"d": "01/04/2024"}'),
        "wrong_args",
        "date",
        {"d": STRING},
        {"d": "date"},
        undecided=True,
    ),
    Case(
        "white space where it is declared free",
        one('{"cmd": "ls -la"}'),
        one('{"cmd": "ls  -la\\n"}'),
        "pass",
        "ws",
        {"cmd": STRING},
        {"cmd": "ws"},
    ),
    Case(
        "white space where it is not declared",
        one('{"cmd": "ls -la"}'),
        one('{"cmd": "ls  -la\\n"}'),
        "wrong_args",
        "value",
        {"cmd": STRING},
    ),
    Case(
        "white space inside quotes",
        one('{"cmd": "echo \\"a b\\""}'),
        one('{"cmd": "echo \\"a  b\\""}'),
        "wrong_args",
        "ws",
        {"cmd": STRING},
        {"cmd": "ws"},
    ),
    Case(
        "indentation of YAML",
        one('{"text": "a:\\n  b: 1"}'),
        one('{"text": "a:\\n b: 1"}'),
        "wrong_args",
        "ws",
        {"text": STRING},
        {"text": "ws"},
    ),
    Case(
        "free text is near, and judged",
        one('{"query": "weather in Paris"}'),
        one('{"query": "Paris weather today"}'),
        "wrong_args",
        "judge",
        {"query": STRING},
        {"query": "judge"},
        undecided=True,
    ),
    Case(
        "free text within its threshold",
        one('{"query": "weather in Paris today"}'),
        one('{"query": "Weather in  Paris, today"}'),
        "pass",
        "fuzzy",
        {"query": STRING},
        {"query": "fuzzy>=0.9"},
    ),
    Case(
        "an enumerated field admits only what it lists",
        one('{"unit": "km"}'),
        one('{"unit": "kilometres"}'),
        "malformed",
        "schema_violation",
        {"unit": {"enum": ["km", "mi"]}},
    ),
    Case(
        "a set by schema",
        one('{"tags": ["a", "b"]}'),
        one('{"tags": ["b", "a"]}'),
        "pass",
        "set",
        {"tags": {**TAGS, "uniqueItems": True}},
    ),
    Case(
        "a set by annotation",
        one('{"tags": ["a", "b"]}'),
        one('{"tags": ["b", "a"]}'),
        "pass",
        "set",
        {"tags": TAGS},
        {"tags": "set"},
    ),
    Case(
        "a list of steps is a sequence",
        one('{"tags": ["a", "b"]}'),
        one('{"tags": ["b", "a"]}'),
        "wrong_args",
        "value",
        {"tags": TAGS},
    ),
    Case(
        "extra read-only calls inside the budget",
        [("read", '{"p": "a"}'), ("write", '{"p": "a"}')],
        [("list", '{"p": "."}'), ("read", '{"p": "a"}'), ("write", '{"p": "a"}')],
        "pass",
        "call_order",
        options={"read_only": ["list", "read"], "extra_read_only": 1},
    ),
    Case(
        "extra read-only calls beyond the budget",
        [("read", '{"p": "a"}')],
        [("list", '{"p": "."}'), ("list", '{"p": "b"}'), ("read", '{"p": "a"}')],
        "wrong_tool",
        "tool",
        options={"read_only": ["list", "read"], "extra_read_only": 1},
    ),
    Case(
        "extra calls with effects",
        [("read", '{"p": "a"}')],
        [("delete", '{"p": "b"}'), ("read", '{"p": "a"}')],
        "wrong_tool",
        "tool",
        options={"read_only": ["read"], "extra_read_only": 1},
    ),
    Case(
        "two ways to one end state, without a sandbox",
        [("t", '{"cmd": "cd x"}'), ("t", '{"cmd": "cd y"}')],
        one('{"cmd": "cd x/y"}'),
        "wrong_args",
        "judge",
        {"cmd": STRING},
        {"$": "judge"},
        undecided=True,
    ),
    Case(
        "a move or a copy and a removal, without a sandbox",
        one('{"cmd": "mv a b"}'),
        one('{"cmd": "cp a b && rm a"}'),
        "wrong_args",
        "judge",
        {"cmd": STRING},
        {"cmd": "judge"},
        undecided=True,
    ),
    Case(
        "a tool name after the gateway's own map",
        one('{"q": "x"}', "web_search"),
        one('{"q": "x"}', "web.search"),
        "pass",
        "equal",
        options={"tool_names": {"web.search": "web_search"}},
    ),
    Case(
        "a tool name that nothing maps",
        one('{"q": "x"}', "web_search"),
        one('{"q": "x"}', "Web Search"),
        "wrong_tool",
        "tool",
    ),
    Case("stopping in other words", [], [], "pass", "stop"),
    Case(
        "parallel calls in another order",
        [("t", '{"a": 1}'), ("t", '{"a": 2}')],
        [("t", '{"a": 2}'), ("t", '{"a": 1}')],
        "pass",
        "call_order",
    ),
    Case(
        "a path spelled another way",
        one('{"p": "/a/b.txt"}'),
        one('{"p": "/a/./c/../b.txt"}'),
        "pass",
        "path",
        {"p": STRING},
        {"p": "path"},
    ),
    Case(
        "a URL in another case of host",
        one('{"u": "https://example.com"}'),
        one('{"u": "HTTPS://Example.com:443/"}'),
        "pass",
        "url",
        {"u": STRING},
        {"u": "url"},
    ),
)

FALSE_PASSES = (
    Case(
        "a required key left out",
        one('{"a": 1}'),
        one("{}"),
        "malformed",
        "schema_violation",
        {"a": INTEGER},
        required=("a",),
    ),
    Case("an optional key left out", one('{"a": 1}'), one("{}"), "wrong_args", "missing", {"a": INTEGER}),
    Case("1.5 is not 15", one('{"n": "1.5"}'), one('{"n": "15"}'), "wrong_args", "value", {"n": STRING}),
    Case(
        "1.5 is not 15 in fuzzy text",
        one('{"n": "pay 1.5 euros to the baker"}'),
        one('{"n": "pay 15 euros to the baker"}'),
        "wrong_args",
        "fuzzy",
        {"n": STRING},
        {"n": "fuzzy>=0.8"},
    ),
    Case(
        "-5 is not 5", one('{"n": "-5"}'), one('{"n": "5"}'), "wrong_args", "number", {"n": STRING}, {"n": "number"}
    ),
    Case(
        "-5 is not 5 in fuzzy text",
        one('{"n": "set it to -5 degrees"}'),
        one('{"n": "set it to 5 degrees"}'),
        "wrong_args",
        "fuzzy",
        {"n": STRING},
        {"n": "fuzzy>=0.8"},
    ),
    Case(
        "a path keeps its slashes",
        one('{"p": "/a/b.txt"}'),
        one('{"p": "abtxt"}'),
        "wrong_args",
        "path",
        {"p": STRING},
        {"p": "path"},
    ),
    Case(
        "identifiers keep their case",
        one('{"id": "A1b"}'),
        one('{"id": "a1B"}'),
        "wrong_args",
        "value",
        {"id": STRING},
    ),
    Case("true is not 1", one('{"n": 1}'), one('{"n": true}'), "malformed", "schema_violation", {"n": INTEGER}),
    Case("true is not 1 without a schema", one('{"n": 1}'), one('{"n": true}'), "wrong_args", "type"),
    Case("true is not 1 at depth", one('{"n": [1]}'), one('{"n": [true]}'), "wrong_args", "type"),
    Case(
        "true is not 1 in a set", one('{"n": [1, 2]}'), one('{"n": [2, true]}'), "wrong_args", "set", {}, {"n": "set"}
    ),
    Case(
        "false is not 0 with a tolerance",
        one('{"n": 0}'),
        one('{"n": false}'),
        "wrong_args",
        "number",
        {},
        {"n": "number+1"},
    ),
    Case("10 is not found in 100", one('{"n": "10"}'), one('{"n": "100"}'), "wrong_args", "value", {"n": STRING}),
    Case(
        "a required hand-off is missing",
        [("t", '{"a": 1}'), ("handoff", "{}")],
        one('{"a": 1}'),
        "wrong_args",
        "missing_call",
    ),
    Case(
        "one call does not satisfy two gold calls",
        [("t", '{"a": 1}'), ("t", '{"a": 1}')],
        [("t", '{"a": 1}'), ("t", '{"a": 9}')],
        "wrong_args",
        "value",
    ),
    Case(
        "one call where two are wanted",
        [("t", '{"a": 1}'), ("t", '{"a": 1}')],
        one('{"a": 1}'),
        "wrong_args",
        "missing_call",
    ),
    Case("the same call twice where one is wanted", one('{"a": 1}'), one('{"a": 1}') * 2, "wrong_args", "extra_call"),
    Case(
        "one set element does not stand for two",
        one('{"n": ["a", "a"]}'),
        one('{"n": ["a", "b"]}'),
        "wrong_args",
        "set",
        {},
        {"n": "set"},
    ),
    Case("a duplicate key", one('{"a": 1}'), one('{"a": 2, "a": 1}'), "malformed", "malformed_json"),
    Case("NaN", one('{"a": 1}'), one('{"a": NaN}'), "malformed", "malformed_json"),
    Case("Infinity", one('{"a": 1}'), one('{"a": Infinity}'), "malformed", "malformed_json"),
    Case("arguments that are a list", one('{"a": 1}'), one("[1]"), "malformed", "malformed_json"),
    Case("truncated arguments", one('{"a": 1}'), one('{"a": 1'), "malformed", "malformed_json"),
    Case("a reply where a call is wanted", one('{"a": 1}'), [], "premature_stop", "action"),
    Case("a call where a reply is wanted", [], one('{"a": 1}'), "failed_to_stop", "action"),
    Case("null is not a missing key", one('{"a": null}'), one("{}"), "wrong_args", "missing"),
    Case("an extra key", one("{}"), one('{"a": 1}'), "wrong_args", "extra"),
    Case(
        "a number beyond its tolerance",
        one('{"n": 10}'),
        one('{"n": 10.2}'),
        "wrong_args",
        "number",
        {},
        {"n": "number+0.1"},
    ),
    Case(
        "big integers that one float holds",
        one('{"n": 9007199254740993}'),
        one('{"n": 9007199254740992.0}'),
        "wrong_args",
        "value",
    ),
)
