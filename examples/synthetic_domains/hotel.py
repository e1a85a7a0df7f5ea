"""A hotel: rooms, guests, stays, services and what is charged for them."""

from __future__ import annotations

from random import Random

from kit import CANNOT, Blueprint, Rows, World, call, day, people, table, tells, tool, turn

TODAY = "2026-07-20"

TABLES = (
    table(
        "rooms",
        "Rooms.",
        "number int; kind text {single|double|suite}; floor int; view text {sea|court}; price int: of a night; pets text {yes|no}",
    ),
    table("guests", "Known guests.", "id int; name text; email text; status text {new|regular|gold}"),
    table(
        "stays",
        "Reservations; the last night is the one before `departs`.",
        "id int; guest_id int -> guests.id; room int -> rooms.number; arrives text; departs text; rate text {flexible|saver}; state text {booked|here|left|cancelled}",
        generated=True,
    ),
    table("services", "What can be ordered for a stay.", "code text; name text; price int; hours text"),
    table(
        "charges",
        "Services ordered.",
        "id int; stay_id int -> stays.id; service text -> services.code; quantity int; day text",
        generated=True,
    ),
)

_SERVICES = (
    "breakfast|Breakfast in the hall|18|06:30-10:30;late_breakfast|Late breakfast|24|10:30-12:00;sauna|Sauna|15|16:00-22:00;massage|Massage|70|10:00-20:00;"
    "laundry|Laundry bag|22|08:00-18:00;parking|Parking for a day|12|all day;crib|Baby crib|10|all day;airport|Ride to the airport|45|05:00-23:00;"
    "bicycle|Bicycle for a day|14|08:00-20:00;boat|Boat trip|38|11:00-15:00;dinner|Three-course dinner|42|18:00-22:00;picnic|Picnic basket|27|09:00-12:00;"
    "pool|Pool towel|4|07:00-21:00;ironing|Ironing|9|08:00-18:00;printer|Printing|2|all day;kayak|Kayak for an hour|19|10:00-17:00;tennis|Tennis court|16|08:00-20:00;"
    "guide|City guide for two hours|60|09:00-17:00;flowers|Flowers in the room|30|09:00-19:00;minibar|Full minibar|35|all day;pet_bed|Pet bed|11|all day"
)


def rows(rng: Random) -> Rows:
    kinds = ("single", "double", "double", "suite")
    prices = {"single": 80, "double": 120, "suite": 240}
    rooms = [
        (
            100 * (1 + number // 6) + number % 6 + 1,
            kinds[number % 4],
            1 + number // 6,
            "sea" if number % 3 else "court",
            prices[kinds[number % 4]] + 5 * (number // 3),
            "yes" if number % 5 == 0 else "no",
        )
        for number in range(24)
    ]
    guests = [
        (40 + number, name, f"{name.split()[1].lower()}@example.com", ("new", "regular", "gold")[number // 2 % 3])
        for number, name in enumerate(people(rng, 30), 1)
    ]
    stays = []
    for number in range(44):
        guest, room = guests[number if number < 30 else number - 14], rooms[number % 24]
        start = (-3, 2, 5, 0, 9)[number % 5] if number < 24 else 14 + number % 5
        state = "here" if start < 0 else "booked"
        stays.append(
            (
                number + 1,
                guest[0],
                room[0],
                day(TODAY, start),
                day(TODAY, start + 4 + number % 2),
                "saver" if number % 3 == 0 else "flexible",
                state,
            )
        )
    services = [
        (code, name, int(price), hours)
        for code, name, price, hours in (line.split("|") for line in _SERVICES.split(";"))
    ]
    charges = []
    here = [stay for stay in stays if stay[6] == "here"]
    for number in range(24):
        stay = here[number % len(here)]
        charges.append(
            (number + 1, stay[0], services[(number * 5) % 21][0], 1 + number % 2, day(TODAY, -1 - number % 3))
        )
    return {"rooms": rooms, "guests": guests, "stays": stays, "services": services, "charges": charges}


_FREE = "NOT EXISTS (SELECT 1 FROM stays WHERE room = rooms.number AND state IN ('booked', 'here') AND arrives < :departs AND departs > :arrives)"
TOOLS = (
    tool(
        "free_rooms",
        "Rooms that are free from one date to another.",
        "arrives text; departs text; kind text? {single|double|suite}",
        when=(
            (
                "SELECT 1 WHERE :arrives < :departs AND :arrives >= :today",
                "the dates do not fit: {arrives} to {departs}",
            ),
        ),
        get=f"SELECT number, kind, view, price, pets FROM rooms WHERE kind = coalesce(:kind, kind) AND {_FREE} ORDER BY price, number",
    ),
    tool(
        "get_room", "A room.", "number int", get="SELECT * FROM rooms WHERE number = :number", none="no room {number}"
    ),
    tool(
        "find_guest",
        "Guests by name.",
        "name text",
        get="SELECT id AS guest_id, name, status FROM guests WHERE instr(lower(name), lower(:name)) > 0 ORDER BY id",
        none="no guest is called {name}",
    ),
    tool(
        "list_stays",
        "A guest's stays.",
        "guest_id int",
        get="SELECT id AS stay_id, room, arrives, departs, rate, state FROM stays WHERE guest_id = :guest_id ORDER BY arrives",
    ),
    tool(
        "get_stay",
        "A stay with the price of its room.",
        "stay_id int",
        get="SELECT stays.*, price AS price_a_night, days_between(arrives, departs) AS nights FROM stays JOIN rooms ON number = room WHERE stays.id = :stay_id",
        none="no stay {stay_id}",
    ),
    tool(
        "reserve",
        "Reserve a room for a guest.",
        "guest_id int; room int; arrives text; departs text; rate text {flexible|saver}",
        when=(
            ("SELECT 1 FROM guests WHERE id = :guest_id", "no guest {guest_id}"),
            (
                f"SELECT 1 FROM rooms WHERE number = :room AND :arrives < :departs AND {_FREE}",
                "room {room} is not free then",
            ),
        ),
        do=(
            "INSERT INTO stays (guest_id, room, arrives, departs, rate, state) VALUES (:guest_id, :room, :arrives, :departs, :rate, 'booked')",
        ),
        get="SELECT stays.id AS stay_id, price * days_between(arrives, departs) AS total FROM stays JOIN rooms ON number = room WHERE stays.id = last_insert_rowid()",
    ),
    tool(
        "cancel_stay",
        "Cancel a stay that has not begun.",
        "stay_id int",
        when=(("SELECT 1 FROM stays WHERE id = :stay_id AND state = 'booked'", "no booked stay {stay_id}"),),
        do=("UPDATE stays SET state = 'cancelled' WHERE id = :stay_id",),
    ),
    tool(
        "change_dates",
        "Move a booked stay to other dates, in the same room.",
        "stay_id int; arrives text; departs text",
        when=(
            (
                "SELECT 1 FROM stays WHERE id = :stay_id AND state IN ('booked', 'here') AND :arrives < :departs",
                "no such stay, or dates that do not fit",
            ),
            (
                "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM stays AS mine JOIN stays AS other ON other.room = mine.room AND other.id <> mine.id WHERE mine.id = :stay_id AND "
                "other.state IN ('booked', 'here') AND other.arrives < :departs AND other.departs > :arrives)",
                "the room is taken then",
            ),
        ),
        do=("UPDATE stays SET arrives = :arrives, departs = :departs WHERE id = :stay_id",),
        get="SELECT id AS stay_id, arrives, departs FROM stays WHERE id = :stay_id",
    ),
    tool(
        "list_services",
        "Services by name, with price and hours.",
        "text text?: All when left out",
        get="SELECT * FROM services WHERE instr(lower(name), lower(coalesce(:text, name))) > 0 ORDER BY code",
    ),
    tool(
        "order_service",
        "Charge a service to the stay of a guest who is here.",
        "stay_id int; service text: Its code; quantity int; day text",
        when=(
            ("SELECT 1 FROM stays WHERE id = :stay_id AND state = 'here'", "the guest of stay {stay_id} is not here"),
            ("SELECT 1 FROM services WHERE code = :service AND :quantity > 0", "no service {service}"),
        ),
        do=("INSERT INTO charges (stay_id, service, quantity, day) VALUES (:stay_id, :service, :quantity, :day)",),
        get="SELECT charges.id AS charge_id, quantity * price AS price FROM charges JOIN services ON code = service WHERE charges.id = last_insert_rowid()",
    ),
    tool(
        "bill",
        "What has been charged to a stay so far, the room apart.",
        "stay_id int",
        get="SELECT name, quantity, day, quantity * price AS price FROM charges JOIN services ON code = service WHERE stay_id = :stay_id ORDER BY charges.id",
    ),
    tool(
        "set_status",
        "Change a guest's status.",
        "guest_id int; status text {new|regular|gold}",
        when=(("SELECT 1 FROM guests WHERE id = :guest_id", "no guest {guest_id}"),),
        do=("UPDATE guests SET status = :status WHERE id = :guest_id",),
    ),
)

RULES = (
    "Saver stays are neither cancelled nor moved.",
    "Flexible stays may be cancelled up to 3 days before arrival.",
    "Pets stay only in rooms that allow them.",
    "New reservations are at the flexible rate unless the guest asks for the saver rate.",
    "When a guest wants the cheapest room, take the one with the lowest price, and of equal ones the lowest number.",
    "Only gold guests have a late breakfast.",
)

_STAY = (
    "SELECT stays.id, guest_id, name, status, room, kind, price, arrives, departs, days_between(arrives, departs) AS nights, rate FROM stays JOIN guests ON guests.id = guest_id JOIN "
    "rooms ON number = room WHERE (SELECT count(*) FROM stays AS s WHERE s.guest_id = guests.id) = 1 AND "
)


def tasks(w: World) -> None:
    for one in w.some(3, _STAY + "state = 'booked'"):
        w.add(
            "read",
            turn(
                f"{one.name} here. When do I arrive, and what will my room cost for the whole stay?",
                [
                    call("find_guest", name=one.name),
                    call("list_stays", guest_id=one.guest_id),
                    call("get_stay", stay_id=one.id),
                ],
                f"You arrive on {one.arrives}; {one.nights} nights in room {one.room} are {one.nights * one.price} euros.",
                [one.arrives, one.room, tells(one.nights * one.price, looked_up=False)],
            ),
        )
    for one in w.some(3, "SELECT * FROM services"):
        w.add(
            "read",
            turn(
                f"How much is this, and when can I have it: {one.name.lower()}?",
                [call("list_services", text=one.name)],
                f"It is {one.price} euros, hours: {one.hours}.",
                [one.price, one.hours],
            ),
        )
    for number, who in enumerate(w.some(3, "SELECT * FROM guests WHERE id > 60")):
        kind, start = ("double", "single", "suite")[number], 30 + 4 * number
        arrives, departs = day(TODAY, start), day(TODAY, start + 3)
        room = w.every(f"SELECT * FROM rooms WHERE kind = '{kind}' ORDER BY price, number")[0]
        w.add(
            "multi",
            turn(
                f"I am {who.name} and would like your cheapest {kind} room from {arrives} to {departs}.",
                [
                    call("find_guest", name=who.name),
                    call("free_rooms", arrives=arrives, departs=departs, kind=kind),
                    call(
                        "reserve",
                        guest_id=who.id,
                        room=room.number,
                        arrives=arrives,
                        departs=departs,
                        rate="flexible",
                    ),
                ],
                f"Room {room.number} is yours, for {room.price * 3} euros in all.",
                [room.number, room.price * 3],
            ),
            holds=[
                (
                    "the room is reserved",
                    f"SELECT 1 FROM stays WHERE guest_id = {who.id} AND room = {room.number} AND arrives = '{arrives}' AND state = 'booked'",
                )
            ],
        )
    for one in w.some(3, _STAY + "state = 'booked' AND rate = 'flexible' AND days_between(:today, arrives) >= 3"):
        w.add(
            "write",
            turn(
                f"I have to cancel my stay. {one.name}",
                [
                    call("find_guest", name=one.name),
                    call("list_stays", guest_id=one.guest_id),
                    call("cancel_stay", stay_id=one.id),
                ],
                f"Your stay from {one.arrives} is cancelled, free of charge.",
                [one.arrives],
            ),
            holds=[("it is cancelled", f"SELECT 1 FROM stays WHERE id = {one.id} AND state = 'cancelled'")],
        )
    for one, (service, words, many) in zip(
        w.some(3, _STAY + "state = 'here'"),
        (("massage", "a massage", 1), ("bicycle", "two bicycles", 2), ("dinner", "dinner for two", 2)),
        strict=True,
    ):
        price = w.one(f"SELECT price FROM services WHERE code = '{service}'").price * many
        when = day(TODAY, 1)
        w.add(
            "multi",
            turn(
                f"This is {one.name}. I would like {words} tomorrow, on my bill.",
                [
                    call("find_guest", name=one.name),
                    call("list_stays", guest_id=one.guest_id),
                    call("list_services"),
                    call("order_service", stay_id=one.id, service=service, quantity=many, day=when),
                ],
                f"With pleasure: that is {price} euros.",
                [price],
            ),
            holds=[
                (
                    "it is charged",
                    f"SELECT 1 FROM charges WHERE stay_id = {one.id} AND service = '{service}' AND day = '{when}' AND quantity = {many}",
                )
            ],
        )
    for one in w.some(2, _STAY + "state = 'booked' AND rate = 'flexible'"):
        later = day(one.departs, 1)
        if w.every(
            f"SELECT 1 FROM stays WHERE room = {one.room} AND id <> {one.id} AND state IN ('booked', 'here') AND arrives < '{later}' AND departs > '{one.arrives}'"
        ):
            continue
        w.add(
            "write",
            turn(
                "We would like to stay a night longer than booked.",
                [
                    call("find_guest", name=one.name),
                    call("list_stays", guest_id=one.guest_id),
                    call("change_dates", stay_id=one.id, arrives=one.arrives, departs=later),
                ],
                f"You now leave on {later}.",
                [later],
                facts=[(("name", "who", "reservation", "booking"), f"It is booked under {one.name}.")],
            ),
            holds=[("they stay longer", f"SELECT 1 FROM stays WHERE id = {one.id} AND departs = '{later}'")],
        )
        break
    for one in w.some(
        2,
        "SELECT stay_id, guest_id, guests.name, sum(quantity * price) AS total FROM charges JOIN services ON code = service JOIN stays ON stays.id = stay_id JOIN guests ON "
        "guests.id = guest_id GROUP BY stay_id",
    ):
        stays = w.every(f"SELECT id FROM stays WHERE guest_id = {one.guest_id}")
        parts = w.every(
            f"SELECT services.name, quantity * price AS price FROM charges JOIN services ON code = service WHERE stay_id = {one.stay_id}"
        )
        assert stays
        w.add(
            "read",
            turn(
                f"What is on my bill so far, without the room? {one.name}",
                [
                    call("find_guest", name=one.name),
                    call("list_stays", guest_id=one.guest_id),
                    call("bill", stay_id=one.stay_id),
                ],
                f"In all {one.total} euros: " + ", ".join(f"{part.name} {part.price}" for part in parts) + ".",
                [tells(one.total, looked_up=False), parts[0].name, parts[-1].price],
            ),
        )
    for one in w.some(2, _STAY + "state = 'booked' AND rate = 'saver'"):
        w.add(
            "refusal",
            turn(
                f"Please cancel my reservation and refund it. {one.name}",
                [call("find_guest", name=one.name), call("list_stays", guest_id=one.guest_id)],
                f"I am sorry, I cannot cancel it: your stay from {one.arrives} is at the saver rate.",
                [CANNOT, tells("saver"), one.arrives],
            ),
        )
    for one in w.some(2, _STAY + "state = 'here' AND status <> 'gold'"):
        w.add(
            "refusal",
            turn(
                f"{one.name} speaking, put a late breakfast for tomorrow on my bill.",
                [call("find_guest", name=one.name)],
                f"I am sorry, that is not possible: a late breakfast is for gold guests, and your status is {one.status}.",
                [CANNOT, one.status],
            ),
        )
    for one in w.some(2, "SELECT * FROM rooms WHERE pets = 'no'"):
        w.add(
            "refusal",
            turn(
                f"I would love room {one.number}. My dog comes along, of course. Is that fine?",
                [call("get_room", number=one.number)],
                f"I am sorry, pets are not allowed in that room on floor {one.floor}.",
                [tells("pets"), CANNOT, one.floor],
            ),
        )


BLUEPRINT = Blueprint(
    name="hotel",
    title="the Hotel Meridian",
    description="A seaside hotel: rooms by kind and view, guests with a status, stays at two rates, services charged to a stay.",
    today=TODAY,
    rules=RULES,
    tables=TABLES,
    rows=rows,
    tools=TOOLS,
    tasks=tasks,
)
