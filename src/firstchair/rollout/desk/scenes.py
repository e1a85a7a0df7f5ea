"""Scenes: one user turn each, made from random values, with what it needs in the world and what must come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from firstchair.rollout.desk import words
from firstchair.rollout.desk.phrases import ROW_OF, TEMPLATES
from firstchair.rollout.desk.task import Fault, TaskCheck
from firstchair.rollout.desk.values import KEYS, Values, stable_number
from firstchair.rollout.desk.web import Page, Web, build_web, document
from firstchair.rollout.desk.world import Contact, Event, Mail, Reminder

PASSING = MappingProxyType(
    {
        "WebFetch": "rate limit, try again",
        "web_search": "rate limit, try again",
        "ImageGenerator": "overloaded, try again",
        "VideoGenerator": "overloaded, try again",
        "Agent": "overloaded, try again",
        "phone_call": "line busy, try again",
        "send_message": "timeout, try again",
        "calendar_event": "timeout, try again",
    }
)
"""Tool → how it fails in passing."""


@dataclass
class Stage:
    """The world that a task is building up, and what must not be used twice in it."""

    values: Values
    web_number: int
    files: dict[str, str] = field(default_factory=dict)
    contacts: list[Contact] = field(default_factory=list)
    mail: list[Mail] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    reminders: list[Reminder] = field(default_factory=list)
    memory: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    added: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("reminders", "events", "sent", "calls"), 0))

    @property
    def web(self) -> Web:
        """The task's web."""
        return build_web(self.web_number)

    def fresh(self, draw: Callable[[], str]) -> str:
        """A value that this task has not used yet."""
        while (value := draw()) in self.used:
            pass
        self.used.add(value)
        return value

    def new_path(self, ext: str, folder: str = "") -> str:
        """A path whose base name is new in this task."""
        return f"{folder or self.values.folder()}/{self.fresh(lambda: self.values.file_name(ext))}"

    def add_file(self, ext: str, text: str, folder: str = "") -> str:
        """Put a file into the world; returns its path."""
        path = self.new_path(ext, folder)
        self.files[path] = text
        return path

    def person(self) -> Contact:
        """Somebody of the contact list."""
        name = self.fresh(self.values.name)
        contact = Contact(name, self.values.email(name), self.values.phone())
        self.contacts.append(contact)
        return contact


@dataclass(frozen=True)
class Scene:
    """One turn as planned; ``turn`` indices of its checks are filled in by the task."""

    intent: str
    slots: Mapping[str, str]
    checks: tuple[TaskCheck, ...] = ()
    answer: str = ""
    faults: tuple[Fault, ...] = ()
    extra_rows: tuple[str, ...] = ()
    """Cross-cutting rows (``cut_result``, ``not_found``, …) that it exercises."""
    row: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        """Rows that it exercises, its own last."""
        return (*self.extra_rows, self.row or ROW_OF[self.intent])

    def wording(self, values: Values) -> str:
        """The request in one of its wordings."""
        text = values.pick(TEMPLATES[self.intent])
        text = text.format(**self.slots)
        return text[0].upper() + text[1:] if text[0].isalpha() and "/" not in text.split(" ")[0] else text


Maker = Callable[[Stage], Scene]

NO_ROWS: tuple[str, ...] = ()
DELIVERED: tuple[str, ...] = ("deliver",)


def _says(*facts: str) -> TaskCheck:
    return TaskCheck(kind="reply_has", values=facts, turn=0)


def _denies(*facts: str) -> TaskCheck:
    return TaskCheck(kind="reply_denies", values=facts, turn=0)


def _holds(kind: str, *values: str) -> TaskCheck:
    return TaskCheck(kind=kind, values=values)


def _maybe_fault(stage: Stage, tool: str, share: float = 0.25) -> tuple[Fault, ...]:
    """A passing failure of ``tool`` in ``share`` of the cases; one in four comes back and must be given up."""
    if not stage.values.chance(share):
        return ()
    return (Fault(tool=tool, reason=PASSING[tool], times=2 if stage.values.chance(0.25) else 1),)


def _outcome(
    intent: str, slots: Mapping[str, str], faults: tuple[Fault, ...], *checks: TaskCheck, rows: tuple[str, ...] = ()
) -> Scene:
    """A scene whose tool may fail in passing, or for good: then only a truthful reply is asked for."""
    if faults:
        rows = ("retry", *rows)
    if faults and faults[0].times > 1:
        return Scene(intent, slots, (_denies(),), faults=faults, extra_rows=("retry",))
    return Scene(intent, slots, checks, faults=faults, extra_rows=rows)


def _chat(intent: str) -> Maker:
    return lambda stage: Scene(intent, {}, (_says(),))


def _recall(stage: Stage) -> Scene:
    thing = stage.fresh(stage.values.thing)
    value = stage.values.thing_value(thing)
    stage.memory.append(f"my {thing} is {value}")
    return Scene("recall", {"thing": thing}, (_says(value),))


def personal_fact(stage: Stage) -> str:
    """Something worth remembering."""
    values = stage.values
    if values.chance(0.25):
        return f"I work with {values.name()}"
    thing = stage.fresh(values.thing)
    return f"my {thing} is {values.thing_value(thing)}"


def _remember(intent: str) -> Maker:
    def make(stage: Stage) -> Scene:
        fact = personal_fact(stage)
        return Scene(intent, {"fact": fact}, (_holds("memory", fact),))

    return make


def _find_file(stage: Stage) -> Scene:
    ext = stage.values.pick(("txt", "md", "pdf", "csv", "docx"))
    if stage.values.chance(0.2):
        name = stage.fresh(lambda: stage.values.file_name(ext))
        return Scene("find_file", {"file": name}, (_denies(),))
    path = stage.add_file(ext, document(stage.values.fields(2)))
    return Scene("find_file", {"file": path.rpartition("/")[2]}, (_says(path),))


def _find_kind(stage: Stage) -> Scene:
    values = stage.values
    folder, ext = stage.fresh(values.folder), values.pick(("md", "csv", "pdf", "docx", "png"))
    paths = [stage.add_file(ext, document(values.fields(2)), folder) for _ in range(1 + values.below(2))]
    stage.add_file("txt", document(values.fields(2)), folder)
    return Scene("find_kind", {"ext": ext, "folder": folder}, (_says(*paths),))


def _ask_file(ext: str) -> Maker:
    def make(stage: Stage) -> Scene:
        values = stage.values
        large = values.chance(0.8)
        facts = values.fields(6 if large else 3)
        key, value = facts[4 + values.below(2)] if large else facts[values.below(3)]
        real = stage.add_file(ext, document(facts))
        rows: tuple[str, ...] = ("cut_result",) if large else ()
        path = real
        if values.chance(0.35):
            path, rows = f"{stage.fresh(values.folder)}/{real.rpartition('/')[2]}", ("not_found", *rows)
        row = "pdf_question" if ext == "pdf" else "read_file"
        if path != real and values.chance(0.15):  # it is nowhere
            del stage.files[real]
            return Scene("ask_file", {"key": key, "path": path}, (_denies(),), extra_rows=("not_found",), row=row)
        return Scene("ask_file", {"key": key, "path": path}, (_says(value),), extra_rows=rows, row=row)

    return make


def _search_text(stage: Stage) -> Scene:
    values = stage.values
    folder, subject = stage.fresh(values.folder), stage.fresh(values.title)
    stage.add_file("txt", document(values.fields(2)), folder)
    if values.chance(0.15):
        return Scene("search_text", {"folder": folder, "subject": subject}, (_denies(),))
    path = stage.add_file("md", f"about the {subject}", folder)
    return Scene("search_text", {"folder": folder, "subject": subject}, (_says(path),))


def _find_contact(stage: Stage) -> Scene:
    if stage.values.chance(0.15):
        return Scene("find_contact", {"name": stage.fresh(stage.values.name)}, (_denies(),))
    person = stage.person()
    return Scene("find_contact", {"name": person.name}, (_says(person.email, person.phone),))


def _check_calendar(stage: Stage) -> Scene:
    date = stage.fresh(stage.values.date)
    if stage.values.chance(0.2):
        return Scene("check_calendar", {"date": date}, (_denies(),))
    start, end = stage.values.time_span()
    title = event_title(stage)
    stage.events.append(Event(title, date, start, end))
    return Scene("check_calendar", {"date": date}, (_says(title),))


def _check_mail(stage: Stage) -> Scene:
    name = stage.fresh(stage.values.name)
    if stage.values.chance(0.2):
        return Scene("check_mail", {"name": name}, (_denies(),))
    body = stage.values.statement()
    stage.mail.append(Mail(name, body))
    return Scene("check_mail", {"name": name}, (_says(body),))


def _create_file(stage: Stage) -> Scene:
    path, text = stage.new_path(stage.values.pick(("txt", "md"))), stage.values.statement()
    checks = (_holds("file_is", path, text), _holds("shared", path))
    return Scene("create_file", {"target": path, "text": text}, checks, extra_rows=DELIVERED)


def _edit_file(stage: Stage) -> Scene:
    values = stage.values
    old, new = values.code(), values.code()
    text = f"{document(values.fields(2))} mark: {old}."
    real = stage.add_file(values.pick(("txt", "md")), text)
    path, rows = real, NO_ROWS
    if values.chance(0.35):
        path, rows = f"{stage.fresh(values.folder)}/{real.rpartition('/')[2]}", ("not_found",)
    checks = (_holds("file_is", real, text.replace(old, new, 1)),)
    return Scene("edit_file", {"textfile": path, "old": old, "new": new}, checks, extra_rows=rows)


def _file_command(stage: Stage) -> Scene:
    values = stage.values
    intent = values.pick(("rename", "copy", "delete", "count_lines"))
    lines = [values.noun() for _ in range(2 + values.below(20 if intent == "count_lines" else 2))]
    text, ext = "\n".join(lines), values.pick(("txt", "md"))
    if intent == "delete" and values.chance(0.3):
        return Scene(intent, {"textfile": stage.new_path(ext)}, (_denies(),))
    path = stage.add_file(ext, text)
    if intent == "delete":
        return Scene(intent, {"textfile": path}, (_holds("file_gone", path),))
    if intent == "count_lines":
        return Scene(intent, {"textfile": path}, (_says(str(len(lines))),))
    target = stage.new_path(ext)
    gone = (_holds("file_gone", path),) if intent == "rename" else (_holds("file_is", path, text),)
    return Scene(intent, {"textfile": path, "target": target}, (_holds("file_is", target, text), *gone))


def _share(stage: Stage) -> Scene:
    values = stage.values
    real = stage.add_file(values.pick(("pdf", "docx", "txt", "csv", "md")), document(values.fields(2)))
    path, rows = real, NO_ROWS
    if values.chance(0.3):
        path, rows = f"{stage.fresh(values.folder)}/{real.rpartition('/')[2]}", ("not_found",)
    return Scene("share", {"anyfile": path}, (_holds("shared", real),), extra_rows=rows)


def share_that(path: str) -> Scene:
    """The turn after a file was found: the user wants it."""
    return Scene("share_that", {}, (_holds("shared", path),))


def _page(stage: Stage) -> Page:
    pages = stage.web.pages
    return pages[stage.fresh(lambda: stage.values.pick(tuple(pages)))]


def _ask_page(stage: Stage) -> Scene:
    if stage.values.chance(0.1):
        url = f"https://{stage.values.noun()}{stage.values.noun()}.org/{stage.values.noun()}"
        return Scene("ask_page", {"url": url, "key": stage.values.pick(KEYS)}, (_denies(),))
    page = _page(stage)
    if len(page.facts) == 3 and stage.values.chance(0.5):  # large pages are the more instructive ones
        page = _page(stage)
    key, value = page.facts[-1 - stage.values.below(2)]
    rows = ("cut_result",) if len(page.facts) > 3 else ()
    faults = _maybe_fault(stage, "WebFetch")
    return _outcome("ask_page", {"url": page.url, "key": key}, faults, _says(value), rows=rows)


def _query(stage: Stage) -> tuple[str, str]:
    page = _page(stage)
    key, value = page.facts[stage.values.below(len(page.facts))]
    return f"{page.title} {key}", value


def _quick_search(stage: Stage) -> Scene:
    query, value = _query(stage)
    return _outcome("quick_search", {"query": query}, _maybe_fault(stage, "web_search"), _says(value))


def _compare_sites(stage: Stage) -> Scene:
    query, value = _query(stage)
    return Scene("compare_sites", {"query": query}, (_says(value),))


def _made(intent: str, slot: str, kind: str, tool: str, about: Callable[[Stage], str]) -> Maker:
    """A scene in which one tool makes a file that the user wants to have."""

    def make(stage: Stage) -> Scene:
        text = stage.fresh(lambda: about(stage))
        faults = _maybe_fault(stage, tool, 0.2) if tool in PASSING else ()
        return _outcome(intent, {slot: text}, faults, _holds("delivered", kind, text), rows=DELIVERED)

    return make


def subject(stage: Stage) -> str:
    """A topic of two or three words."""
    return f"{stage.values.title()} {stage.values.noun()}" if stage.values.chance(0.5) else stage.values.title()


def event_title(stage: Stage) -> str:
    """What a calendar entry is called; never begins with a vowel, for the article before it."""
    while (title := f"{stage.values.noun()} {stage.values.pick(words.EVENTS)}")[0] in "aeiou":
        pass
    return title


def _image_of(stage: Stage) -> str:
    values = stage.values
    if values.chance(0.4):
        return f"logo for {values.brand()}"
    return f"{values.pick(('poster', 'picture', 'banner', 'sketch', 'drawing'))} of the {values.title()}"


def _film_of(stage: Stage) -> str:
    values = stage.values
    return f"{values.pick(('video', 'clip', 'trailer', 'film'))} {values.pick(('of', 'for'))} the {values.title()}"


def _derived_clip(stage: Stage) -> Scene:
    values = stage.values
    intent = values.pick(("extend_clip", "reverse_clip"))
    real = stage.add_file("mp4", f"video: {values.title()}")
    path, rows = real, DELIVERED
    if values.chance(0.2):
        path, rows = f"{stage.fresh(values.folder)}/{real.rpartition('/')[2]}", ("not_found", "deliver")
    check = _holds("delivered", intent.removesuffix("_clip"), real)
    return Scene(intent, {"clip": path}, (check,), extra_rows=rows)


def _document_bare(stage: Stage) -> Scene:
    about = stage.fresh(lambda: subject(stage))
    rows = ("missing_detail", "deliver")
    return Scene("document_bare", {}, (_holds("delivered", "docx", about),), answer=about, extra_rows=rows)


def _sum_table(stage: Stage) -> Scene:
    numbers = [stage.values.below(90) + 10 for _ in range(3)]
    path = stage.add_file("csv", "\n".join(f"{stage.values.noun()},{number}" for number in numbers))
    return Scene("sum_table", {"table": path}, (_says(str(sum(numbers))),))


def _reminder(stage: Stage) -> Scene:
    values = stage.values
    text, time = values.chore(), values.time()
    check = _holds("reminder", text, time)
    stage.added["reminders"] += 1
    if values.chance(0.55):
        return Scene("reminder_bare", {"text": text}, (check,), answer=time, extra_rows=("missing_detail",))
    if values.chance(0.2):
        slots = {"text": text, "time": values.impossible_time()}
        return Scene("reminder", slots, (check,), answer=time, extra_rows=("missing_detail",))
    return Scene("reminder", {"text": text, "time": time}, (check,))


def _recurring(stage: Stage) -> Scene:
    text, time = stage.values.chore(), stage.values.time()
    stage.added["reminders"] += 1
    return Scene("recurring", {"when": f"{text} at {time}"}, (_holds("reminder", text, time, "daily"),))


def _list_reminders(stage: Stage) -> Scene:
    first = Reminder(stage.values.chore(), stage.values.time())
    stage.reminders.insert(0, first)
    return Scene("list_reminders", {}, (_says(first.text, first.time),))


def _meeting(stage: Stage) -> Scene:
    values = stage.values
    title, date, (start, end) = event_title(stage), stage.fresh(values.date), values.time_span()
    slots = {"title": title, "date": date, "start": start, "end": end}
    check = _holds("event", title, date, start, end)
    if values.chance(0.15):
        other = event_title(stage)
        stage.events.append(Event(other, date, start, end))
        return Scene("meeting", slots, (_denies(other),))
    if values.chance(0.5):
        stage.added["events"] += 1
        bare = {key: value for key, value in slots.items() if key != "date"}
        return Scene("meeting_bare", bare, (check,), answer=date, extra_rows=("missing_detail",))
    if values.chance(0.15):
        stage.added["events"] += 1
        swapped = {**slots, "end": f"0{values.below(7)}:{start[3:]}"}
        return Scene("meeting", swapped, (check,), answer=end, extra_rows=("missing_detail",))
    faults = _maybe_fault(stage, "calendar_event")
    stage.added["events"] += not faults or faults[0].times == 1
    return _outcome("meeting", slots, faults, check)


def _message(stage: Stage) -> Scene:
    values = stage.values
    body, address = values.statement(), stage.fresh(values.email)
    stage.added["sent"] += 1
    if values.chance(0.45):
        check = _holds("message", address, body)
        return Scene("message_bare", {"email": address}, (check,), answer=body, extra_rows=("missing_detail",))
    if values.chance(0.5):
        if values.chance(0.25):
            slots = {"name": stage.fresh(values.name), "text": body}
            rows = ("records", "missing_detail")
            return Scene("message_name", slots, (_holds("message", address, body),), answer=address, extra_rows=rows)
        person = stage.person()
        slots = {"name": person.name, "text": body}
        check = _holds("message", person.email, body)
        return Scene("message_name", slots, (check,), extra_rows=("records",))
    faults = _maybe_fault(stage, "send_message")
    stage.added["sent"] -= bool(faults) and faults[0].times > 1
    return _outcome("message", {"email": address, "text": body}, faults, _holds("message", address, body))


def _call(stage: Stage) -> Scene:
    values = stage.values
    text, number = values.statement(), stage.fresh(values.phone)
    stage.added["calls"] += 1
    if values.chance(0.45):
        check = _holds("phone", number, text)
        return Scene("call_bare", {"number": number}, (check,), answer=text, extra_rows=("missing_detail",))
    if values.chance(0.4):
        person = stage.person()
        check = _holds("phone", person.phone, text)
        return Scene("call_name", {"name": person.name, "text": text}, (check,), extra_rows=("records",))
    faults = _maybe_fault(stage, "phone_call")
    stage.added["calls"] -= bool(faults) and faults[0].times > 1
    return _outcome("call", {"number": number, "text": text}, faults, _holds("phone", number, text))


def _dialogue(stage: Stage) -> Scene:
    values = stage.values
    number = stage.fresh(values.phone)
    tail = values.pick(words.GOAL_TIMES).format(time=values.time(), date=values.date())
    goal = values.pick(words.GOALS) + tail
    said = f"{number}: {goal}"
    stage.added["calls"] += 1
    checks = (_holds("phone", number, "", said), _says(f"K{stable_number(said, 1000, 10_000)}"))
    return Scene("dialogue", {"number": number, "goal": goal}, checks)


def _capabilities(stage: Stage) -> Scene:
    return Scene("capabilities", {}, (_says("files", "calls"),))


def _how_to(stage: Stage) -> Scene:
    topic = stage.values.pick(words.TOPICS)
    return Scene("how_to", {"topic": topic}, (_says(str(stable_number(topic, 10, 100))),))


MAKERS: Mapping[str, tuple[float, Maker]] = MappingProxyType(
    {
        "greeting": (0.0, _chat("greeting")),
        "thanks": (0.0, _chat("thanks")),
        "small_talk": (1.2, _chat("small_talk")),
        "recall": (1.2, _recall),
        "remember": (2.0, _remember("remember")),
        "preference": (0.5, _remember("preference")),
        "find_file": (4.0, _find_file),
        "find_kind": (4.0, _find_kind),
        "ask_text": (6.0, _ask_file("txt")),
        "ask_pdf": (4.5, _ask_file("pdf")),
        "search_text": (0.8, _search_text),
        "find_contact": (0.7, _find_contact),
        "check_calendar": (0.7, _check_calendar),
        "check_mail": (0.7, _check_mail),
        "create_file": (3.0, _create_file),
        "edit_file": (3.0, _edit_file),
        "file_command": (3.5, _file_command),
        "share": (1.0, _share),
        "ask_page": (7.0, _ask_page),
        "quick_search": (4.0, _quick_search),
        "compare_sites": (0.7, _compare_sites),
        "research": (6.0, _made("research", "subject", "report", "Agent", subject)),
        "image": (3.0, _made("image", "image", "image", "ImageGenerator", _image_of)),
        "video": (3.0, _made("video", "film", "video", "VideoGenerator", _film_of)),
        "derived_clip": (1.0, _derived_clip),
        "document": (0.5, _made("document", "subject", "docx", "skill_script", subject)),
        "document_bare": (2.0, _document_bare),
        "sheet": (0.7, _made("sheet", "subject", "xlsx", "skill_script", subject)),
        "sum_table": (0.7, _sum_table),
        "reminder": (4.0, _reminder),
        "recurring": (0.7, _recurring),
        "list_reminders": (0.5, _list_reminders),
        "meeting": (4.0, _meeting),
        "message": (4.5, _message),
        "call": (4.5, _call),
        "dialogue": (0.7, _dialogue),
        "capabilities": (0.5, _capabilities),
        "how_to": (0.5, _how_to),
    }
)
"""Scene → (weight, maker). Greetings come first and thanks last, so they are placed, not drawn."""

SKILL_OF: Mapping[str, str] = MappingProxyType(
    {
        "ask_pdf": "pdf-reading",
        "compare_sites": "web-search",
        "derived_clip": "video-from-video",
        "document": "docx",
        "document_bare": "docx",
        "sheet": "spreadsheet",
        "sum_table": "spreadsheet",
        "recurring": "reminders",
        "list_reminders": "reminders",
        "dialogue": "voice-calling",
        "capabilities": "platform-help",
        "how_to": "platform-help",
    }
)
"""Scene → the skill that it loads."""
