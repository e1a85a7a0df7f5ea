"""Generic tool conversations: requests that name their values, tools that say what they take, short replies.

Nothing here knows any platform's conventions: a tool is called when the user asks for what its name says, and every
argument is copied from the request or from an earlier result. Random strings, names, paths, times and numbers make
copying the only way to be right. Three kinds of text, by difficulty: drills (copy, look up), one-turn conversations,
and conversations of several turns.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from words import ADJECTIVES, DOMAINS, ENDINGS, EXTENSIONS, FIRST, NOUNS, PREPOSITIONS, SYLLABLES, VERBS

from firstchair.chat.messages import Message, Tool, ToolCall, assistant_message, text_message, tool_result

Rng = random.Random


# --- values -----------------------------------------------------------------------------------------------------


def made_up(rng: Rng) -> str:
    """A word nobody has seen, 3 to 9 letters."""
    word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3)))
    return word + (rng.choice(ENDINGS) if rng.random() < 0.6 else "")


def word(rng: Rng) -> str:
    return rng.choice(rng.choice((NOUNS, NOUNS, ADJECTIVES, VERBS))) if rng.random() < 0.8 else made_up(rng)


def noun(rng: Rng) -> str:
    return rng.choice(NOUNS) if rng.random() < 0.85 else made_up(rng)


def name(rng: Rng) -> str:
    first = rng.choice(FIRST) if rng.random() < 0.7 else made_up(rng).capitalize()
    return f"{first} {(made_up(rng) + rng.choice(ENDINGS)).capitalize()}" if rng.random() < 0.75 else first


def phrase(rng: Rng) -> str:
    """Two to six words: a thing, or a thing in a place."""
    kind = rng.random()
    if kind < 0.35:
        return f"{rng.choice(ADJECTIVES)} {noun(rng)}"
    if kind < 0.6:
        return f"{noun(rng)} {rng.choice(PREPOSITIONS)} the {noun(rng)}"
    if kind < 0.8:
        return f"a {rng.choice(ADJECTIVES)} {noun(rng)} {rng.choice(PREPOSITIONS)} a {noun(rng)}"
    return " ".join(noun(rng) if rng.random() < 0.6 else rng.choice(ADJECTIVES) for _ in range(rng.randint(2, 5)))


def todo(rng: Rng) -> str:
    """A thing to do: ``call Anna``, ``renew the lease``."""
    verb = rng.choice(VERBS)
    what = rng.choice(
        (lambda: name(rng), lambda: f"the {noun(rng)}", lambda: f"the {rng.choice(ADJECTIVES)} {noun(rng)}")
    )
    tail = f" {rng.choice(PREPOSITIONS)} {noun(rng)}" if rng.random() < 0.25 else ""
    return f"{verb} {what()}{tail}"


def sentence(rng: Rng) -> str:
    """A short statement, as in a message or a file."""
    return rng.choice(
        (
            lambda: f"the {noun(rng)} is {rng.choice(ADJECTIVES)}",
            lambda: f"please {todo(rng)}",
            lambda: f"{name(rng)} will {todo(rng)}",
            lambda: f"{noun(rng)} at {clock(rng)}",
            lambda: f"the {noun(rng)} costs {number(rng)}",
            lambda: f"we {rng.choice(VERBS)} {rng.choice(PREPOSITIONS)} {rng.choice(ADJECTIVES)} {noun(rng)}",
            lambda: f"I am running late for the {noun(rng)}",
            lambda: phrase(rng),
        )
    )()


def number(rng: Rng) -> str:
    return str(rng.randrange(10 ** rng.randint(1, 5)))


def clock(rng: Rng) -> str:
    return f"{rng.randrange(24):02d}:{rng.choice((0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55)):02d}"


def date(rng: Rng) -> str:
    return f"{rng.randint(2023, 2028)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def moment(rng: Rng) -> str:
    return rng.choice((clock(rng), f"{date(rng)} {clock(rng)}", clock(rng)))


def phone(rng: Rng) -> str:
    digits = "".join(rng.choice("0123456789") for _ in range(9))
    return rng.choice(
        (f"+{digits[:2]} {digits[2:5]} {digits[5:]}", f"{digits[:3]}-{digits[3:7]}", f"555-{digits[:4]}")
    )


def stem(rng: Rng) -> str:
    joiner = rng.choice("_-_")
    return joiner.join(noun(rng) for _ in range(rng.randint(1, 2))) + (
        rng.choice(("", "", f"{joiner}{rng.randrange(100)}"))
    )


def path(rng: Rng) -> str:
    folders = "".join(f"{noun(rng)}/" for _ in range(rng.choice((0, 1, 1, 2))))
    root = rng.choice(("", "", "/"))
    return f"{root}{folders}{stem(rng)}.{rng.choice(EXTENSIONS)}"


def url(rng: Rng) -> str:
    scheme = rng.choice(("https://", "https://", "http://", "www."))
    tail = rng.choice(("", f"/{noun(rng)}", f"/{noun(rng)}/{stem(rng)}", f"/{stem(rng)}.html"))
    return f"{scheme}{rng.choice((noun, made_up))(rng)}.{rng.choice(DOMAINS)}{tail}"


def email(rng: Rng) -> str:
    return f"{made_up(rng)}@{noun(rng)}.{rng.choice(DOMAINS)}"


def code(rng: Rng) -> str:
    letters = "".join(rng.choice("abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.randint(1, 3)))
    return f"{letters}{rng.choice(('', '-', '_'))}{rng.randrange(10 ** rng.randint(1, 4))}"


def command(rng: Rng) -> str:
    return rng.choice(
        (
            lambda: f"ls {noun(rng)}",
            lambda: f"wc -l {path(rng)}",
            lambda: f"head -n {rng.randint(1, 20)} {path(rng)}",
            lambda: f"mkdir {noun(rng)}/{noun(rng)}",
            lambda: f"mv {path(rng)} {path(rng)}",
            lambda: f"cp {path(rng)} {noun(rng)}/",
            lambda: f"rm {path(rng)}",
            lambda: "pwd",
            lambda: "date",
            lambda: f"echo {word(rng)}",
        )
    )()


def recipient(rng: Rng) -> str:
    return rng.choice((name, email, email))(rng)


VALUES: tuple[Callable[[Rng], str], ...] = (
    word, noun, name, phrase, todo, sentence, number, clock, date, moment, phone, path, url, email, code, made_up,
)  # fmt: skip


# --- tools ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Skillset:
    """A tool with the ways people ask for it. ``asks`` hold ``{parameter}`` slots."""

    name: str
    values: dict[str, Callable[[Rng], str]]
    asks: tuple[str, ...]
    reasons: tuple[str, ...]
    results: tuple[str, ...] = ("ok", "done")
    replies: tuple[str, ...] = ("Done.",)
    """``{result}`` and the parameters may stand in replies."""


UNIVERSAL: tuple[Skillset, ...] = (
    Skillset(
        "WebFetch",
        {"url": url},
        ("Open {url}", "What does {url} say?", "Fetch {url} for me", "Read the page {url}", "Can you check {url}?",
         "Summarise {url}", "Have a look at {url} please", "Get me the page at {url}", "what is on {url} right now?"),
        ("The user gave a URL; fetch it.", "I need the page.", "A page to open."),
        ("{sentence}", "{sentence}. {sentence}.", "Title: {phrase}. {sentence}"),
        ("The page says: {result}", "It says {result}", "Here is what I found: {result}"),
    ),
    Skillset(
        "web_search",
        {"query": phrase},
        ("Search the web for {query}", "Look up {query} online", "Find news about {query}", "Google {query}",
         "search for {query}", "What can you find on the web about {query}?", "Do a web search: {query}",
         "I want to know about {query}, search please", "Find out online about {query}"),
        ("Search the web.", "This needs a web search.", "Look it up online."),
        ("1. {phrase} {url}", "{url} {sentence}", "{phrase}: {sentence}"),
        ("I found: {result}", "Top result: {result}", "Here it is: {result}"),
    ),
    Skillset(
        "Bash",
        {"command": command},
        ("Run {command}", "run `{command}`", "Execute {command} in the shell", "Please run the command {command}",
         "What does {command} print?", "In the terminal: {command}"),
        ("Run the command.", "A shell command.", "Use the shell."),
        ("{path}", "{number}", "{path} {path}", "ok"),
        ("The output is {result}", "Done: {result}", "It printed {result}"),
    ),
    Skillset(
        "Read",
        {"path": path},
        ("Show me {path}", "What is in {path}?", "Open the file {path}", "read {path}", "Read out {path} to me",
         "Let me see the contents of {path}", "What does {path} say?", "Print {path}", "Have a look into {path}"),
        ("Read the file.", "I need the file's content.", "Open the file."),
        ("{sentence}", "{sentence}. {sentence}.", "{name}: {phone}", "{noun}: {number}"),
        ("It says: {result}", "The file says {result}", "{path} contains: {result}"),
    ),
    Skillset(
        "Write",
        {"path": path, "content": sentence},
        ("Create {path} with the text {content}", "Save '{content}' to {path}", "Write {content} into {path}",
         "Make a file {path} that says {content}", "Put the line {content} in a new file {path}",
         "new file {path}: {content}", 'Write a note "{content}" and store it as {path}'),
        ("Write the file.", "A new file.", "Save the text."),
        ("wrote {path}", "ok", "saved"),
        ("Saved {path}.", "I wrote {path}.", "Done."),
    ),
    Skillset(
        "Edit",
        {"path": path, "old": noun, "new": noun},
        ("In {path} replace {old} with {new}", "Change {old} to {new} in {path}", "{path}: swap {old} for {new}",
         "Edit {path} so that {old} becomes {new}", "Please fix {path}, it should say {new} instead of {old}"),
        ("Edit the file.", "Replace the text.", "A change in the file."),
        ("edited {path}", "ok", "1 replacement"),
        ("Changed {old} to {new}.", "Done.", "{path} now says {new}."),
    ),
    Skillset(
        "Grep",
        {"pattern": noun, "path": path},
        ("Which lines of {path} mention {pattern}?", "Search for {pattern} in {path}", "grep {pattern} in {path}",
         "Find {pattern} inside {path}", "Does {path} contain {pattern}?", "Look for {pattern} in the file {path}"),
        ("Search in the file.", "Look for the text.", "Find the lines."),
        ("{number}: {sentence}", "{sentence}", "no match"),
        ("Found: {result}", "It matches: {result}", "{result}"),
    ),
    Skillset(
        "ShareFile",
        {"path": path},
        ("Share {path} with me", "Send me the file {path}", "Share {path}", "I need a link to {path}",
         "Please give me {path} for download", "Can I get {path}?"),
        ("Share the file.", "The user wants the file.", "Send it."),
        ("link https://share/{code}", "shared {path}", "ok"),
        ("Shared {path}.", "Here it is: {result}", "Done."),
    ),
    Skillset(
        "ImageGenerator",
        {"prompt": phrase},
        ("Draw {prompt}", "Make a picture of {prompt}", "Generate an image of {prompt}", "I want an image: {prompt}",
         "Paint {prompt} for me", "Create an illustration of {prompt}", "Can you make an image showing {prompt}?"),
        ("Make an image.", "The user wants a picture.", "Generate it."),
        ("image {code}.png", "saved {path}", "img_{number}"),
        ("Here is the image: {result}", "Done.", "I made it: {result}"),
    ),
    Skillset(
        "VideoGenerator",
        {"prompt": phrase},
        ("Make a video of {prompt}", "Generate a clip of {prompt}", "Create a short video showing {prompt}",
         "I need a video: {prompt}", "Film {prompt} for me", "Produce a video about {prompt}"),
        ("Make a video.", "The user wants a video.", "Generate a clip."),
        ("video {code}.mp4", "saved {path}", "vid_{number}"),
        ("Here is the video: {result}", "Done.", "I made it: {result}"),
    ),
    Skillset(
        "SetReminder",
        {"text": todo, "time": moment},
        ("Remind me to {text} at {time}", "Set a reminder at {time} to {text}", "At {time} remind me to {text}",
         "I must {text} at {time}, remind me", "Reminder for {time}: {text}", "ping me at {time} to {text}",
         "Please set a reminder to {text}, {time}", "Don't let me forget to {text} at {time}"),
        ("Set a reminder.", "A reminder is wanted.", "Remind the user."),
        ("reminder set", "ok", "set for {time}"),
        ("I will remind you at {time}.", "Reminder set.", "Done, {time}."),
    ),
    Skillset(
        "phone_call",
        {"number": phone, "message": sentence},
        ("Call {number} and say {message}", "Phone {number}: {message}", "Ring {number} and tell them {message}",
         "Please call {number} with the message {message}", "Make a call to {number}, say that {message}"),
        ("Make the call.", "A phone call.", "Call the number."),
        ("call ended: {sentence}", "answered", "they said {sentence}"),
        ("I called {number}.", "They answered: {result}", "Done."),
    ),
    Skillset(
        "calendar_event",
        {"title": phrase, "date": date, "start": clock, "end": clock},
        ("Put {title} in my calendar on {date} from {start} to {end}", "Schedule {title} for {date}, {start} to {end}",
         "Book {title} on {date} {start}-{end}", "Add an event {title}: {date} {start} until {end}",
         "On {date} from {start} to {end} I have {title}, add it", "calendar: {title}, {date}, {start} - {end}"),
        ("Add the event.", "A calendar entry.", "Put it in the calendar."),
        ("event created", "ok", "added {title}"),
        ("Added {title} on {date}.", "It is in your calendar.", "Done."),
    ),
    Skillset(
        "send_message",
        {"to": recipient, "body": sentence},
        ("Send {to} a message: {body}", "Tell {to} that {body}", "Message {to}: {body}", "Write to {to}: {body}",
         "Let {to} know that {body}", "send '{body}' to {to}", "Drop {to} a line saying {body}",
         "Email {to} and say {body}"),
        ("Send the message.", "A message to send.", "Write to them."),
        ("sent", "ok", "delivered to {to}"),
        ("Sent to {to}.", "I told {to}.", "Done."),
    ),
)  # fmt: skip

SLOTS: dict[str, Callable[[Rng], str]] = {
    "sentence": sentence, "phrase": phrase, "url": url, "path": path, "number": number, "name": name,
    "phone": phone, "noun": noun, "code": code, "time": clock,
}  # fmt: skip


def fill(rng: Rng, template: str, values: dict[str, str]) -> str:
    """``template`` with its slots filled from ``values``, else with fresh random values."""
    out = template
    for slot in (*values, *SLOTS):
        marker = "{" + slot + "}"
        while marker in out:
            out = out.replace(marker, values.get(slot) or SLOTS[slot](rng), 1)
    return out


def invented(rng: Rng) -> Skillset:
    """A tool that exists in this conversation only: its name and parameters must be read."""
    style = rng.random()
    verb, thing = rng.choice(VERBS), noun(rng)
    tool = (
        f"{verb}_{thing}"
        if style < 0.5
        else f"{verb.capitalize()}{thing.capitalize()}"
        if style < 0.7
        else made_up(rng)
    )
    parameters: dict[str, Callable[[Rng], str]] = {}
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        parameters[rng.choice((noun, noun, made_up))(rng)] = rng.choice(VALUES)
    listed = " and ".join(f"{key} {{{key}}}" for key in parameters)
    comma = ", ".join(f"{key}: {{{key}}}" for key in parameters)
    bare = " ".join(f"{{{key}}}" for key in parameters)
    spoken = f"{verb} the {thing}" if style < 0.7 else f"use {tool}"
    asks = (
        f"{spoken} with {listed}", f"please {spoken}, {comma}", f"{spoken}: {bare}", f"Can you {spoken}? {listed}",
        f"I want you to {spoken} ({comma})", f"{tool} {listed}", f"{spoken.capitalize()} for {bare}",
    )  # fmt: skip
    results = ("{sentence}", "ok", "{code}", "{number}", "{phrase}", "{name}", "{url}")
    replies = ("Done: {result}", "The answer is {result}", "Here you are: {result}", "{result}", "Done.")
    return Skillset(tool, parameters, asks, (f"Use {tool}.", "This tool fits.", "Call it."), results, replies)


# --- conversations ----------------------------------------------------------------------------------------------

SYSTEMS = (
    "You are a helpful assistant.", "You are an assistant with tools.", "Help the user. Today is {date}.",
    "You are an office assistant. It is {date} {time}.", "Use the tools when needed.", "Be brief. Date: {date}.",
    "You run a desk of tools for {name}. Now: {date} {time}.", "Assistant of {name}. {sentence}.",
    "You help {name} with daily work. Notes: {sentence}; {sentence}.",
)  # fmt: skip

CHAT = (
    (("Hi", "Hello", "Hey there", "Good morning", "hi {name} here", "Good evening!"),
     ("Hello! How can I help?", "Hi, what can I do for you?", "Good day. What do you need?")),
    (("Thanks", "Thank you", "thanks, that is all", "Great, thanks!", "Perfect, thank you", "cheers"),
     ("You are welcome.", "Glad to help.", "Any time.")),
    (("How are you?", "How is it going?", "All well?"), ("I am well. What can I do for you?", "Fine, thank you.")),
    (("Tell me a joke", "Say something nice", "I had a long day", "The {noun} was {phrase}", "I like {noun}"),
     ("I hope your day goes well.", "That is nice to hear.", "I see.")),
    (("What is {small} plus {small}?", "Is {name} a name?", "Do you know {name}?"), ("I am not sure.", "Let me think about it.")),
    (("ok", "I see", "never mind", "good", "no, that is all"), ("All right.", "Let me know if you need anything.", "Good.")),
)  # fmt: skip


def chat_turn(rng: Rng) -> list[Message]:
    asks, replies = rng.choice(CHAT)
    ask = fill(rng, rng.choice(asks).replace("{small}", str(rng.randrange(20))), {})
    return [
        text_message("user", ask),
        assistant_message(rng.choice(replies), thinking=maybe(rng, ("No tool needed.", "Just answer."))),
    ]


def maybe(rng: Rng, reasons: tuple[str, ...]) -> str:
    return rng.choice(reasons) if rng.random() < 0.85 else ""


def next_id(rng: Rng) -> str:
    return f"call_{rng.randrange(10**6)}"


OPENERS = ("", "", "", "", "", "Hi, ", "Please ", "Could you ", "Hey, ", "Now ", "Also, ", "ok, ")
CLOSERS = ("", "", "", "", ".", ".", "!", " please", " thanks", ". It is for the {noun}.", ", I am in a hurry.")


def spoken_request(rng: Rng, ask: str) -> str:
    opener = rng.choice(OPENERS)
    text = opener + (ask[0].lower() + ask[1:] if opener else ask)
    closer = rng.choice(CLOSERS)
    return text + ("" if text.endswith("?") else fill(rng, closer, {}))


def call_turn(rng: Rng, skill: Skillset) -> list[Message]:
    """Ask, call, result, reply; now and then the result is an error and the reply says so."""
    values = {key: make(rng) for key, make in skill.values.items()}
    request = spoken_request(rng, fill(rng, rng.choice(skill.asks), values))
    call = ToolCall.of(next_id(rng), skill.name, dict(values))
    out = [text_message("user", request), assistant_message(thinking=maybe(rng, skill.reasons), calls=(call,))]
    if rng.random() < 0.06:
        wrong = rng.choice(("not found", "failed", "not allowed", "rate limit", f"bad {noun(rng)}"))
        out.append(tool_result(call, f"error: {wrong}", is_error=True))
        reply = rng.choice((f"That did not work: {wrong}.", f"It failed: {wrong}.", "Sorry, that failed."))
    else:
        result = fill(rng, rng.choice(skill.results), values)
        out.append(tool_result(call, result))
        reply = fill(rng, rng.choice(skill.replies), {**values, "result": result})
    out.append(assistant_message(reply, thinking=maybe(rng, ("Tell the user.", "Done.", "Report it."))))
    return out


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
    calls = [ToolCall.of(next_id(rng), first[0], first[1]), ToolCall.of(next_id(rng), second[0], second[1])]
    return [
        text_message("user", spoken_request(rng, request)),
        assistant_message(thinking=maybe(rng, by_name[first[0]].reasons), calls=(calls[0],)),
        tool_result(calls[0], first[2]),
        assistant_message(thinking=maybe(rng, by_name[second[0]].reasons), calls=(calls[1],)),
        tool_result(calls[1], rng.choice(("ok", "done", "sent"))),
        assistant_message(rng.choice(("Done.", f"Done, {second[0]} went through.", "That is done."))),
    ]


def facts(rng: Rng) -> dict[str, str]:
    """A few named values, as in a form or a notice."""
    return {rng.choice((noun, noun, name, made_up))(rng): rng.choice(VALUES)(rng) for _ in range(rng.randint(2, 5))}


def lookup_turn(rng: Rng) -> list[Message]:
    """Read a file or page of facts and answer with one of them; sometimes share or send the file afterwards."""
    known = facts(rng)
    key = rng.choice(list(known))
    style = rng.choice(("{key}: {value}. ", "{key}: {value}; ", "{key} is {value}. ", "{key}={value} "))
    body = "".join(style.format(key=k, value=v) for k, v in known.items()).strip()
    is_page = rng.random() < 0.4
    source = url(rng) if is_page else path(rng)
    ask = rng.choice((
        "What is the {key} in {source}?", "Find the {key} in {source}", "Which {key} does {source} give?",
        "Tell me the {key} from {source}", "According to {source}, what is the {key}?", "I need the {key}, see {source}",
    ))  # fmt: skip
    tool = {"url": source} if is_page else {"path": source}
    by_name = {skill.name: skill for skill in UNIVERSAL}
    first = "WebFetch" if is_page else "Read"
    call = ToolCall.of(next_id(rng), first, tool)
    reply = rng.choice(("The {key} is {value}.", "{key}: {value}", "It is {value}.", "{value}"))
    out = [
        text_message("user", spoken_request(rng, ask.format(key=key, source=source))),
        assistant_message(thinking=maybe(rng, by_name[first].reasons), calls=(call,)),
        tool_result(call, body),
        assistant_message(
            reply.format(key=key, value=known[key]), thinking=maybe(rng, ("Tell the user.", "Report it."))
        ),
    ]
    if not is_page and rng.random() < 0.3:
        again = ToolCall.of(next_id(rng), "ShareFile", {"path": source})
        out += [
            text_message("user", rng.choice(("Share it with me.", "Send me that file.", "share the file please"))),
            assistant_message(thinking=maybe(rng, by_name["ShareFile"].reasons), calls=(again,)),
            tool_result(again, f"shared {source}"),
            assistant_message(f"Shared {source}.", thinking=maybe(rng, ("Done.",))),
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
            messages += chained_turn(rng) if rng.random() < 0.5 else lookup_turn(rng)
        else:
            messages += call_turn(rng, rng.choice(real if rng.random() < 0.6 else list(fakes)))
    tools = tools_of(offered)
    return messages, tools


def drill(rng: Rng) -> tuple[list[Message], tuple[Tool, ...]]:
    """Copy a value, or look one up among several; short, and nothing but copying helps."""
    kind = rng.random()
    if kind < 0.3:
        value = (
            rng.choice(VALUES)(rng)
            if rng.random() < 0.5
            else " ".join(made_up(rng) for _ in range(rng.randint(2, 8)))
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
