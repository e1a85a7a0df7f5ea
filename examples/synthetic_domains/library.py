"""A public library: books and their copies, members, loans, holds."""

from __future__ import annotations

from random import Random

from kit import CANNOT, Blueprint, Rows, World, call, day, people, table, tells, tool, turn

TODAY = "2026-05-11"

TABLES = (
    table(
        "books",
        "Titles.",
        "id int; title text; author text; year int; kind text {loan|reference}: reference books stay in the building",
    ),
    table("copies", "Single copies.", "id int; book_id int -> books.id; state text {shelved|lent|repair}"),
    table(
        "members",
        "People with a card.",
        "id int; name text; tier text {basic|plus}; fines int: owed, in euros; since text",
    ),
    table(
        "loans",
        "Copies lent, open while returned_on is null.",
        "id int; copy_id int -> copies.id; member_id int -> members.id; lent_on text; due_on text; renewals int; "
        "returned_on text?",
        generated=True,
    ),
    table(
        "holds",
        "Who waits for a book.",
        "id int; book_id int -> books.id; member_id int -> members.id; placed_on text; state text "
        "{waiting|ready|cancelled}",
        generated=True,
    ),
)

_TITLES = (
    "The Glass Orchard|Salt and Lantern|A Map of Winter|The Ninth Bridge|Paper Harbours|The Clockmaker's Daughter|"
    "Quiet Rivers|The Long Arcade|Stone Fruit|An Atlas of Clouds|The Tin Parade|Bread and Thunder|Northern Gardens|"
    "The Borrowed Sea|Letters from Tunis|A Field of Radios|The Copper Moth|Small Machines|The Weather House|"
    "Orbits and Oranges|The Violet Ledger|A History of Doors|Seven Kinds of Rain|The Patient Engine"
).split("|")


def rows(rng: Random) -> Rows:
    authors = people(rng, 12)
    books = [
        (number, title, rng.choice(authors), rng.randint(1948, 2024), "reference" if number % 8 == 0 else "loan")
        for number, title in enumerate(_TITLES, 1)
    ]
    members = [
        (
            100 + number,
            name,
            "plus" if number % 3 == 0 else "basic",
            rng.choice((12, 18, 25)) if number % 5 == 1 else rng.choice((0, 0, 2, 4)),
            day(TODAY, -rng.randint(60, 2000)),
        )
        for number, name in enumerate(people(rng, 25), 1)
    ]
    copies, loans = [], []
    for number in range(48):
        book = books[number % 24]
        state = "shelved"
        if book[4] == "loan" and number % 24 < 18:
            state = "lent" if number < 24 or number % 3 == 0 else "repair" if number % 7 == 0 else "shelved"
        copies.append((1000 + number, book[0], state))
        if state == "lent":
            # The first members have many loans, so that some are at their limit.
            member = members[min(len(loans) // 3, 6)] if len(loans) < 18 else rng.choice(members[8:])
            lent = rng.randint(1, 25)
            loans.append(
                (
                    len(loans) + 1,
                    copies[-1][0],
                    member[0],
                    day(TODAY, -lent),
                    day(TODAY, 21 - lent),
                    len(loans) % 2,
                    None,
                )
            )
    waiting = [
        (number, book[0], members[10 + number % 15][0], day(TODAY, -number), "waiting" if number % 4 else "ready")
        for number, book in enumerate((books * 2)[:40:2], 1)
        if book[4] == "loan"
    ]
    for number in range(len(waiting) + 1, 21):
        waiting.append((number, books[1][0], members[number][0], day(TODAY, -number), "cancelled"))
    return {"books": books, "copies": copies, "members": members, "loans": loans, "holds": waiting}


_OPEN = "returned_on IS NULL"
TOOLS = (
    tool(
        "find_books",
        "Books with a word in title or author.",
        "text text: Part of the title or of the author's name",
        get="SELECT id, title, author, year, kind FROM books WHERE instr(lower(title), lower(:text)) > 0 OR "
        "instr(lower(author), lower(:text)) > 0 ORDER BY id",
    ),
    tool(
        "get_book",
        "A book by its number.",
        "book_id int",
        get="SELECT * FROM books WHERE id = :book_id",
        none="no book {book_id}",
    ),
    tool(
        "list_copies",
        "The copies of a book and whether they are on the shelf.",
        "book_id int",
        get="SELECT id AS copy_id, state FROM copies WHERE book_id = :book_id ORDER BY id",
    ),
    tool(
        "find_member",
        "Members by name.",
        "name text: The whole name or a part",
        get="SELECT id AS member_id, name, tier FROM members WHERE instr(lower(name), lower(:name)) > 0 ORDER BY id",
        none="no member is called {name}",
    ),
    tool(
        "get_member",
        "A member's card: tier and fines, and how many loans are open.",
        "member_id int",
        get="SELECT id, name, tier, fines, since, (SELECT count(*) FROM loans WHERE member_id = :member_id AND "
        f"{_OPEN}) AS open_loans FROM members WHERE id = :member_id",
        none="no member {member_id}",
    ),
    tool(
        "list_loans",
        "The open loans of a member.",
        "member_id int",
        get="SELECT loans.id AS loan_id, copy_id, title, due_on, renewals FROM loans JOIN copies ON copies.id = copy_id "
        f"JOIN books ON books.id = book_id WHERE member_id = :member_id AND {_OPEN} ORDER BY loans.id",
    ),
    tool(
        "list_holds",
        "Who waits for a book, the first in line first.",
        "book_id int",
        get="SELECT holds.id AS hold_id, member_id, placed_on, state FROM holds WHERE book_id = :book_id AND state <> "
        "'cancelled' ORDER BY placed_on, holds.id",
    ),
    tool(
        "lend",
        "Lend a copy for 21 days.",
        "copy_id int; member_id int",
        when=(
            ("SELECT 1 FROM copies WHERE id = :copy_id AND state = 'shelved'", "copy {copy_id} is not on the shelf"),
            ("SELECT 1 FROM members WHERE id = :member_id", "no member {member_id}"),
        ),
        do=(
            "UPDATE copies SET state = 'lent' WHERE id = :copy_id",
            "INSERT INTO loans (copy_id, member_id, lent_on, due_on, renewals) VALUES (:copy_id, :member_id, :today, "
            "add_days(:today, 21), 0)",
        ),
        get="SELECT id AS loan_id, due_on FROM loans WHERE id = last_insert_rowid()",
    ),
    tool(
        "renew",
        "Renew an open loan: due 21 days from today.",
        "loan_id int",
        when=((f"SELECT 1 FROM loans WHERE id = :loan_id AND {_OPEN}", "no open loan {loan_id}"),),
        do=("UPDATE loans SET due_on = add_days(:today, 21), renewals = renewals + 1 WHERE id = :loan_id",),
        get="SELECT id AS loan_id, due_on, renewals FROM loans WHERE id = :loan_id",
    ),
    tool(
        "take_back",
        "Take a lent copy back.",
        "loan_id int",
        when=((f"SELECT 1 FROM loans WHERE id = :loan_id AND {_OPEN}", "no open loan {loan_id}"),),
        do=(
            "UPDATE loans SET returned_on = :today WHERE id = :loan_id",
            "UPDATE copies SET state = 'shelved' WHERE id = (SELECT copy_id FROM loans WHERE id = :loan_id)",
        ),
    ),
    tool(
        "place_hold",
        "Put a member in the line for a book.",
        "book_id int; member_id int",
        when=(
            (
                "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM holds WHERE book_id = :book_id AND member_id = :member_id AND "
                "state <> 'cancelled')",
                "member {member_id} has a hold on book {book_id} already",
            ),
        ),
        do=(
            "INSERT INTO holds (book_id, member_id, placed_on, state) VALUES (:book_id, :member_id, :today, 'waiting')",
        ),
        get="SELECT id AS hold_id, (SELECT count(*) FROM holds WHERE book_id = :book_id AND state = 'waiting') AS "
        "in_line FROM holds WHERE id = last_insert_rowid()",
    ),
    tool(
        "cancel_hold",
        "Take a hold out of the line.",
        "hold_id int",
        when=(("SELECT 1 FROM holds WHERE id = :hold_id AND state <> 'cancelled'", "no hold {hold_id}"),),
        do=("UPDATE holds SET state = 'cancelled' WHERE id = :hold_id",),
    ),
    tool(
        "pay_fine",
        "Note that a member has paid some of their fines.",
        "member_id int; amount int: Euros",
        when=(
            (
                "SELECT 1 FROM members WHERE id = :member_id AND fines >= :amount AND :amount > 0",
                "they do not owe {amount}",
            ),
        ),
        do=("UPDATE members SET fines = fines - :amount WHERE id = :member_id",),
        get="SELECT id, name, fines FROM members WHERE id = :member_id",
    ),
)

RULES = (
    "A basic member may have 3 open loans, a plus member 6.",
    "Who owes more than 10 euros in fines may neither borrow nor renew before they pay.",
    "A loan may be renewed once.",
    "Reference books are not lent.",
    "Lend the copy with the lowest number that is on the shelf.",
    "Place a hold only for a book of which no copy is on the shelf.",
)

_FREE = (
    "fines <= 10 AND (SELECT count(*) FROM loans WHERE member_id = members.id AND returned_on IS NULL) < "
    "CASE tier WHEN 'plus' THEN 6 ELSE 3 END"
)
_SHELVED = (
    "SELECT books.id, title, author, min(copies.id) AS copy FROM books JOIN copies ON book_id = books.id WHERE "
    "state = 'shelved' AND kind = 'loan' GROUP BY books.id"
)
_ALL_LENT = (
    "SELECT id, title FROM books WHERE kind = 'loan' AND NOT EXISTS (SELECT 1 FROM copies WHERE book_id = books.id "
    "AND state = 'shelved')"
)
_LOANS = (
    "SELECT loans.id, title, due_on, renewals, member_id, name, fines FROM loans JOIN copies ON copies.id = copy_id "
    "JOIN books ON books.id = book_id JOIN members ON members.id = member_id WHERE returned_on IS NULL"
)


def tasks(w: World) -> None:
    for book in w.some(3, "SELECT * FROM books"):
        w.add(
            "read",
            turn(
                f"Who wrote {book.title}, and in which year did it come out?",
                [call("find_books", text=book.title)],
                f"{book.title} is by {book.author} and came out in {book.year}.",
                [book.author, book.year],
            ),
        )
    for loan in w.some(3, _LOANS + " GROUP BY member_id HAVING count(*) = 1"):
        w.add(
            "read",
            turn(
                f"I am {loan.name}. When do I have to bring {loan.title} back?",
                [call("find_member", name=loan.name), call("list_loans", member_id=loan.member_id)],
                f"{loan.title} is due on {loan.due_on}.",
                [loan.due_on],
            ),
        )
    for member, book in zip(w.some(3, f"SELECT * FROM members WHERE {_FREE}"), w.some(3, _SHELVED), strict=True):
        w.add(
            "multi",
            turn(
                f"{member.name} here. I would like to take {book.title} home today.",
                [
                    call("find_member", name=member.name),
                    call("get_member", member_id=member.id),
                    call("find_books", text=book.title),
                    call("list_copies", book_id=book.id),
                    call("lend", copy_id=book.copy, member_id=member.id),
                ],
                f"Here you are: {book.title} is yours until {day(TODAY, 21)}.",
                [day(TODAY, 21)],
            ),
            holds=[
                (
                    "the copy is lent to them",
                    f"SELECT 1 FROM loans WHERE copy_id = {book.copy} AND member_id = {member.id} AND {_OPEN}",
                )
            ],
        )
    for loan in w.some(3, _LOANS + " AND renewals = 0 AND fines <= 10"):
        w.add(
            "multi",
            turn(
                f"Please renew {loan.title} for me. My name is {loan.name}.",
                [
                    call("find_member", name=loan.name),
                    call("get_member", member_id=loan.member_id),
                    call("list_loans", member_id=loan.member_id),
                    call("renew", loan_id=loan.id),
                ],
                f"Done, {loan.title} is now due on {day(TODAY, 21)}.",
                [day(TODAY, 21)],
            ),
            holds=[("it was renewed", f"SELECT 1 FROM loans WHERE id = {loan.id} AND renewals = 1")],
        )
    for member in w.some(3, "SELECT * FROM members WHERE fines BETWEEN 2 AND 25"):
        w.add(
            "write",
            turn(
                f"I am {member.name} and want to pay all the fines that I owe.",
                [
                    call("find_member", name=member.name),
                    call("get_member", member_id=member.id),
                    call("pay_fine", member_id=member.id, amount=member.fines),
                ],
                f"Thank you: your {member.fines} euros are paid, and you owe nothing now.",
                [member.fines],
            ),
            holds=[("nothing is owed", f"SELECT 1 FROM members WHERE id = {member.id} AND fines = 0")],
        )
    for book, member in zip(w.some(2, _ALL_LENT), w.some(2, "SELECT * FROM members WHERE id < 110"), strict=True):
        w.add(
            "write",
            turn(
                f"Could you put me in the line for {book.title}?",
                [
                    call("find_books", text=book.title),
                    call("list_copies", book_id=book.id),
                    call("place_hold", book_id=book.id, member_id=member.id),
                ],
                "You are in the line. We will write to you.",
                facts=[
                    (
                        ("card number", "member number", "membership", "member", "card", "name", "who"),
                        f"My card has the number {member.id}.",
                    )
                ],
            ),
            holds=[
                (
                    "they wait for it",
                    f"SELECT 1 FROM holds WHERE book_id = {book.id} AND member_id = {member.id} AND state = 'waiting'",
                )
            ],
        )
    for member, book in zip(w.some(2, "SELECT * FROM members WHERE fines > 10"), w.some(2, _SHELVED), strict=True):
        w.add(
            "refusal",
            turn(
                f"This is {member.name}. Lend me {book.title}, please.",
                [call("find_member", name=member.name), call("get_member", member_id=member.id)],
                f"I am sorry, I cannot lend it to you: you owe {member.fines} euros in fines, and the limit is 10.",
                [CANNOT, member.fines],
            ),
        )
    for loan in w.some(2, _LOANS + " AND renewals = 1 AND fines <= 10"):
        w.add(
            "refusal",
            turn(
                f"I need three more weeks with {loan.title}. I am {loan.name}.",
                [call("find_member", name=loan.name), call("list_loans", member_id=loan.member_id)],
                f"It was renewed before, so I cannot do it again; it stays due on {loan.due_on}.",
                [CANNOT, loan.due_on],
            ),
        )
    for book in w.some(2, "SELECT * FROM books WHERE kind = 'reference'"):
        w.add(
            "refusal",
            turn(
                f"May I borrow {book.title} over the weekend?",
                [call("find_books", text=book.title)],
                f"I am sorry, that is not possible: {book.title} is a reference book and stays in the building.",
                [CANNOT, tells("reference")],
            ),
        )


BLUEPRINT = Blueprint(
    name="library",
    title="the public library of Halden",
    description="A public library that lends books: copies, members with cards and fines, loans, renewals, holds.",
    today=TODAY,
    rules=RULES,
    tables=TABLES,
    rows=rows,
    tools=TOOLS,
    tasks=tasks,
)
