"""How users of the desk word their requests: templates with typed slots, one sentence each, as data.

Several intents share a policy row (a reminder with and without its time, say). The same table makes the tasks
and lets the scripted teacher understand what a user writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SLOT_PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "text": r'[^.?!";]+?',
        "query": r"[A-Z][a-z]+(?: [A-Z][a-z]+)+ [a-z]+",
        "subject": r"[a-z]+(?: [a-z]+)*?",
        "fact": r'[^.?!";]+?',
        "thing": r"[a-z]+ [a-z]+",
        "key": r"[a-z]+",
        "time": r"\d\d:\d\d",
        "start": r"\d\d:\d\d",
        "end": r"\d\d:\d\d",
        "when": r"[^.?!;]+ at \d\d:\d\d",
        "date": r"\d{4}-\d\d-\d\d",
        "path": r"[\w/-]+\.(?:txt|md|pdf)",
        "textfile": r"[\w/-]+\.(?:txt|md)",
        "target": r"[\w/-]+\.(?:txt|md)",
        "clip": r"[\w/-]+\.mp4",
        "table": r"[\w/-]+\.csv",
        "file": r"[\w-]+\.\w+",
        "anyfile": r"[\w/-]+/[\w-]+\.\w+",
        "folder": r"[\w/-]+",
        "ext": r"[a-z]+",
        "url": r"https://[\w./-]*[\w/]",
        "email": r"[\w.]+@[\w.]+\w",
        "number": r"\d{3}-\d{4}",
        "name": r"[A-Z][a-z]+ [A-Z][a-z]+",
        "old": r"[\w-]+",
        "new": r"[\w-]+",
        "image": r"(?:logo|poster|picture|banner|sketch|drawing) (?:for|of) [^.?!;]+?",
        "film": r"(?:video|clip|trailer|film) (?:for|of) [^.?!;]+?",
        "title": r"[a-z]+(?: [a-z]+)+?",
        "goal": r"[^.?!;]+?",
        "topic": r"[A-Za-z ]+?",
    }
)
"""Slot → regular expression of its values."""


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().split("\n"))


TEMPLATES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "greeting": _lines("""
            Hello!
            Good morning!
            Hi there!
            Good afternoon!
            Hey, nice to see you!
            Good evening!
            Hello, desk!
            Hi, it is me again!"""),
        "thanks": _lines("""
            Thanks a lot!
            Thank you, that is all for now!
            Great, thanks!
            Perfect, thank you!
            Many thanks!
            That was quick, thanks!
            You are a great help!
            Well done!"""),
        "small_talk": _lines("""
            How are you today?
            Tell me a joke.
            Do you like Mondays?
            Are you a robot?
            Do you ever sleep?
            What is your favorite season?
            Are you happy?
            Do you drink coffee?"""),
        "recall": _lines("""
            What is my {thing}?
            Do you remember my {thing}?
            I forgot my {thing}.
            Tell me my {thing} again.
            Which {thing} did I tell you?
            Could you give me my {thing}?
            What did I say my {thing} is?
            Do you know my {thing}?"""),
        "remember": _lines("""
            Remember that {fact}.
            Please remember that {fact}.
            Keep in mind that {fact}.
            Do not forget that {fact}.
            Note for the future that {fact}.
            Make a mental note that {fact}.
            Memorize that {fact}.
            For later, remember that {fact}."""),
        "preference": _lines("""
            By the way, {fact} from now on.
            From now on {fact}.
            As of today {fact}.
            Starting today {fact}.
            Just so you know, {fact}.
            It has changed, {fact} now.
            In case it matters, {fact}.
            For your information, {fact}."""),
        "find_file": _lines("""
            Where is the file {file}?
            Find {file} for me.
            Locate {file}.
            Which folder holds {file}?
            I cannot find {file}.
            Do we have a file called {file}?
            Look for {file}.
            Where did I put {file}?"""),
        "find_kind": _lines("""
            Which {ext} files are in {folder}?
            List the {ext} files in {folder}.
            What {ext} files does {folder} hold?
            Find all {ext} files in {folder}.
            Show me every {ext} file in {folder}.
            Are there {ext} files in {folder}?
            I need the names of the {ext} files in {folder}.
            Find the {ext} files below {folder}."""),
        "ask_file": _lines("""
            What is the {key} in {path}?
            Open {path} and tell me the {key}.
            Check {path} for the {key}.
            According to {path}, what is the {key}?
            Tell me the {key} from {path}.
            Look up the {key} in {path}.
            Which {key} does {path} give?
            I need the {key} from {path}."""),
        "search_text": _lines("""
            Which file in {folder} mentions {subject}?
            Search {folder} for {subject}.
            Look through {folder} for {subject}.
            Where in {folder} does it say {subject}?
            Search the files in {folder} for {subject}.
            Find out which file in {folder} mentions {subject}.
            Is {subject} mentioned anywhere in {folder}?
            Scan {folder} for the words {subject}."""),
        "find_contact": _lines("""
            What is the number of {name}?
            How do I reach {name}?
            What is the email of {name}?
            Give me the phone number of {name}.
            How can I contact {name}?
            Do you have the address of {name}?
            Show me the contact details of {name}.
            I need the number of {name}."""),
        "check_calendar": _lines("""
            What is on my calendar on {date}?
            Do I have anything on {date}?
            Am I free on {date}?
            What are my plans for {date}?
            What did I schedule for {date}?
            Show me my calendar for {date}.
            Is there an event on {date}?
            What happens on {date}?"""),
        "check_mail": _lines("""
            Did {name} write to me?
            Any mail from {name}?
            What did {name} write?
            Check my mail for {name}.
            Is there a letter from {name}?
            Has {name} answered?
            What does {name} want in the mail?
            Look in my mail for {name}."""),
        "create_file": _lines("""
            Create a file {target} that says {text}.
            Write a file {target} saying {text}.
            Make me a text file {target} with the text {text}.
            Put {text} into a new file {target}.
            I want a file {target} that reads {text}.
            Save {text} as {target}.
            Write {text} into {target}.
            Start a new file {target} with {text}."""),
        "edit_file": _lines("""
            In {textfile}, change {old} to {new}.
            Replace {old} with {new} in {textfile}.
            Change {old} to {new} in {textfile}.
            In {textfile}, put {new} instead of {old}.
            Correct {old} to {new} in {textfile}.
            In {textfile}, {old} should be {new}.
            Swap {old} for {new} in {textfile}.
            Edit {textfile} so that {old} becomes {new}."""),
        "rename": _lines("""
            Rename {textfile} to {target}.
            Move {textfile} to {target}.
            Please rename {textfile} to {target}.
            Give {textfile} the new name {target}.
            {textfile} should be called {target}.
            Can you rename {textfile} to {target}?
            Change the name of {textfile} to {target}.
            Could you move {textfile} to {target}?"""),
        "copy": _lines("""
            Copy {textfile} to {target}.
            Please copy {textfile} to {target}.
            Make a copy of {textfile} at {target}.
            Duplicate {textfile} as {target}.
            Can you copy {textfile} to {target}?
            Back up {textfile} as {target}.
            Put a copy of {textfile} at {target}.
            Could you duplicate {textfile} as {target}?"""),
        "delete": _lines("""
            Delete {textfile}.
            Remove {textfile}.
            Please delete the file {textfile}.
            Throw {textfile} away.
            I no longer need {textfile}, delete it.
            Get rid of {textfile}.
            Can you delete {textfile}?
            Erase {textfile}."""),
        "count_lines": _lines("""
            How many lines does {textfile} have?
            Count the lines in {textfile}.
            How many lines are in {textfile}?
            How long is {textfile} in lines?
            Tell me how many lines {textfile} has.
            Please count the lines of {textfile}.
            Give me the line count of {textfile}.
            What is the number of lines in {textfile}?"""),
        "share": _lines("""
            Send me {anyfile}.
            Share {anyfile} with me.
            Can I get {anyfile}?
            Give me the file {anyfile}.
            I want to download {anyfile}.
            Hand me {anyfile}, please.
            Please share {anyfile}.
            Let me have {anyfile}."""),
        "share_that": _lines("""
            Send me that file.
            Share that file with me.
            Can I get that file?
            Give me that file.
            I want to download that file.
            Hand me that file, please.
            Please share that file.
            Let me have that file."""),
        "ask_page": _lines("""
            Open {url} and tell me the {key}.
            What is the {key} on {url}?
            Check {url} for the {key}.
            According to {url}, what is the {key}?
            Go to {url} and find the {key}.
            Tell me the {key} from {url}.
            Which {key} does {url} give?
            Read {url} and give me the {key}."""),
        "quick_search": _lines("""
            Search the web for {query}.
            Look up {query} online.
            Google {query} for me.
            Do a quick web search for {query}.
            Find {query} on the internet.
            What does the web say about {query}?
            Search online for {query}.
            Check the internet for {query}."""),
        "compare_sites": _lines("""
            Compare what different sites say about {query}.
            Cross-check {query} on several sites.
            Verify {query} with more than one source.
            Do several sites agree on {query}?
            Compare sources on {query}.
            Check {query} against a second site.
            What do several sites say about {query}?
            Double-check {query} across the web."""),
        "research": _lines("""
            Do deep research on {subject} and write a report.
            I need a thorough report on {subject}.
            Investigate {subject} in depth.
            Prepare a long report about {subject}.
            Research everything about {subject} for me.
            Write a detailed study of {subject}.
            Dig deep into {subject} and report back.
            Give me a full analysis of {subject}."""),
        "image": _lines("""
            Design a {image}.
            Make a {image}.
            Draw a {image}.
            I need a {image}.
            Create a {image}.
            Can you make a {image}?
            Please draw a {image}.
            I would like a {image}."""),
        "video": _lines("""
            Make a {film}.
            Create a {film}.
            I need a {film}.
            Generate a {film}.
            Can you make a {film}?
            Produce a {film}.
            I would like a {film}.
            Please make a new {film}."""),
        "extend_clip": _lines("""
            Make {clip} longer.
            Extend {clip}.
            I want a longer version of {clip}.
            {clip} is too short, make it longer.
            Can you extend the clip {clip}?
            Stretch the video {clip}.
            Turn {clip} into a longer video.
            Continue the video {clip}."""),
        "reverse_clip": _lines("""
            Reverse {clip}.
            Make a backwards version of {clip}.
            Turn {clip} around so that it runs backwards.
            I want {clip} to play in reverse.
            Can you reverse the clip {clip}?
            Make a video from {clip} that runs backwards.
            Flip the video {clip} so it plays backwards.
            Create a reversed video of {clip}."""),
        "document": _lines("""
            Write a Word document about {subject}.
            I need a docx about {subject}.
            Create a Word file on {subject}.
            Draft a document in Word about {subject}.
            Make a docx on {subject}.
            Can you write a Word document on {subject}?
            Prepare a Word document on {subject}.
            Please set up a docx about {subject}."""),
        "document_bare": _lines("""
            Write a Word document.
            I need a docx.
            Create a Word file.
            Draft a document in Word.
            Make me a docx.
            Can you write a Word document?
            Prepare a Word document.
            Please set up a docx."""),
        "sheet": _lines("""
            Make a spreadsheet for {subject}.
            I need a spreadsheet about {subject}.
            Create an Excel sheet for {subject}.
            Set up a spreadsheet on {subject}.
            Build an Excel table for {subject}.
            Can you make a spreadsheet on {subject}?
            Prepare an Excel file for {subject}.
            Please start a spreadsheet for {subject}."""),
        "sum_table": _lines("""
            Add up the numbers in {table}.
            What is the sum in {table}?
            Sum {table}.
            What do the numbers in {table} add up to?
            Work out the total of {table}.
            Give me the total of {table}.
            Calculate the sum of {table}.
            How much is {table} in total?"""),
        "reminder": _lines("""
            Remind me to {text} at {time}.
            Set a reminder for {time} to {text}.
            At {time}, remind me to {text}.
            Remind me at {time} to {text}.
            Set a reminder to {text} at {time}.
            Please remind me at {time} to {text}.
            I need a reminder at {time} to {text}.
            Can you remind me to {text} at {time}?"""),
        "reminder_bare": _lines("""
            Remind me to {text}.
            Set a reminder to {text}.
            Please remind me to {text}.
            I need a reminder to {text}.
            Can you remind me to {text}?
            Make a reminder to {text}.
            Later remind me to {text}.
            Could you set a reminder to {text}?"""),
        "recurring": _lines("""
            Every day, remind me to {when}.
            Remind me daily to {when}.
            Set a daily reminder to {when}.
            Each day, remind me to {when}.
            I need a daily reminder to {when}.
            Remind me every day to {when}.
            Set a repeating reminder to {when}.
            Day by day, remind me to {when}."""),
        "list_reminders": _lines("""
            Which reminders do I have?
            List my reminders.
            Show me all my reminders.
            What reminders are set?
            Do I have any reminders?
            What are my reminders?
            Give me the list of my reminders.
            Read me my reminders."""),
        "meeting": _lines("""
            Schedule a {title} on {date} from {start} to {end}.
            Book a {title} on {date} from {start} to {end}.
            Put a {title} on my calendar on {date} from {start} to {end}.
            On {date}, add a {title} from {start} to {end}.
            Add a {title} on {date}, {start} to {end}.
            Block {start} to {end} on {date} for a {title}.
            Set up a {title} on {date} between {start} and {end}.
            I have a {title} on {date} from {start} to {end}, add it."""),
        "meeting_bare": _lines("""
            Schedule a {title} from {start} to {end}.
            Book a {title} from {start} to {end}.
            Put a {title} on my calendar from {start} to {end}.
            Add a {title} from {start} to {end}.
            Add a {title}, {start} to {end}.
            Block {start} to {end} for a {title}.
            Set up a {title} between {start} and {end}.
            I have a {title} from {start} to {end}, add it."""),
        "message": _lines("""
            Send a message to {email} saying {text}.
            Email {email} that {text}.
            Write to {email} that {text}.
            Send {email} the message {text}.
            Tell {email} that {text}.
            Message {email} that {text}.
            Please email {email} that {text}.
            Drop {email} a line that {text}."""),
        "message_name": _lines("""
            Send a message to {name} saying {text}.
            Tell {name} that {text}.
            Let {name} know that {text}.
            Email {name} that {text}.
            Write to {name} that {text}.
            Message {name} that {text}.
            Please tell {name} that {text}.
            Inform {name} that {text}."""),
        "message_bare": _lines("""
            Send a message to {email}.
            Email {email} for me.
            Write to {email}.
            I want to write to {email}.
            Send {email} a message.
            Please email {email}.
            Drop {email} a line.
            I need to email {email}."""),
        "call": _lines("""
            Call {number} and say that {text}.
            Phone {number} and tell them that {text}.
            Ring {number} and say that {text}.
            Call {number} to say that {text}.
            Leave a message at {number} that {text}.
            Please call {number} and say that {text}.
            Give {number} a call and say that {text}.
            Dial {number} and say that {text}."""),
        "call_name": _lines("""
            Call {name} and say that {text}.
            Phone {name} and say that {text}.
            Ring {name} and say that {text}.
            Call {name} to say that {text}.
            Give {name} a call and say that {text}.
            Please call {name} and say that {text}.
            Phone {name} to say that {text}.
            Dial {name} and say that {text}."""),
        "call_bare": _lines("""
            Call {number}.
            Phone {number} for me.
            Ring {number}.
            Please call {number}.
            Give {number} a call.
            Leave a message at {number}.
            I want you to call {number}.
            Dial {number}, please."""),
        "dialogue": _lines("""
            Call {number} and arrange {goal}.
            Call {number} and negotiate {goal}.
            Phone {number} and ask for {goal}.
            Ring {number} and book {goal}.
            Talk to {number} and get me {goal}.
            Please call {number} and book {goal}.
            Speak with {number} about {goal}.
            Call {number} and discuss {goal}."""),
        "capabilities": _lines("""
            What can you do?
            What are you able to help with?
            How can you help me?
            What are your features?
            What is this platform for?
            Which tasks can you handle?
            Show me what you can do.
            What do you offer?"""),
        "how_to": _lines("""
            How do I {topic} on this platform?
            How do I {topic} here?
            How can I {topic} with this platform?
            Explain how to {topic} here.
            Where in the menu do I {topic}?
            Is there a way to {topic} on this platform?
            Show me how to {topic} here.
            What is the way to {topic} here?"""),
    }
)
"""Intent → wordings."""

ROW_OF: Mapping[str, str] = MappingProxyType(
    {
        **{intent: intent for intent in TEMPLATES},
        "greeting": "chat",
        "thanks": "chat",
        "small_talk": "chat",
        "find_file": "find_files",
        "find_kind": "find_files",
        "find_contact": "records",
        "check_calendar": "records",
        "check_mail": "records",
        "rename": "file_command",
        "copy": "file_command",
        "delete": "file_command",
        "count_lines": "file_command",
        "ask_page": "web_page",
        "share": "share_file",
        "share_that": "share_file",
        "extend_clip": "video_from_video",
        "reverse_clip": "video_from_video",
        "document_bare": "document",
        "sheet": "spreadsheet",
        "sum_table": "spreadsheet",
        "reminder_bare": "reminder",
        "list_reminders": "recurring",
        "meeting_bare": "meeting",
        "message_name": "message",
        "message_bare": "message",
        "call_name": "call",
        "call_bare": "call",
        "capabilities": "platform_help",
        "how_to": "platform_help",
    }
)
"""Intent → row of the routing policy (``ask_file`` is ``read_file`` or ``pdf_question`` by the file's ending)."""

ANSWERS: tuple[str, ...] = ("{value}", "{value}, please", "Let us say {value}", "Well, {value}", "I think {value}")
"""How the user answers a question about a missing detail."""

NEEDLESS_ANSWER = "I have told you all you need."
"""What the user answers when nothing was missing."""
