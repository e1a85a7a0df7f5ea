"""The tools of the generic corpus and the ways people ask for them: universal ones, and ones invented on the spot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draws import (
    VALUES,
    Rng,
    clock,
    code,
    command,
    date,
    hunted,
    made_up,
    moment,
    movie,
    name,
    noun,
    number,
    path,
    phone,
    phrase,
    picture,
    place,
    recipient,
    sentence,
    title,
    todo,
    token,
    topic,
    url,
)  # fmt: skip
from words import VERBS


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
