"""Small recorded sessions for tests: a travel desk with three tools, a recovery, and a mistake to switch on."""

from __future__ import annotations

import random
from typing import Any

from firstchair.chat.messages import (
    Message,
    Tool,
    ToolCall,
    assistant_message,
    text_message,
    tool_result,
)
from firstchair.traces.session import Session, catalog_id_of, turns_of

_CITIES = ("Lisbon", "Oslo", "Kyoto", "Quito", "Nairobi", "Perth", "Tallinn", "Bogotá", "Zürich", "大阪")
_TOPICS = ("rain", "museums", "late trains", "vegetarian food", "hiking", "jazz bars", "markets", "sailing lessons")


def trip_tools() -> tuple[Tool, ...]:
    """The tools that ``trip_session`` offers."""
    return (
        _tool("find_trips", {"city": {"type": "string"}, "limit": {"type": "integer", "default": 5}}, ["city"]),
        _tool("book", {"trip_id": {"type": "string"}, "people": {"type": "integer"}}, ["trip_id", "people"]),
        _tool("remember", {"content": {"type": "string"}}, ["content"]),
    )


def _tool(name: str, properties: dict[str, Any], required: list[str]) -> Tool:
    schema = {"type": "object", "properties": properties, "required": required}
    return Tool(name=name, description=f"The {name} tool.", parameters=schema)


def trip_session(number: int, *, mistake: bool = False, **fields: Any) -> Session:
    """Session ``number``: two turns, five decisions, one of them a recovery from a failed call.

    Equal numbers give equal sessions, different ones different words. With ``mistake`` the second turn calls
    ``find_trips`` where ``remember`` would be right (decision 3).
    """
    rng = random.Random(number)
    city, topic = rng.choice(_CITIES), rng.choice(_TOPICS)
    words = " ".join(f"{rng.getrandbits(24):06x}" for _ in range(12))
    trip = f"T{rng.randrange(10_000):04d}"
    search = ToolCall.of(f"call_{number}_0", "find_trips", {"city": city})
    book = ToolCall.of(f"call_{number}_1", "book", {"trip_id": trip, "people": rng.randrange(1, 5)})
    note = ToolCall.of(f"call_{number}_2", "remember", {"content": f"likes {topic}"})
    wrong = ToolCall.of(f"call_{number}_2", "find_trips", {"city": topic})
    last = wrong if mistake else note
    messages: tuple[Message, ...] = (
        text_message("system", "You book trips.\nAsk before you pay."),
        text_message("user", f"Find me a trip to {city}; my code is {words}."),
        assistant_message("", thinking=f"Search for {city}.", calls=(search,)),
        tool_result(search, "rate limit, try again", is_error=True),
        assistant_message("", calls=(book,)),
        tool_result(book, f'{{"ok": true, "trip": "{trip}"}}'),
        assistant_message(f"Booked {trip} to {city}.\u2028Code {words[:20]}."),
        text_message("user", f"Remember that I like {topic}. {words[::-1]}"),
        assistant_message("", calls=(last,)),
        tool_result(last, "saved"),
        assistant_message(f"Noted: {topic}, for {trip}."),
    )
    fields.setdefault("labels", {"task_id": number // 2, "trial": number % 2, "reward": float(number % 3 == 0)})
    return Session(
        session_id=fields.pop("session_id", f"trip-{number}"),
        source=fields.pop("source", "scripted"),
        created_at="2026-01-02T03:04:05Z",
        catalog_id=catalog_id_of(trip_tools()),
        messages=messages,
        turns=turns_of(messages),
        **fields,
    )
