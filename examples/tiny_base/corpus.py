"""Generic tool conversations: requests that name their values, tools that say what they take, short replies.

Nothing here knows any platform's conventions: a tool is called when the user asks for what its name says, and every
argument is copied from the request or from an earlier result. Random strings, names, paths, times and numbers make
copying the only way to be right. Three kinds of text, by difficulty: drills (copy, look up), one-turn conversations,
and conversations of several turns.
"""

from __future__ import annotations

from draws import (
    VALUES,
    Rng,
    adjective,
    date,
    made_up,
    moment,
    name,
    noun,
    path,
    phone,
    place,
    sentence,
    todo,
    token,
    url,
)
from skillsets import SHELL, UNIVERSAL, Skillset, facts, fill, invented, listed

from firstchair.chat.messages import Message, Tool, ToolCall, assistant_message, text_message, tool_result

SYSTEMS = (
    "You are a helpful assistant.", "You are an assistant with tools.", "Help the user. Today is {date}.",
    "You are an office assistant. It is {date} {time}.", "Use the tools when needed.", "Be brief. Date: {date}.",
    "You run a desk of tools for {name}. Now: {date} {time}.", "Assistant of {name}. {sentence}.",
    "You help {name} with daily work. Notes: {sentence}; {sentence}.",
    "You are the {noun} assistant. Today is {date}, {time}. {noun}: {sentence}",
    "You are the {noun} helper of {name}. It is {date}, {time}. Known: {sentence}; {sentence}",
    "{facts}", "Date: {date}. Time: {time}. About the user: {sentence}.",
)  # fmt: skip

CHAT = (
    (("Hi", "Hello", "Hey there", "Good morning", "hi {name} here", "Good evening!", "Hello again", "Hi there", "Greetings"),
     ("Hello! How can I help?", "Hi, what can I do for you?", "Good day. What do you need?")),
    (("Thanks", "Thank you", "thanks, that is all", "Great, thanks!", "Perfect, thank you", "cheers", "Thanks, nice work",
      "Thank you so much", "You did well"),
     ("You are welcome.", "Glad to help.", "Any time.")),
    (("How are you?", "How is it going?", "All well?", "Do you like {noun}?", "Are you a machine?", "What is your name?"),
     ("I am well. What can I do for you?", "Fine, thank you.", "I am here to help.")),
    (("Tell me a joke", "Say something nice", "I had a long day", "The {noun} was {phrase}", "I like {noun}",
      "Do you like the {noun}?", "What do you think about {noun}?"),
     ("I hope your day goes well.", "That is nice to hear.", "I see.")),
    (("What is {small} plus {small}?", "Is {name} a name?", "Do you know {name}?"), ("I am not sure.", "Let me think about it.")),
    (("ok", "I see", "never mind", "good", "no, that is all"), ("All right.", "Let me know if you need anything.", "Good.")),
)  # fmt: skip

ASIDES = (
    "The {noun} is {adjective} today.", "We had a long {noun}.", "I am {adjective} today.", "My {noun} is {adjective}.",
    "It rains.", "I just had {noun}.", "The {noun} was {adjective}.", "There is no hurry.", "This would help me.",
    "Someone will {todo}.", "The weather is {adjective}.", "I am in a hurry.", "It is for the {noun}.", "What a {noun}.",
)  # fmt: skip
"""Small talk before or after a request; it changes nothing."""

REPORTS = (
    ("Tell the user", "Done", "Result is in", "It worked", "The answer is here", "Finished", "That is it", "All there"),
    ("say so", "report it", "tell the user", "give the result", "reply", "close with a word"),
)  # fmt: skip
FAILURES = (
    ("It failed", "An error", "No luck", "That went wrong", "Not possible"),
    ("say so", "report it", "tell the user"),
)
RETRIES = (
    ("A passing error", "Busy", "The service was down", "It may work now", "Only a hiccup"),
    ("once more", "try it again", "the same call again", "repeat it"),
)
CHATS = (
    ("A greeting", "Only talk", "No tool needed", "Nothing to do", "Words, no task"),
    ("just answer", "a short reply", "be polite", "reply"),
)


def maybe(rng: Rng, labels: tuple[str, ...], acts: tuple[str, ...]) -> str:
    """A reason in one of many wordings, so that none is a signal by itself; sometimes none is given."""
    label, act = rng.choice(labels), rng.choice(acts)
    return rng.choice(
        (f"{label}: {act}.", f"{label}: {act}.", f"{act.capitalize()}.", f"{label}.", f"{label}, {act}.", "")
    )


def next_id(rng: Rng) -> str:
    return f"call_{rng.randrange(10**6)}"


OPENERS = (
    "",
    "",
    "",
    "",
    "",
    "",
    "Hi, ",
    "Please ",
    "Could you ",
    "Hey, ",
    "Now ",
    "Also, ",
    "ok, ",
    "Can you ",
    "Hello! ",
    "Good day! ",
)
CLOSERS = ("", "", "", ".", ".", ".", "!", " please", " thanks", ", thanks.", ", please.")


def aside(rng: Rng) -> str:
    text = rng.choice(ASIDES).replace("{adjective}", adjective(rng)).replace("{todo}", todo(rng))
    return fill(rng, text, {})


def spoken_request(rng: Rng, ask: str) -> str:
    """The request as a user says it: opened, closed, with or without an aside before or after it."""
    opener = rng.choice(OPENERS)
    text = opener + (ask[0].lower() + ask[1:] if opener and not opener.endswith("! ") else ask)
    text += "" if text.endswith("?") else rng.choice(CLOSERS)
    if rng.random() < 0.15:
        text = f"{aside(rng)} {text[0].upper()}{text[1:]}"
    elif text[-1] in ".?!" and rng.random() < 0.15:
        text = f"{text} {aside(rng)}"
    return text


def chat_turn(rng: Rng) -> list[Message]:
    asks, replies = rng.choice(CHAT)
    ask = fill(rng, rng.choice(asks).replace("{small}", str(rng.randrange(20))), {})
    return [
        text_message("user", ask + rng.choice(("", "", ".", "!"))),
        assistant_message(rng.choice(replies), thinking=maybe(rng, *CHATS)),
    ]


TRANSIENT = ("rate limit", "timeout", "busy, try again", "connection reset", "try later", "service unavailable")


def call_steps(rng: Rng, skill: Skillset, values: dict[str, str]) -> tuple[list[Message], str]:
    """Reason, call and result, with a retry where the error was a passing one; and the words of the reply."""
    out: list[Message] = []
    while rng.random() < 0.06:
        call = ToolCall.of(next_id(rng), skill.name, dict(values))
        labels, acts = RETRIES if out else (skill.labels, skill.acts)
        out += [
            assistant_message(thinking=maybe(rng, labels, acts), calls=(call,)),
            tool_result(call, f"error: {rng.choice(TRANSIENT)}", is_error=True),
        ]
    labels, acts = RETRIES if out else (skill.labels, skill.acts)
    call = ToolCall.of(next_id(rng), skill.name, dict(values))
    out.append(assistant_message(thinking=maybe(rng, labels, acts), calls=(call,)))
    if rng.random() < 0.05:
        wrong = rng.choice(("not found", "failed", "not allowed", "no permission", f"bad {noun(rng)}"))
        out.append(tool_result(call, f"error: {wrong}", is_error=True))
        return out, rng.choice((f"That did not work: {wrong}.", f"It failed: {wrong}.", "Sorry, that failed."))
    result = fill(rng, rng.choice(skill.results), values)
    out.append(tool_result(call, result))
    return out, fill(rng, rng.choice(skill.replies), {**values, "result": result})


def call_turn(rng: Rng, skill: Skillset) -> list[Message]:
    """Ask, call, result, reply; now and then the result is an error and the reply says so."""
    values = {key: make(rng) for key, make in skill.values.items()}
    asks = skill.asks
    if skill.name == "Bash" and rng.random() < 0.8:
        shell, asks = rng.choice(SHELL)
        files = {"a": place(rng) if shell[:2] in ("ls", "mk") else path(rng), "b": path(rng)}
        values, asks = {"command": fill(rng, shell, files)}, tuple(fill(rng, ask, files) for ask in asks)
    steps, reply = call_steps(rng, skill, values)
    failed = reply.startswith(("That did not", "It failed", "Sorry"))
    return [
        text_message("user", spoken_request(rng, fill(rng, rng.choice(asks), values))),
        *steps,
        assistant_message(reply, thinking=maybe(rng, *(FAILURES if failed else REPORTS))),
    ]


def double_turn(rng: Rng, skills: list[Skillset]) -> list[Message]:
    """Two requests in one message; the calls follow in their order, one reply ends the turn."""
    asks: list[str] = []
    steps: list[Message] = []
    for skill in rng.sample(skills, 2):
        values = {key: make(rng) for key, make in skill.values.items()}
        asks.append(fill(rng, rng.choice(skill.asks), values))
        more, _ = call_steps(rng, skill, values)
        steps += more
    joint = rng.choice((". Then ", ". Also ", " and then ", ". After that, ", "; "))
    request = f"{asks[0].rstrip('?')}{joint}{asks[1][0].lower()}{asks[1][1:]}"
    return [
        text_message("user", spoken_request(rng, request)),
        *steps,
        assistant_message(rng.choice(("Both are done.", "Done.", "That is done.")), thinking=maybe(rng, *REPORTS)),
    ]


def chained_turn(rng: Rng) -> list[Message]:
    """A value found by one call is an argument of the next."""
    by_name = {skill.name: skill for skill in UNIVERSAL}
    who, file, text, when = name(rng), path(rng), sentence(rng), moment(rng)
    kind = rng.randrange(4)
    if kind == 0:
        found = phone(rng)
        request = rng.choice(
            (
                f"Find the number of {who} in {file} and call to say {text}",
                f"Look {who} up in {file}, then call them: {text}",
            )
        )
        first = ("Grep", {"pattern": who, "path": file}, f"{who}: {found}")
        second = ("phone_call", {"number": found, "message": text})
    elif kind == 1:
        request = rng.choice((f"Send what {file} says to {who}", f"Read {file} and message {who} its text"))
        first = ("Read", {"path": file}, text)
        second = ("send_message", {"to": who, "body": text})
    elif kind == 2:
        address = url(rng)
        request = rng.choice((f"Save the text of {address} to {file}", f"Fetch {address} and write it to {file}"))
        first = ("WebFetch", {"url": address}, text)
        second = ("Write", {"path": file, "content": text})
    else:
        request = rng.choice(
            (f"Read {file} and remind me at {when} of what it says", f"At {when} remind me of what stands in {file}")
        )
        first = ("Read", {"path": file}, text)
        second = ("SetReminder", {"text": text, "time": when})
    out = [text_message("user", spoken_request(rng, request))]
    for tool, arguments, result in (first, (*second, rng.choice(("ok", "done", "sent")))):
        call, skill = ToolCall.of(next_id(rng), tool, arguments), by_name[tool]
        out += [
            assistant_message(thinking=maybe(rng, skill.labels, skill.acts), calls=(call,)),
            tool_result(call, result),
        ]
    reply = rng.choice(("Done.", f"Done, {second[0]} went through.", "That is done."))
    return [*out, assistant_message(reply, thinking=maybe(rng, *REPORTS))]


def lookup_turn(rng: Rng) -> list[Message]:
    """Read a file or page of facts and answer with one of them; sometimes share the file when asked to."""
    known = facts(rng)
    key = rng.choice(list(known))
    is_page = rng.random() < 0.4
    source = url(rng) if is_page else path(rng)
    ask = rng.choice((
        "What is the {key} in {source}?", "Find the {key} in {source}", "Which {key} is given in {source}?",
        "Tell me the {key} that {source} gives", "What does {source} say about the {key}?", "I need the {key}, see {source}",
        "Look into {source}, what is the {key}?", "Open {source}, I want the {key}", "See {source} for the {key}",
        "Get the {key} out of {source}", "The {key} should be in {source}, what is it?", "Read {source}: which {key}?",
    ))  # fmt: skip
    by_name = {skill.name: skill for skill in UNIVERSAL}
    skill = by_name["WebFetch" if is_page else "Read"]
    call = ToolCall.of(next_id(rng), skill.name, {"url": source} if is_page else {"path": source})
    reply = rng.choice(("The {key} is {value}.", "The {key} is {value}.", "{key}: {value}", "It is {value}."))
    out = [
        text_message("user", spoken_request(rng, ask.format(key=key, source=source))),
        assistant_message(thinking=maybe(rng, skill.labels, skill.acts), calls=(call,)),
        tool_result(call, listed(rng, known)),
        assistant_message(reply.format(key=key, value=known[key]), thinking=maybe(rng, *REPORTS)),
    ]
    if not is_page and rng.random() < 0.3:
        again, skill = ToolCall.of(next_id(rng), "ShareFile", {"path": source}), by_name["ShareFile"]
        ask = rng.choice(
            ("Share it with me.", "Send it to me.", "share the file please", "I want that file.", "Pass it over.")
        )
        out += [
            text_message("user", ask),
            assistant_message(thinking=maybe(rng, skill.labels, skill.acts), calls=(again,)),
            tool_result(again, f"shared {source}"),
            assistant_message(f"Shared {source}.", thinking=maybe(rng, *REPORTS)),
        ]
    return out


def tools_of(skills: list[Skillset]) -> tuple[Tool, ...]:
    """What a conversation offers; every parameter is a string."""
    return tuple(
        Tool(
            name=skill.name,
            parameters={"type": "object", "properties": {key: {"type": "string"} for key in skill.values}},
        )
        for skill in skills
    )


def conversation(rng: Rng, turns: int, tool_count: int) -> tuple[list[Message], tuple[Tool, ...]]:
    """``turns`` turns over a list of about ``tool_count`` tools, universal and invented ones mixed."""
    fakes = [invented(rng) for _ in range(max(1, round(tool_count * rng.choice((0.2, 0.4, 0.7)))))]
    real = rng.sample(UNIVERSAL, min(len(UNIVERSAL), max(1, tool_count - len(fakes))))
    chained = len(real) == len(UNIVERSAL) or rng.random() < 0.4
    if chained:
        real = list(UNIVERSAL)
    listed = {skill.name: skill for skill in (*real, *fakes)}
    offered = list(listed.values())
    rng.shuffle(offered)
    messages = [text_message("system", fill(rng, rng.choice(SYSTEMS), {"date": date(rng)}))]
    for _ in range(turns):
        kind = rng.random()
        if kind < 0.15:
            messages += chat_turn(rng)
        elif kind < 0.4 and chained:
            messages += chained_turn(rng) if rng.random() < 0.3 else lookup_turn(rng)
        elif kind < 0.48 and len(real) > 1:
            messages += double_turn(rng, real)
        else:
            messages += call_turn(rng, rng.choice(real if rng.random() < 0.7 else fakes))
    tools = tools_of(offered)
    return messages, tools


def drill(rng: Rng) -> tuple[list[Message], tuple[Tool, ...]]:
    """Copy a value, or look one up among several; short, and nothing but copying helps."""
    kind = rng.random()
    if kind < 0.3:
        value = (
            rng.choice(VALUES)(rng)
            if rng.random() < 0.5
            else " ".join(rng.choice((made_up, noun, token))(rng) for _ in range(rng.randint(2, 8)))
        )
        ask = rng.choice((f"Repeat: {value}", f"Say {value}", f"Copy this: {value}", f'Write "{value}" again'))
        return [text_message("user", ask), assistant_message(value)], ()
    if kind < 0.65:
        pairs = facts(rng)
        lines = "; ".join(f"{key}: {value}" for key, value in pairs.items())
        messages = [text_message("user", lines)]
        for key in rng.sample(list(pairs), min(len(pairs), rng.randint(1, 4))):
            if len(messages) > 1:
                messages.append(text_message("user", f"{key}?"))
            else:
                messages = [text_message("user", f"{lines}. {key}?")]
            messages.append(assistant_message(pairs[key]))
        return messages, ()
    skills = [invented(rng) for _ in range(rng.randint(1, 4))]
    messages = []
    for _ in range(rng.randint(1, 3)):
        skill = rng.choice(skills)
        values = {key: make(rng) for key, make in skill.values.items()}
        call = ToolCall.of(next_id(rng), skill.name, dict(values))
        messages += [
            text_message("user", fill(rng, rng.choice(skill.asks), values)),
            assistant_message(calls=(call,)),
        ]
        messages.append(tool_result(call, "ok"))
    tools = tools_of(skills)
    return messages, tools


def sample(rng: Rng, stage: float) -> tuple[list[Message], tuple[Tool, ...]]:
    """One text of the curriculum; ``stage`` runs from 0 (drills) to 1 (conversations like the real thing)."""
    share_of_drills = max(0.08, 0.9 - 1.8 * stage)
    if rng.random() < share_of_drills:
        return drill(rng)
    longest = 1 + int(4 * stage)
    return conversation(rng, rng.randint(1, longest), rng.randint(2, 4 + int(18 * stage)))
