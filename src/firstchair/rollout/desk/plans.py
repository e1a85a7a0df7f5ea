"""The routing policy as code: per intent a plan, a generator that yields calls and returns the final reply.

A plan is a pure function of what was said and of the results that come back. Driven against the calls already in
a conversation (``routing.decide``), it tells the right next action in any state, a derailed one too.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from firstchair.rollout.desk.parsing import Intent, answer_value


@dataclass(frozen=True)
class Step:
    """One call that the policy wants; ``row`` is the policy row that asks for it."""

    tool: str
    arguments: Mapping[str, str]
    row: str


@dataclass(frozen=True)
class Reply:
    """The final reply of a turn."""

    text: str
    row: str
    facts: tuple[str, ...] = ()
    """What a truthful reply must contain."""
    denies: bool = False
    """Whether it must say that something did not work."""


@dataclass(frozen=True)
class Seen:
    """What the model has been told so far, outside of this turn's results."""

    memory: str
    """The memory text of the system message, then every fact remembered since."""
    loaded_skills: frozenset[str] = frozenset()
    """Skills loaded in earlier turns."""
    last_path: str = ""
    """The last file path that an earlier turn's tool result or reply named."""


Plan = Generator[Step, str, Reply]

QUESTIONS: Mapping[str, str] = MappingProxyType(
    {
        "reminder": "At what time?",
        "document": "What is it about?",
        "meeting": "On which date?",
        "meeting_end": "Until what time?",
        "message": "What should it say?",
        "address": "What is the address?",
        "call": "What should I say?",
        "phone": "What is the number?",
    }
)
"""The one question to ask, by what is missing."""

_PATH = re.compile(r"[\w-]+(?:/[\w-]+)*\.(?:txt|md|pdf|docx|xlsx|csv|mp4|png)\b")
_RESULT_ID = re.compile(r"…cut; result_id=(r\d+)")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_PHONE = re.compile(r"\b\d{3}-\d{4}\b")


def failed(result: str) -> bool:
    """Whether a tool result states an error."""
    return result.startswith("error:")


def first_path(text: str) -> str:
    """The first file path named in ``text``, or nothing."""
    found = _PATH.search(text[:2000])  # a longer text is no reply or result of the desk
    return found.group() if found else ""


def field_of(text: str, key: str) -> str:
    """The value of ``key`` in text like ``key: value. other: value.``; empty when it is not there."""
    found = re.search(rf"(?:^|[\s;]){re.escape(key)}: (.+?)(?:\.(?:\s|$)|;|$)", text)
    return found.group(1) if found else ""


def _try(tool: str, row: str, /, **arguments: str) -> Generator[Step, str, str]:
    """Call; when the error says so, try the same call once more."""
    result = yield Step(tool, arguments, row)
    if failed(result) and result.endswith("try again"):
        result = yield Step(tool, arguments, "retry")
    return result


def _whole(result: str) -> Generator[Step, str, str]:
    """Load the rest of a cut result."""
    cut = _RESULT_ID.search(result)
    if cut is None:
        return result
    rest = yield from _try("tool_result_load", "cut_result", result_id=cut.group(1))
    return rest if failed(rest) else f"{result[: cut.start()].rstrip()} {rest}"


def _on_file(path: str, tool: str, row: str, /, **arguments: str) -> Generator[Step, str, str]:
    """Call a tool on a file; look for the file by its name when it is not where the user said.

    ``arguments`` hold the path under some field; it is replaced by the path found.
    """
    result = yield from _try(tool, row, **arguments)
    if not result.startswith("error: no such file"):
        return result
    found = yield from _try("Glob", "not_found", pattern=f"**/{posixpath.basename(path)}")
    if failed(found):
        return result
    moved = found.split("\n")[0]
    again = {field: moved if value == path else value for field, value in arguments.items()}
    return (yield from _try(tool, "not_found", **again))


def _skill(seen: Seen, name: str, row: str) -> Generator[Step, str, None]:
    """Load a skill unless the session has it already."""
    if name not in seen.loaded_skills:
        yield from _try("skill", row, name=name)


def _deliver(result: str, row: str) -> Plan:
    """Share the file that a tool has just made."""
    path = first_path(result)
    if failed(result) or not path:
        return give_up(row)
    shared = yield from _try("ShareFile", "deliver", path=path)
    return give_up(row) if failed(shared) else Reply(f"Here it is: {path}", row, (path,))


def give_up(row: str) -> Reply:
    """Say truthfully that it did not work."""
    return Reply("Sorry, that did not work.", row, denies=True)


def _told(result: str, key: str, row: str) -> Reply:
    """Answer a question about a field out of a result."""
    value = "" if failed(result) else field_of(result, key)
    return Reply(f"The {key} is {value}.", row, (value,)) if value else give_up(row)


def _greeting(slots: Mapping[str, str], seen: Seen) -> Plan:
    yield from ()
    return Reply("Hello! What can I do for you?", "chat")


def _thanks(slots: Mapping[str, str], seen: Seen) -> Plan:
    yield from ()
    return Reply("You are welcome.", "chat")


def _small_talk(slots: Mapping[str, str], seen: Seen) -> Plan:
    yield from ()
    return Reply("It is always nice to chat.", "chat")


def _recall(slots: Mapping[str, str], seen: Seen) -> Plan:
    yield from ()
    thing = slots["thing"]
    known = re.findall(rf"my {re.escape(thing)} is ([^;.\n]+)", seen.memory)
    return Reply(f"Your {thing} is {known[-1]}.", "recall", (known[-1],)) if known else give_up("recall")


def _remember(row: str) -> Callable[[Mapping[str, str], Seen], Plan]:
    def plan(slots: Mapping[str, str], seen: Seen) -> Plan:
        result = yield from _try("MemoryRewrite", row, content=slots["fact"])
        return give_up(row) if failed(result) else Reply("Noted.", row)

    return plan


def _find_file(slots: Mapping[str, str], seen: Seen) -> Plan:
    result = yield from _try("Glob", "find_files", pattern=f"**/{slots['file']}")
    return _found(result)


def _find_kind(slots: Mapping[str, str], seen: Seen) -> Plan:
    result = yield from _try("Glob", "find_files", pattern=f"{slots['folder']}/*.{slots['ext']}")
    return _found(result)


def _found(result: str) -> Reply:
    if failed(result):
        return Reply("There is no such file.", "find_files", denies=True)
    paths = result.split("\n")
    return Reply(f"I found {', '.join(paths)}", "find_files", tuple(paths))


def _ask_file(slots: Mapping[str, str], seen: Seen) -> Plan:
    path, key = slots["path"], slots["key"]
    if path.endswith(".pdf"):
        yield from _skill(seen, "pdf-reading", "pdf_question")
        result = yield from _on_file(
            path, "skill_script", "pdf_question", skill="pdf-reading", script="text", input=path
        )
        return _told((yield from _whole(result)), key, "pdf_question")
    result = yield from _on_file(path, "Read", "read_file", path=path)
    return _told((yield from _whole(result)), key, "read_file")


def _search_text(slots: Mapping[str, str], seen: Seen) -> Plan:
    result = yield from _try("Grep", "search_text", pattern=slots["subject"], path=slots["folder"])
    if failed(result):
        return Reply("No file there mentions it.", "search_text", denies=True)
    path = first_path(result)
    return Reply(f"It is in {path}", "search_text", (path,))


def _records(pattern_slot: str, path: str, absent: str) -> Callable[[Mapping[str, str], Seen], Plan]:
    def plan(slots: Mapping[str, str], seen: Seen) -> Plan:
        result = yield from _try("Grep", "records", pattern=slots[pattern_slot], path=path)
        if failed(result):
            return Reply(absent, "records", denies=True)
        line = (yield from _whole(result)).split("\n")[0].partition(": ")[2]
        return Reply(line, "records", (line,))

    return plan


def _create_file(slots: Mapping[str, str], seen: Seen) -> Plan:
    result = yield from _try("Write", "create_file", path=slots["target"], content=slots["text"])
    return (yield from _deliver(result, "create_file"))


def _edit_file(slots: Mapping[str, str], seen: Seen) -> Plan:
    path = slots["textfile"]
    result = yield from _on_file(path, "Edit", "edit_file", path=path, old=slots["old"], new=slots["new"])
    return give_up("edit_file") if failed(result) else Reply("The file is changed.", "edit_file")


def _command(form: str) -> Callable[[Mapping[str, str], Seen], Plan]:
    def plan(slots: Mapping[str, str], seen: Seen) -> Plan:
        result = yield from _try("Bash", "file_command", command=form.format(**slots))
        if failed(result):
            return give_up("file_command")
        if form.startswith("wc"):
            count = result.split(" ")[0]
            return Reply(f"It has {count} lines.", "file_command", (count,))
        return Reply("That is done.", "file_command")

    return plan


def _share(slots: Mapping[str, str], seen: Seen) -> Plan:
    path = slots.get("anyfile") or seen.last_path
    if not path:
        return give_up("share_file")
    result = yield from _on_file(path, "ShareFile", "share_file", path=path)
    if failed(result):
        return give_up("share_file")
    shared = first_path(result)
    return Reply(f"Here it is: {shared}", "share_file", (shared,))


def _ask_page(slots: Mapping[str, str], seen: Seen) -> Plan:
    result = yield from _try("WebFetch", "web_page", url=slots["url"])
    return _told((yield from _whole(result)), slots["key"], "web_page")


def _quick_search(slots: Mapping[str, str], seen: Seen) -> Plan:
    result = yield from _try("web_search", "quick_search", query=slots["query"])
    return _told((yield from _whole(result)), slots["query"].rpartition(" ")[2], "quick_search")


def _compare_sites(slots: Mapping[str, str], seen: Seen) -> Plan:
    row, query = "compare_sites", slots["query"]
    yield from _skill(seen, "web-search", row)
    result = yield from _try("skill_script", row, skill="web-search", script="compare", input=query)
    return _told((yield from _whole(result)).replace("agree: ", "agree; "), query.rpartition(" ")[2], row)


def _research(slots: Mapping[str, str], seen: Seen) -> Plan:
    result = yield from _try("Agent", "research", task=slots["subject"])
    return (yield from _deliver(result, "research"))


def _image(slots: Mapping[str, str], seen: Seen) -> Plan:
    result = yield from _try("ImageGenerator", "image", prompt=slots["image"])
    return (yield from _deliver(result, "image"))


def _video(slots: Mapping[str, str], seen: Seen) -> Plan:
    result = yield from _try("VideoGenerator", "video", prompt=slots["film"])
    return (yield from _deliver(result, "video"))


def _derived_clip(script: str) -> Callable[[Mapping[str, str], Seen], Plan]:
    def plan(slots: Mapping[str, str], seen: Seen) -> Plan:
        row, clip = "video_from_video", slots["clip"]
        yield from _skill(seen, "video-from-video", row)
        result = yield from _on_file(clip, "skill_script", row, skill="video-from-video", script=script, input=clip)
        return (yield from _deliver(result, row))

    return plan


def _document(slots: Mapping[str, str], seen: Seen) -> Plan:
    subject = slots.get("subject") or (yield from _ask("document"))
    yield from _skill(seen, "docx", "document")
    result = yield from _try("skill_script", "document", skill="docx", script="create", input=subject)
    return (yield from _deliver(result, "document"))


def _sheet(slots: Mapping[str, str], seen: Seen) -> Plan:
    yield from _skill(seen, "spreadsheet", "spreadsheet")
    result = yield from _try(
        "skill_script", "spreadsheet", skill="spreadsheet", script="create", input=slots["subject"]
    )
    return (yield from _deliver(result, "spreadsheet"))


def _sum_table(slots: Mapping[str, str], seen: Seen) -> Plan:
    table = slots["table"]
    yield from _skill(seen, "spreadsheet", "spreadsheet")
    result = yield from _on_file(table, "skill_script", "spreadsheet", skill="spreadsheet", script="sum", input=table)
    return _told(result, "sum", "spreadsheet")


def _ask(missing: str) -> Generator[Step, str, str]:
    answer = yield Step("AskUser", {"question": QUESTIONS[missing]}, "missing_detail")
    return answer_value(answer)


def _reminder(slots: Mapping[str, str], seen: Seen) -> Plan:
    row, text = "reminder", slots["text"]
    time = slots.get("time") or (yield from _ask("reminder"))
    result = yield from _try("SetReminder", row, text=text, time=time)
    if result.startswith("error: bad argument"):
        time = yield from _ask("reminder")
        result = yield from _try("SetReminder", row, text=text, time=time)
    return give_up(row) if failed(result) else Reply(f"I will remind you at {time}.", row, (time,))


def _recurring(slots: Mapping[str, str], seen: Seen) -> Plan:
    yield from _skill(seen, "reminders", "recurring")
    result = yield from _try("skill_script", "recurring", skill="reminders", script="repeat", input=slots["when"])
    return give_up("recurring") if failed(result) else Reply("I will remind you every day.", "recurring")


def _list_reminders(slots: Mapping[str, str], seen: Seen) -> Plan:
    yield from _skill(seen, "reminders", "recurring")
    result = yield from _try("skill_script", "recurring", skill="reminders", script="list", input="all")
    rows = yield from _whole(result)
    return give_up("recurring") if failed(rows) else Reply(rows, "recurring", tuple(rows.split("; ")))


def _meeting(slots: Mapping[str, str], seen: Seen) -> Plan:
    row = "meeting"
    date = slots.get("date") or (yield from _ask("meeting"))
    event = {"title": slots["title"], "date": date, "start": slots["start"], "end": slots["end"]}
    result = yield from _try("calendar_event", row, **event)
    if result.startswith("error: bad argument"):
        end = yield from _ask("meeting_end")
        result = yield from _try("calendar_event", row, **{**event, "end": end})
    if result.startswith("error: clash with "):
        other = result.removeprefix("error: clash with ")
        return Reply(f"Not booked, it would clash with {other}.", row, (other,), denies=True)
    return give_up(row) if failed(result) else Reply(f"It is booked on {date}.", row, (date,))


def _contact(name: str, form: re.Pattern[str], missing: str) -> Generator[Step, str, str]:
    """Address or number of a person: from the contacts, from the user when they are not there."""
    line = yield from _try("Grep", "records", pattern=name, path="contacts.txt")
    found = None if failed(line) else form.search(line)
    return found.group() if found else (yield from _ask(missing))


def _message(slots: Mapping[str, str], seen: Seen) -> Plan:
    row = "message"
    body = slots.get("text") or (yield from _ask("message"))
    to = slots.get("email") or (yield from _contact(slots["name"], _EMAIL, "address"))
    result = yield from _try("send_message", row, to=to, body=body)
    return give_up(row) if failed(result) else Reply(f"Your message went to {to}", row, (to,))


def _call(slots: Mapping[str, str], seen: Seen) -> Plan:
    row = "call"
    message = slots.get("text") or (yield from _ask("call"))
    number = slots.get("number") or (yield from _contact(slots["name"], _PHONE, "phone"))
    result = yield from _try("phone_call", row, number=number, message=message)
    return give_up(row) if failed(result) else Reply(f"I called {number}.", row, (number,))


def _dialogue(slots: Mapping[str, str], seen: Seen) -> Plan:
    row = "dialogue"
    yield from _skill(seen, "voice-calling", row)
    goal = f"{slots['number']}: {slots['goal']}"
    result = yield from _try("skill_script", row, skill="voice-calling", script="converse", input=goal)
    code = result.rpartition(" ")[2]
    return give_up(row) if failed(result) else Reply(f"It is agreed, confirmation {code}.", row, (code,))


def _capabilities(slots: Mapping[str, str], seen: Seen) -> Plan:
    yield from _skill(seen, "platform-help", "platform_help")
    return Reply("I handle files, web, images, calls, reminders and messages.", "platform_help", ("files", "calls"))


def _how_to(slots: Mapping[str, str], seen: Seen) -> Plan:
    row = "platform_help"
    yield from _skill(seen, "platform-help", row)
    result = yield from _try("skill_script", row, skill="platform-help", script="lookup", input=slots["topic"])
    menu = result.rpartition(" ")[2]
    return give_up(row) if failed(result) else Reply(f"Open menu {menu}.", row, (menu,))


PLANS: Mapping[str, Callable[[Mapping[str, str], Seen], Plan]] = MappingProxyType(
    {
        "greeting": _greeting,
        "thanks": _thanks,
        "small_talk": _small_talk,
        "recall": _recall,
        "remember": _remember("remember"),
        "preference": _remember("preference"),
        "find_file": _find_file,
        "find_kind": _find_kind,
        "ask_file": _ask_file,
        "search_text": _search_text,
        "find_contact": _records("name", "contacts.txt", "There is no such contact."),
        "check_calendar": _records("date", "calendar.txt", "There is nothing on that day."),
        "check_mail": _records("name", "mail", "There is no such mail."),
        "create_file": _create_file,
        "edit_file": _edit_file,
        "rename": _command("mv {textfile} {target}"),
        "copy": _command("cp {textfile} {target}"),
        "delete": _command("rm {textfile}"),
        "count_lines": _command("wc -l {textfile}"),
        "share": _share,
        "share_that": _share,
        "ask_page": _ask_page,
        "quick_search": _quick_search,
        "compare_sites": _compare_sites,
        "research": _research,
        "image": _image,
        "video": _video,
        "extend_clip": _derived_clip("extend"),
        "reverse_clip": _derived_clip("reverse"),
        "document": _document,
        "document_bare": _document,
        "sheet": _sheet,
        "sum_table": _sum_table,
        "reminder": _reminder,
        "reminder_bare": _reminder,
        "recurring": _recurring,
        "list_reminders": _list_reminders,
        "meeting": _meeting,
        "meeting_bare": _meeting,
        "message": _message,
        "message_name": _message,
        "message_bare": _message,
        "call": _call,
        "call_name": _call,
        "call_bare": _call,
        "dialogue": _dialogue,
        "capabilities": _capabilities,
        "how_to": _how_to,
    }
)
"""Intent → plan."""


def plan_of(intents: tuple[Intent, ...], seen: Seen) -> Plan:
    """The plan of a whole turn: each intent's calls in order, then one reply, that of the last intent.

    An unreadable request is answered at once.
    """
    reply = Reply("I can help with files, the web, calls and reminders.", "chat")
    for intent in intents:
        reply = yield from PLANS[intent.name](intent.slots, seen)
    return reply
