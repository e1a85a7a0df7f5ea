"""A domain of a few lines, for tests: dogs, their stays, the bills."""

from typing import Any

import msgspec

from firstchair.rollout.synthetic.domain import Domain, named_task
from firstchair.rollout.synthetic.opened import OpenDomain
from firstchair.rollout.synthetic.stages import TasksDraft

TABLES: list[dict[str, Any]] = [
    {
        "name": "dogs",
        "columns": [
            {"name": "id", "type": "integer"},
            {"name": "name", "type": "text"},
            {"name": "size", "type": "text", "values": ["small", "large"]},
            {"name": "weight", "type": "real", "optional": True},
        ],
        "key": ["id"],
    },
    {
        "name": "stays",
        "columns": [
            {"name": "id", "type": "integer"},
            {"name": "dog_id", "type": "integer", "references": "dogs.id"},
            {"name": "first", "type": "text"},
            {"name": "note", "type": "text", "optional": True, "free": True},
        ],
        "key": ["id"],
        "generated": True,
    },
    {
        "name": "bills",
        "columns": [
            {"name": "id", "type": "integer"},
            {"name": "stay_id", "type": "integer", "references": "stays.id"},
            {"name": "euros", "type": "integer"},
        ],
        "key": ["id"],
        "generated": True,
    },
]
NAMES = [
    "Rex",
    "Bella",
    "Toto",
    "Luna",
    "Max",
    "Nala",
    "Odin",
    "Pixie",
    "Quando",
    "Rufus",
    "Skye",
    "Tess",
    "Ulla",
    "Vito",
    "Wanda",
    "Xaver",
    "Yoko",
    "Zorro",
    "Argos",
    "Bonnie",
]
ROWS: dict[str, list[list[Any]]] = {
    "dogs": [[n, name, "large" if n % 2 else "small", 10.5 + n] for n, name in enumerate(NAMES, 1)],
    "stays": [[n, n, f"2026-01-{n:02}", None] for n in range(1, 21)],
    "bills": [[n, n, 20 + n] for n in range(1, 21)],
}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "find_dog",
        "description": "A dog by its name.",
        "parameters": [{"name": "name", "type": "text"}],
        "reads": "SELECT * FROM dogs WHERE lower(name) = lower(:name)",
        "empty": "no dog is called {name}",
    },
    {
        "name": "book",
        "description": "Book a stay.",
        "parameters": [
            {"name": "dog_id", "type": "integer"},
            {"name": "first", "type": "text"},
            {"name": "note", "type": "text", "optional": True},
        ],
        "conditions": [
            {"sql": "SELECT 1 FROM dogs WHERE id = :dog_id", "otherwise": "no dog {dog_id}"},
            {"sql": "SELECT 1 WHERE :first >= :today", "otherwise": "{first} is over"},
        ],
        "writes": ["INSERT INTO stays (dog_id, first, note) VALUES (:dog_id, :first, coalesce(:note, 'none'))"],
        "reads": "SELECT id AS stay_id FROM stays WHERE id = last_insert_rowid()",
    },
    {
        "name": "bill",
        "description": "Write a bill for a stay.",
        "parameters": [{"name": "stay_id", "type": "integer"}, {"name": "euros", "type": "integer"}],
        "writes": ["INSERT INTO bills (stay_id, euros) VALUES (:stay_id, :euros)"],
    },
    {"name": "list_bills", "description": "All bills.", "reads": "SELECT * FROM bills"},
    {"name": "pairs", "description": "Too many rows.", "reads": "SELECT a.id FROM bills AS a, bills AS b"},
]
TOOLS += [{**TOOLS[0], "name": f"find_dog_{n}"} for n in range(4)]

READ: dict[str, Any] = {
    "depth": "read",
    "turns": [
        {
            "user": "How heavy is Rex?",
            "calls": [{"tool": "find_dog", "arguments": {"name": "Rex"}}],
            "reply": "Rex weighs 11.5 kg.",
            "convey": [{"any_of": ["11.5"]}],
        }
    ],
}
MULTI: dict[str, Any] = {
    "depth": "multi",
    "turns": [
        {
            "user": "Book a stay for my dog from 2026-03-01, and bill 50 for it.",
            "facts": [{"topics": ["name", "which dog"], "says": "Her name is Bella."}],
            "calls": [
                {"tool": "find_dog", "arguments": {"name": "Bella"}},
                {"tool": "book", "arguments": {"dog_id": 2, "first": "2026-03-01"}},
                {"tool": "bill", "arguments": {"stay_id": 21, "euros": 50}},
            ],
            "reply": "She is booked.",
        },
        {
            "user": "And one more for Toto on the same day, for 40, with the number of the stay, please.",
            "calls": [
                {"tool": "book", "arguments": {"dog_id": 3, "first": "2026-03-01"}},
                {"tool": "bill", "arguments": {"stay_id": 22, "euros": 40}},
            ],
            "reply": "That is stay 22.",
            "convey": [{"any_of": ["22", "twenty-two"]}],
        },
    ],
    "assertions": [{"says": "Bella stays", "sql": "SELECT 1 FROM stays WHERE dog_id = 2 AND first = '2026-03-01'"}],
}
REFUSAL: dict[str, Any] = {
    "depth": "refusal",
    "turns": [
        {
            "user": "Take Nala, she needs a place at once.",
            "calls": [{"tool": "find_dog", "arguments": {"name": "Nala"}}],
            "reply": "I cannot: she is small, and we are full for those.",
            "convey": [{"any_of": ["cannot", "not possible"], "looked_up": False}, {"any_of": ["small"]}],
        }
    ],
}


def kennel(*tasks: dict[str, Any], **changes: Any) -> OpenDomain:
    fields: dict[str, Any] = {
        "name": "kennel",
        "title": "the kennel",
        "description": "A kennel for dogs.",
        "today": "2026-02-01",
        "rules": ["Take no small dog before it is asked for."],
        "tables": TABLES,
        "rows": ROWS,
        "tools": TOOLS,
    }
    drafts = msgspec.convert({"tasks": tasks}, TasksDraft).tasks
    named = [msgspec.to_builtins(named_task("kennel", draft)) for draft in drafts]
    return OpenDomain(msgspec.convert({**fields, **changes, "tasks": named}, Domain))
