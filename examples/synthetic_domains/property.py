"""A property manager: buildings, flats, leases, rents, repairs, tradespeople."""

from __future__ import annotations

from random import Random

from kit import CANNOT, Blueprint, Rows, World, call, day, people, table, tool, turn

TODAY = "2026-02-16"

TABLES = (
    table("buildings", "Buildings.", "id int; street text; built int; lift text {yes|no}; pets text {yes|no}"),
    table(
        "flats",
        "Flats.",
        "id int; building_id int -> buildings.id; door text; rooms int; rent int: a month; state text {let|free|renovation}",
    ),
    table("tenants", "Who rents or rented.", "id int; name text; phone text; owes int: euros"),
    table(
        "leases",
        "Leases.",
        "id int; flat_id int -> flats.id; tenant_id int -> tenants.id; began text; ends text; deposit int; notice text?: Day to which notice was given; state text {running|ended}",
        generated=True,
    ),
    table(
        "trades",
        "Tradespeople.",
        "id int; name text; craft text {plumber|electrician|painter|locksmith|heating}; hourly int; available text {yes|no}",
    ),
    table(
        "repairs",
        "Repairs of flats.",
        "id int; flat_id int -> flats.id; trade_id int? -> trades.id; craft text {plumber|electrician|painter|locksmith|heating}; what text? ~; reported_on text; state text {reported|assigned|done}",
        generated=True,
    ),
)

_STREETS = (
    "Ahorn Lane|Birch Road|Cedar Court|Dock Street|Elm Square|Fern Hill|Grove Street|Hazel Way|Iris Close|Juniper Row|Kiln Street|Larch Road|Maple Court|North Quay|Oak Parade|"
    "Poplar Walk|Quarry Lane|Rowan Street|Spruce Road|Tower Yard"
).split("|")


def rows(rng: Random) -> Rows:
    buildings = [
        (
            number,
            f"{rng.randint(1, 60)} {street}",
            rng.randint(1890, 2020),
            "yes" if number % 3 else "no",
            "no" if number % 4 == 0 else "yes",
        )
        for number, street in enumerate(_STREETS, 1)
    ]
    flats = []
    for number in range(44):
        rooms = 1 + number % 4
        state = "free" if number % 5 == 4 else "renovation" if number % 17 == 6 else "let"
        flats.append(
            (
                100 + number,
                buildings[number % 20][0],
                f"{1 + number // 20}{'ABC'[number % 3]}",
                rooms,
                320 + 190 * rooms + 5 * number,
                state,
            )
        )
    tenants = [
        (9000 + number, name, f"555-{3000 + number * 11}", rng.choice((350, 720)) if number % 6 == 0 else 0)
        for number, name in enumerate(people(rng, 44), 1)
    ]
    leases = []
    for number, flat in enumerate(flat for flat in flats if flat[5] == "let"):
        tenant = tenants[number]
        short = number % 4 == 1
        leases.append(
            (
                number + 1,
                flat[0],
                tenant[0],
                day(TODAY, -(150 if short else 700 + number)),
                day(TODAY, 900 + number),
                flat[4] * 3,
                None,
                "running",
            )
        )
    crafts = ("plumber", "electrician", "painter", "locksmith", "heating")
    trades = [
        (
            number + 1,
            f"{name.split()[1]} & Co",
            crafts[number % 5],
            38 + (number * 7) % 41,
            "no" if number % 6 == 5 else "yes",
        )
        for number, name in enumerate(people(rng, 20))
    ]
    repairs = [
        (
            number + 1,
            flats[(number * 3) % 44][0],
            trades[number % 5][0] if number % 3 else None,
            crafts[number % 5],
            "leak",
            day(TODAY, -2 - number),
            "assigned" if number % 3 else "reported",
        )
        for number in range(24)
    ]
    return {
        "buildings": buildings,
        "flats": flats,
        "tenants": tenants,
        "leases": leases,
        "trades": trades,
        "repairs": repairs,
    }


TOOLS = (
    tool(
        "search_flats",
        "Free flats.",
        "most int?: Highest rent; rooms int?: At least so many; pets bool?: Only where pets are allowed",
        get="SELECT flats.id AS flat_id, street, door, rooms, rent, lift, pets FROM flats JOIN buildings ON buildings.id = building_id WHERE state = 'free' AND rent <= coalesce(:most, rent) AND "
        "rooms >= coalesce(:rooms, 1) AND (pets = 'yes' OR coalesce(:pets, 0) = 0) ORDER BY rent",
    ),
    tool(
        "get_flat",
        "A flat with its building.",
        "flat_id int",
        get="SELECT flats.*, street, built, lift, pets FROM flats JOIN buildings ON buildings.id = building_id WHERE flats.id = :flat_id",
        none="no flat {flat_id}",
    ),
    tool(
        "find_tenant",
        "Tenants by name.",
        "name text",
        get="SELECT id AS tenant_id, name, phone, owes FROM tenants WHERE instr(lower(name), lower(:name)) > 0 ORDER BY id",
        none="no tenant is called {name}",
    ),
    tool(
        "get_lease",
        "A tenant's running lease.",
        "tenant_id int",
        get="SELECT leases.id AS lease_id, flat_id, began, ends, deposit, notice, rent FROM leases JOIN flats ON flats.id = flat_id WHERE tenant_id = :tenant_id AND leases.state = 'running'",
        none="tenant {tenant_id} has no running lease",
    ),
    tool(
        "sign_lease",
        "Let a free flat for three years from today; the deposit is three rents.",
        "flat_id int; tenant_id int",
        when=(
            ("SELECT 1 FROM flats WHERE id = :flat_id AND state = 'free'", "flat {flat_id} is not free"),
            ("SELECT 1 FROM tenants WHERE id = :tenant_id", "no tenant {tenant_id}"),
        ),
        do=(
            "INSERT INTO leases (flat_id, tenant_id, began, ends, deposit, state) SELECT :flat_id, :tenant_id, :today, add_days(:today, 1095), rent * 3, 'running' FROM flats WHERE id = :flat_id",
            "UPDATE flats SET state = 'let' WHERE id = :flat_id",
        ),
        get="SELECT id AS lease_id, ends, deposit FROM leases WHERE id = last_insert_rowid()",
    ),
    tool(
        "give_notice",
        "Enter notice to a lease, to the day that is 90 days from today.",
        "lease_id int",
        when=(
            (
                "SELECT 1 FROM leases WHERE id = :lease_id AND state = 'running' AND notice IS NULL",
                "lease {lease_id} is not running, or has notice",
            ),
        ),
        do=("UPDATE leases SET notice = add_days(:today, 90) WHERE id = :lease_id",),
        get="SELECT id AS lease_id, notice FROM leases WHERE id = :lease_id",
    ),
    tool(
        "take_payment",
        "Note what a tenant has paid of what they owe.",
        "tenant_id int; euros int",
        when=(
            (
                "SELECT 1 FROM tenants WHERE id = :tenant_id AND owes >= :euros AND :euros > 0",
                "they do not owe {euros}",
            ),
        ),
        do=("UPDATE tenants SET owes = owes - :euros WHERE id = :tenant_id",),
        get="SELECT id, owes FROM tenants WHERE id = :tenant_id",
    ),
    tool(
        "report_repair",
        "Report a fault in a flat.",
        "flat_id int; craft text {plumber|electrician|painter|locksmith|heating}; what text?",
        when=(("SELECT 1 FROM flats WHERE id = :flat_id", "no flat {flat_id}"),),
        do=(
            "INSERT INTO repairs (flat_id, craft, what, reported_on, state) VALUES (:flat_id, :craft, coalesce(:what, 'none'), :today, 'reported')",
        ),
        get="SELECT id AS repair_id FROM repairs WHERE id = last_insert_rowid()",
    ),
    tool(
        "list_repairs",
        "Repairs of a flat.",
        "flat_id int",
        get="SELECT repairs.id AS repair_id, repairs.craft, reported_on, state, name AS trade FROM repairs LEFT JOIN trades ON trades.id = trade_id WHERE flat_id = :flat_id ORDER BY repairs.id",
    ),
    tool(
        "find_trades",
        "Tradespeople of a craft.",
        "craft text {plumber|electrician|painter|locksmith|heating}",
        get="SELECT id AS trade_id, name, hourly, available FROM trades WHERE craft = :craft ORDER BY hourly, id",
    ),
    tool(
        "assign",
        "Give a reported repair to a tradesperson.",
        "repair_id int; trade_id int",
        when=(
            ("SELECT 1 FROM repairs WHERE id = :repair_id AND state = 'reported'", "no reported repair {repair_id}"),
            (
                "SELECT 1 FROM trades JOIN repairs ON repairs.craft = trades.craft WHERE trades.id = :trade_id AND repairs.id = :repair_id AND available = 'yes'",
                "trade {trade_id} is of another craft, or not available",
            ),
        ),
        do=("UPDATE repairs SET trade_id = :trade_id, state = 'assigned' WHERE id = :repair_id",),
    ),
    tool(
        "set_phone",
        "Change a tenant's telephone number.",
        "tenant_id int; phone text",
        when=(("SELECT 1 FROM tenants WHERE id = :tenant_id", "no tenant {tenant_id}"),),
        do=("UPDATE tenants SET phone = :phone WHERE id = :tenant_id",),
    ),
)

RULES = (
    "In the first year of a lease no notice is given.",
    "Who owes rent gets no new flat.",
    "Repairs go to the cheapest tradesperson of the craft who is available.",
    "Pets are kept only in buildings that allow them.",
    "Rents and deposits are not lowered by the assistant.",
)

_LEASE = "SELECT leases.*, name, owes, rent, door, street, pets FROM leases JOIN tenants ON tenants.id = tenant_id JOIN flats ON flats.id = flat_id JOIN buildings ON buildings.id = building_id WHERE leases.state = 'running' AND "


def tasks(w: World) -> None:
    for one in w.some(3, _LEASE + "1"):
        w.add(
            "read",
            turn(
                f"How long does my lease run, and how large was the deposit? {one.name}",
                [call("find_tenant", name=one.name), call("get_lease", tenant_id=one.tenant_id)],
                f"It runs until {one.ends}; the deposit is {one.deposit} euros.",
                [one.ends, one.deposit],
            ),
        )
    for rooms in (2, 3, 4):
        best = w.every(
            f"SELECT flats.*, street FROM flats JOIN buildings ON buildings.id = building_id WHERE state = 'free' AND rooms >= {rooms} ORDER BY rent"
        )[0]
        w.add(
            "read",
            turn(
                f"Which is the cheapest free flat with at least {rooms} rooms, and what is the rent?",
                [call("search_flats", rooms=rooms)],
                f"{best.street}, door {best.door}, for {best.rent} euros.",
                [best.street, best.rent],
            ),
        )
    people_ = w.some(
        3, "SELECT * FROM tenants WHERE owes = 0 AND NOT EXISTS (SELECT 1 FROM leases WHERE tenant_id = tenants.id)"
    )
    for one, who in zip(
        w.some(
            3, "SELECT flats.*, street FROM flats JOIN buildings ON buildings.id = building_id WHERE state = 'free'"
        ),
        people_,
        strict=True,
    ):
        w.add(
            "multi",
            turn(
                f"I am {who.name} and take flat {one.id}. What will the deposit be, and until when does the lease run?",
                [
                    call("find_tenant", name=who.name),
                    call("get_flat", flat_id=one.id),
                    call("sign_lease", flat_id=one.id, tenant_id=who.id),
                ],
                f"It is yours until {day(TODAY, 1095)}; the deposit is {one.rent * 3} euros.",
                [day(TODAY, 1095), one.rent * 3],
            ),
            holds=[
                (
                    "the flat is theirs",
                    f"SELECT 1 FROM leases WHERE flat_id = {one.id} AND tenant_id = {who.id} AND state = 'running'",
                )
            ],
        )
    for one in w.some(3, _LEASE + "days_between(began, :today) > 365"):
        w.add(
            "write",
            turn(
                f"I am moving out and want to give notice. {one.name}",
                [
                    call("find_tenant", name=one.name),
                    call("get_lease", tenant_id=one.tenant_id),
                    call("give_notice", lease_id=one.id),
                ],
                f"Your notice is entered, to {day(TODAY, 90)}.",
                [day(TODAY, 90)],
            ),
            holds=[("notice is given", f"SELECT 1 FROM leases WHERE id = {one.id} AND notice = '{day(TODAY, 90)}'")],
        )
    for one, (craft, words) in zip(
        w.some(3, _LEASE + "1"),
        (
            ("plumber", "The kitchen tap drips"),
            ("heating", "The radiators stay cold"),
            ("electrician", "Half of the sockets are dead"),
        ),
        strict=True,
    ):
        best = w.every(f"SELECT * FROM trades WHERE craft = '{craft}' AND available = 'yes' ORDER BY hourly, id")[0]
        repair = len(w.every("SELECT id FROM repairs")) + 1
        w.add(
            "multi",
            turn(
                f"{words}, please send somebody. {one.name}",
                [
                    call("find_tenant", name=one.name),
                    call("get_lease", tenant_id=one.tenant_id),
                    call("report_repair", flat_id=one.flat_id, craft=craft, what=words),
                    call("find_trades", craft=craft),
                    call("assign", repair_id=repair, trade_id=best.id),
                ],
                f"{best.name} will come to you.",
                [best.name],
            ),
            holds=[
                (
                    "somebody is assigned",
                    f"SELECT 1 FROM repairs WHERE flat_id = {one.flat_id} AND craft = '{craft}' AND trade_id = {best.id} AND reported_on = '{TODAY}'",
                )
            ],
        )
    for one in w.some(2, "SELECT * FROM tenants WHERE owes > 0"):
        w.add(
            "multi",
            turn(
                f"What do I owe you? {one.name}",
                [call("find_tenant", name=one.name)],
                f"{one.owes} euros.",
                [one.owes],
            ),
            turn(
                "I have just transferred all of it. Please note that, and tell me what is left.",
                [call("take_payment", tenant_id=one.id, euros=one.owes), call("find_tenant", name=one.name)],
                "Noted: 0 euros are left.",
                [0],
            ),
            holds=[("nothing is owed", f"SELECT 1 FROM tenants WHERE id = {one.id} AND owes = 0")],
        )
    for number, one in enumerate(w.some(2, "SELECT * FROM tenants")):
        phone = f"555-77{31 + number}"
        w.add(
            "write",
            turn(
                f"My new telephone number is {phone}.",
                [call("find_tenant", name=one.name), call("set_phone", tenant_id=one.id, phone=phone)],
                "I have changed it.",
                facts=[(("name", "who", "called"), f"{one.name} is my name.")],
            ),
            holds=[("it is changed", f"SELECT 1 FROM tenants WHERE id = {one.id} AND phone = '{phone}'")],
        )
    for one in w.some(2, _LEASE + "days_between(began, :today) < 365"):
        w.add(
            "refusal",
            turn(
                f"I do not like it here. End my lease as soon as you can. {one.name}",
                [call("find_tenant", name=one.name), call("get_lease", tenant_id=one.tenant_id)],
                f"I cannot enter notice in the first year; your lease began on {one.began}.",
                [CANNOT, one.began],
            ),
        )
    for one, who in zip(
        w.some(2, "SELECT * FROM flats WHERE state = 'free'"),
        w.some(2, "SELECT * FROM tenants WHERE owes > 0"),
        strict=True,
    ):
        w.add(
            "refusal",
            turn(
                f"{who.name} here. I would like to rent flat {one.id} as well.",
                [call("find_tenant", name=who.name)],
                f"That is not possible while you owe {who.owes} euros.",
                [CANNOT, who.owes],
            ),
        )
    for one in w.some(2, _LEASE + "pets = 'no'"):
        w.add(
            "refusal",
            turn(
                f"We are getting a cat next week. Is that all right in our flat? {one.name}",
                [
                    call("find_tenant", name=one.name),
                    call("get_lease", tenant_id=one.tenant_id),
                    call("get_flat", flat_id=one.flat_id),
                ],
                f"I am sorry, pets are not allowed at {one.street}.",
                [CANNOT, one.street],
            ),
        )


BLUEPRINT = Blueprint(
    name="property",
    title="Hausmann property management",
    description="A property manager: buildings, flats to let, leases with notice and deposits, rents owed, repairs and tradespeople.",
    today=TODAY,
    rules=RULES,
    tables=TABLES,
    rows=rows,
    tools=TOOLS,
    tasks=tasks,
)
