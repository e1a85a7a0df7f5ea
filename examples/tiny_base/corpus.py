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


class Rng(random.Random):
    """The source of every choice. ``lexicon``: words of the tokenizer, so that each of its pieces is seen and copied."""

    lexicon: tuple[str, ...] = ()


# --- values -----------------------------------------------------------------------------------------------------


def made_up(rng: Rng) -> str:
    """A word nobody has seen, 3 to 9 letters."""
    if rng.lexicon and rng.random() < 0.3:
        return rng.choice(rng.lexicon) + rng.choice(rng.lexicon).lower()
    word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3)))
    return word + (rng.choice(ENDINGS) if rng.random() < 0.6 else "")


def drawn(rng: Rng, words: list[str]) -> str:
    """One of ``words``, now and then any lower-case word of the lexicon."""
    if rng.lexicon and rng.random() < 0.4:
        return rng.choice(rng.lexicon).lower()
    return rng.choice(words)


def word(rng: Rng) -> str:
    return rng.choice(rng.choice((NOUNS, NOUNS, ADJECTIVES, VERBS))) if rng.random() < 0.8 else made_up(rng)


def noun(rng: Rng) -> str:
    return drawn(rng, NOUNS) if rng.random() < 0.9 else made_up(rng)


def adjective(rng: Rng) -> str:
    return drawn(rng, ADJECTIVES)


def name(rng: Rng) -> str:
    first = rng.choice(FIRST) if rng.random() < 0.7 else made_up(rng).capitalize()
    return f"{first} {(made_up(rng) + rng.choice(ENDINGS)).capitalize()}" if rng.random() < 0.75 else first


def phrase(rng: Rng) -> str:
    """Two to six words: a thing, or a thing in a place."""
    kind = rng.random()
    if kind < 0.35:
        return f"{adjective(rng)} {noun(rng)}"
    if kind < 0.6:
        return f"{noun(rng)} {rng.choice(PREPOSITIONS)} the {noun(rng)}"
    if kind < 0.8:
        return f"a {adjective(rng)} {noun(rng)} {rng.choice(PREPOSITIONS)} a {noun(rng)}"
    return " ".join(noun(rng) if rng.random() < 0.6 else adjective(rng) for _ in range(rng.randint(2, 5)))


def todo(rng: Rng) -> str:
    """A thing to do: ``call Anna``, ``renew the lease``."""
    verb = rng.choice(VERBS)
    what = rng.choice((lambda: name(rng), lambda: f"the {noun(rng)}", lambda: f"the {adjective(rng)} {noun(rng)}"))
    tail = f" {rng.choice(PREPOSITIONS)} {noun(rng)}" if rng.random() < 0.25 else ""
    return f"{verb} {what()}{tail}"


def sentence(rng: Rng) -> str:
    """A short statement, as in a message or a file."""
    return rng.choice(
        (
            lambda: f"the {noun(rng)} is {adjective(rng)}",
            lambda: f"please {todo(rng)}",
            lambda: f"{name(rng)} will {todo(rng)}",
            lambda: f"{noun(rng)} at {clock(rng)}",
            lambda: f"the {noun(rng)} costs {number(rng)}",
            lambda: f"the {adjective(rng)} {noun(rng)} {rng.choice(VERBS)}s {noun(rng)} on {date(rng)}",
            lambda: f"the {noun(rng)} is {rng.choice(PREPOSITIONS)} {noun(rng)} {number(rng)}",
            lambda: f"my {noun(rng)} {noun(rng)} is {token(rng)}",
            lambda: f"we {rng.choice(VERBS)} {rng.choice(PREPOSITIONS)} {adjective(rng)} {noun(rng)}",
            lambda: f"I am running late for the {noun(rng)}",
            lambda: phrase(rng),
        )
    )()


def topic(rng: Rng) -> str:
    """What one searches for: a phrase, or a named thing and what one wants to know of it."""
    if rng.random() < 0.5:
        return phrase(rng)
    named = " ".join(noun(rng).capitalize() for _ in range(rng.randint(1, 3)))
    return f"{named} {noun(rng)}" if rng.random() < 0.7 else named


def picture(rng: Rng) -> str:
    kind = rng.choice(("picture", "drawing", "image", "painting", "cartoon", "photo", "icon", "portrait", noun(rng)))
    return (
        f"{kind} {rng.choice(('of', 'of', 'showing', 'with', 'for'))} {rng.choice(('', 'a ', 'the '))}{phrase(rng)}"
    )


def movie(rng: Rng) -> str:
    kind = rng.choice(("video", "clip", "movie", "animation", "short film", noun(rng)))
    return (
        f"{kind} {rng.choice(('of', 'of', 'about', 'showing', 'for'))} {rng.choice(('', 'a ', 'the '))}{phrase(rng)}"
    )


def title(rng: Rng) -> str:
    return rng.choice((phrase(rng), f"{noun(rng)} with {name(rng)}", f"{adjective(rng)} {noun(rng)} {noun(rng)}"))


def token(rng: Rng) -> str:
    """A word, number or code, as stands in a file."""
    return rng.choice((noun, noun, code, number, clock, made_up))(rng)


def hunted(rng: Rng) -> str:
    """What one looks for in a file."""
    return rng.choice((noun, name, phrase, code, lambda rng: f"{adjective(rng)} {noun(rng)}"))(rng)


def place(rng: Rng) -> str:
    """A file or a folder."""
    return path(rng) if rng.random() < 0.6 else "/".join(noun(rng) for _ in range(rng.randint(1, 2)))


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
    labels: tuple[str, ...]
    """What the case is, in a reason given before the call …"""
    acts: tuple[str, ...]
    """… and what to do about it."""
    results: tuple[str, ...] = ("ok", "done")
    replies: tuple[str, ...] = ("Done.",)
    """``{result}`` and the parameters may stand in replies."""


UNIVERSAL: tuple[Skillset, ...] = (
    Skillset(
        "WebFetch",
        {"url": url},
        ("Open {url}", "What does {url} say?", "Fetch {url} for me", "Read the page {url}", "Can you check {url}?",
         "Summarise {url}", "Have a look at {url} please", "Get me the page at {url}", "what is on {url} right now?",
         "Go to {url} and see what it says", "Visit {url}", "Load {url}", "Check {url} for news", "Browse {url}"),
        ("A page", "Web page", "An address", "A link", "The site"),
        ("fetch it", "open it", "get the page", "read it", "load the address"),
        ("{sentence}", "{sentence}. {sentence}.", "Title: {phrase}. {sentence}", "{facts}"),
        ("The page says: {result}", "It says {result}", "Here is what I found: {result}"),
    ),
    Skillset(
        "web_search",
        {"query": topic},
        ("Search the web for {query}", "Look up {query} online", "Find news about {query}", "Google {query}",
         "search for {query}", "What can you find on the web about {query}?", "Do a web search: {query}",
         "I want to know about {query}, search please", "Find out online about {query}", "Web search for {query}",
         "See what the internet knows about {query}", "Is there anything online about {query}?",
         "Find {query} on the net", "Search for {query} in the web", "look online for {query}"),
        ("A lookup", "A web question", "Something online", "News", "The web"),
        ("search the web", "search it", "look it up online", "search for it"),
        ("1. {phrase} {url}", "{url} {sentence}", "{phrase}: {sentence}", "{url} {noun}: {number}."),
        ("I found: {result}", "Top result: {result}", "Here it is: {result}"),
    ),
    Skillset(
        "Bash",
        {"command": command},
        ("Run {command}", "run `{command}`", "Execute {command} in the shell", "Please run the command {command}",
         "What does {command} print?", "In the terminal: {command}", "Use the shell: {command}"),
        ("A command", "A shell job", "The shell", "Terminal"),
        ("run it", "run the command", "execute it", "one shell command"),
        ("{path}", "{number}", "{path} {path}", "ok"),
        ("The output is {result}", "Done: {result}", "It printed {result}"),
    ),
    Skillset(
        "Read",
        {"path": path},
        ("Show me {path}", "What is in {path}?", "Open the file {path}", "read {path}", "Read out {path} to me",
         "Let me see the contents of {path}", "What does {path} say?", "Print {path}", "Have a look into {path}",
         "Go through {path}", "Open {path} and tell me what it says", "I want to see {path}", "display {path}"),
        ("A file", "The file", "A text", "A document", "Its content"),
        ("read it", "open it", "look inside", "get the text"),
        ("{sentence}", "{sentence}. {sentence}.", "{name}: {phone}", "{facts}"),
        ("It says: {result}", "The file says {result}", "{path} contains: {result}"),
    ),
    Skillset(
        "Write",
        {"path": path, "content": sentence},
        ("Create {path} with the text {content}", "Save '{content}' to {path}", "Write {content} into {path}",
         "Make a file {path} that says {content}", "Put the line {content} in a new file {path}",
         "new file {path}: {content}", 'Write a note "{content}" and store it as {path}',
         "Create a file {path} with {content}", "Store {content} in {path}", "I need {path} to say {content}",
         "Start {path} with the words {content}", "Save {content} as {path}", "Write a file {path}: {content}"),
        ("A new file", "Text to save", "A note", "A fresh file", "Something to store"),
        ("write it", "save the text", "create it", "store it"),
        ("wrote {path}", "ok", "saved"),
        ("Saved {path}.", "I wrote {path}.", "Done."),
    ),
    Skillset(
        "Edit",
        {"path": path, "old": token, "new": token},
        ("In {path} replace {old} with {new}", "Change {old} to {new} in {path}", "{path}: swap {old} for {new}",
         "Edit {path} so that {old} becomes {new}", "Please fix {path}, it should say {new} instead of {old}",
         "In the file {path} {old} must become {new}", "Update {path}: {new} in place of {old}",
         "{old} in {path} is wrong, make it {new}", "Turn {old} into {new} in {path}", "Use {new} for {old} in {path}",
         "Exchange {old} for {new} in {path}", "Correct {path}, {old} should read {new}"),
        ("A change", "A correction", "A text to replace", "The file changes"),
        ("edit the file", "edit it", "replace the text", "change it"),
        ("edited {path}", "ok", "1 replacement"),
        ("Changed {old} to {new}.", "Done.", "{path} now says {new}."),
    ),
    Skillset(
        "Grep",
        {"pattern": hunted, "path": place},
        ("Which lines of {path} mention {pattern}?", "Search for {pattern} in {path}", "grep {pattern} in {path}",
         "Find {pattern} inside {path}", "Does {path} contain {pattern}?", "Look for {pattern} in the file {path}",
         "Search {path} for {pattern}", "Go through {path} and find {pattern}", "Where does {path} mention {pattern}?",
         "Who wrote about {pattern} in {path}?", "Is there {pattern} anywhere in {path}?", "Scan {path} for {pattern}"),
        ("Words in a file", "A text search", "Lines to find", "Contents"),
        ("search for the text", "find the lines", "look for it", "search inside"),
        ("{number}: {sentence}", "{sentence}", "no match", "{path}: {sentence}"),
        ("Found: {result}", "It matches: {result}", "{result}"),
    ),
    Skillset(
        "ShareFile",
        {"path": path},
        ("Share {path} with me", "Send me the file {path}", "Share {path}", "I need a link to {path}",
         "Please give me {path} for download", "Can I get {path}?", "Send {path} over", "I would like to have {path}",
         "Hand over {path}", "Make {path} available to me", "May I download {path}?", "Let me download {path}"),
        ("A file to hand over", "A download", "The file is wanted", "Sharing"),
        ("share it", "share the file", "send it", "hand it over"),
        ("link https://share/{code}", "shared {path}", "ok"),
        ("Shared {path}.", "Here it is: {result}", "Done."),
    ),
    Skillset(
        "ImageGenerator",
        {"prompt": picture},
        ("Draw {prompt}", "Generate an image: {prompt}", "I want an image: {prompt}", "Please make a {prompt}",
         "Paint {prompt} for me", "Create a {prompt}", "Can you draw a {prompt}?", "Design a {prompt}",
         "Make a {prompt}", "I need a {prompt}", "Could I have a {prompt}?", "Image wanted: {prompt}"),
        ("A picture", "An image", "Something to draw", "Art"),
        ("draw it", "generate it", "make the image", "generate the picture"),
        ("image {code}.png", "saved {path}", "img_{number}"),
        ("Here is the image: {result}", "Done.", "I made it: {result}"),
    ),
    Skillset(
        "VideoGenerator",
        {"prompt": movie},
        ("Generate a {prompt}", "Create a short {prompt}", "Make a {prompt}", "Please produce a {prompt}",
         "I need a {prompt}", "Film {prompt} for me", "Can you create a {prompt}?", "Could I have a {prompt}?",
         "Video wanted: {prompt}", "Shoot a {prompt}"),
        ("A video", "A clip", "Something to film", "Moving pictures"),
        ("generate it", "make the video", "generate the clip", "film it"),
        ("video {code}.mp4", "saved {path}", "vid_{number}"),
        ("Here is the video: {result}", "Done.", "I made it: {result}"),
    ),
    Skillset(
        "SetReminder",
        {"text": todo, "time": moment},
        ("Remind me to {text} at {time}", "Set a reminder at {time} to {text}", "At {time} remind me to {text}",
         "I must {text} at {time}, remind me", "Reminder for {time}: {text}", "ping me at {time} to {text}",
         "Please set a reminder to {text}, {time}", "Don't let me forget to {text} at {time}",
         "Wake me at {time} to {text}", "{time}: {text}, remind me of that", "I want a reminder to {text} at {time}",
         "Make a reminder for {time} to {text}", "Tell me at {time} to {text}"),
        ("A reminder", "Something to remember later", "A time to be told", "An alarm"),
        ("set it", "set the reminder", "remind the user", "set it for then"),
        ("reminder set", "ok", "set for {time}"),
        ("I will remind you at {time}.", "Reminder set.", "Done, {time}."),
    ),
    Skillset(
        "phone_call",
        {"number": phone, "message": sentence},
        ("Call {number} and say {message}", "Phone {number}: {message}", "Ring {number} and tell them {message}",
         "Please call {number} with the message {message}", "Make a call to {number}, say that {message}",
         "Telephone {number} and say that {message}", "Tell {number} by phone that {message}",
         "Ring up {number}, the message is {message}", "Call {number}, tell them that {message}",
         "Give {number} a ring: {message}", "Could you phone {number} to tell them {message}?"),
        ("A call", "A phone call", "Someone to ring", "The phone"),
        ("make the call", "call the number", "ring them", "call and say it"),
        ("call ended: {sentence}", "answered", "they said {sentence}"),
        ("I called {number}.", "They answered: {result}", "Done."),
    ),
    Skillset(
        "calendar_event",
        {"title": title, "date": date, "start": clock, "end": clock},
        ("Put {title} in my calendar on {date} from {start} to {end}", "Schedule {title} for {date}, {start} to {end}",
         "Book {title} on {date} {start}-{end}", "Add an event {title}: {date} {start} until {end}",
         "On {date} from {start} to {end} I have {title}, add it", "calendar: {title}, {date}, {start} - {end}",
         "Enter a {title} on {date} between {start} and {end}", "Note a {title} on {date}, {start} to {end}",
         "Plan a {title} for {date} from {start} to {end}", "Keep {start} to {end} on {date} free for a {title}",
         "There is a {title} on {date} from {start} to {end}, put it in", "Arrange a {title} on {date}, {start} to {end}"),
        ("An event", "A date", "A calendar entry", "A meeting"),
        ("add it", "put it in the calendar", "enter it", "book it"),
        ("event created", "ok", "added {title}"),
        ("Added {title} on {date}.", "It is in your calendar.", "Done."),
    ),
    Skillset(
        "send_message",
        {"to": recipient, "body": sentence},
        ("Send {to} a message: {body}", "Tell {to} that {body}", "Message {to}: {body}", "Write to {to}: {body}",
         "Let {to} know that {body}", "send '{body}' to {to}", "Drop {to} a line saying {body}",
         "Email {to} and say {body}", "Mail {to} that {body}", "Write {to} an email that {body}",
         "Inform {to} that {body}", "A message for {to}: {body}", "Text {to} that {body}",
         "Send a mail to {to}, saying {body}", "Reach out to {to} and write that {body}"),
        ("A message", "Something to send", "Mail", "A note to someone"),
        ("send it", "send the message", "write to them", "pass it on"),
        ("sent", "ok", "delivered to {to}"),
        ("Sent to {to}.", "I told {to}.", "Done."),
    ),
)  # fmt: skip

SHELL: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("mv {a} {b}", ("Rename {a} to {b}", "Move {a} to {b}", "Rename the file {a}, call it {b}", "{a} moves to {b}")),
    ("cp {a} {b}", ("Copy {a} to {b}", "Make a copy of {a} called {b}", "Duplicate {a} to {b}", "Copy the file {a}, name it {b}")),
    ("rm {a}", ("Delete {a}", "Remove the file {a}", "Drop the file {a}", "{a} can go, delete it", "Wipe {a}")),
    ("wc -l {a}", ("Count the lines of {a}", "How many lines has {a}?", "Number of lines in {a}?", "Line count of {a}")),
    ("ls {a}", ("List the folder {a}", "What is in the folder {a}?", "Show the folder {a}")),
    ("mkdir {a}", ("Make a folder {a}", "Create the directory {a}", "New folder {a}")),
    ("head -n 5 {a}", ("Show the first 5 lines of {a}", "The top 5 lines of {a}")),
)  # fmt: skip
"""What everybody's shell can do, in words."""

SLOTS: dict[str, Callable[[Rng], str]] = {
    "sentence": sentence, "phrase": phrase, "url": url, "path": path, "number": number, "name": name,
    "phone": phone, "noun": noun, "code": code, "time": clock, "facts": lambda rng: listed(rng, facts(rng)),
}  # fmt: skip


def facts(rng: Rng) -> dict[str, str]:
    """A few named values, as in a form or a notice."""
    return {rng.choice((noun, noun, name, made_up))(rng): rng.choice(VALUES)(rng) for _ in range(rng.randint(2, 5))}


def listed(rng: Rng, known: dict[str, str]) -> str:
    """Named values as one line."""
    style = rng.choice(("{key}: {value}. ", "{key}: {value}; ", "{key} is {value}. ", "{key}={value} "))
    return "".join(style.format(key=key, value=value) for key, value in known.items()).strip()


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
    named = " and ".join(f"{key} {{{key}}}" for key in parameters)
    comma = ", ".join(f"{key}: {{{key}}}" for key in parameters)
    bare = " ".join(f"{{{key}}}" for key in parameters)
    spoken = f"{verb} the {thing}" if style < 0.7 else f"use {tool}"
    asks = (
        f"{spoken} with {named}", f"please {spoken}, {comma}", f"{spoken}: {bare}", f"Can you {spoken}? {named}",
        f"I want you to {spoken} ({comma})", f"{tool} {named}", f"{spoken.capitalize()} for {bare}",
    )  # fmt: skip
    results = ("{sentence}", "ok", "{code}", "{number}", "{phrase}", "{name}", "{url}")
    replies = ("Done: {result}", "The answer is {result}", "Here you are: {result}", "{result}", "Done.")
    return Skillset(
        tool,
        parameters,
        asks,
        (f"{verb.capitalize()} the {thing}", "This tool fits", f"{tool} can do it", "A tool for that"),
        ("call it", f"use {tool}", f"call {tool}"),
        results,
        replies,
    )


# --- conversations ----------------------------------------------------------------------------------------------

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
