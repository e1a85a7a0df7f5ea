"""A company's vehicles: drivers, trips, fuel, repairs."""

from __future__ import annotations

from random import Random

from kit import CANNOT, Blueprint, Rows, World, call, day, people, table, tells, tool, turn

TODAY = "2026-04-22"

TABLES = (
    table("depots", "Where vehicles stand.", "code text; city text; places int"),
    table(
        "vehicles",
        "Vans, trucks and cars.",
        "plate text; kind text {van|truck|car}; depot text -> depots.code; km int; serviced_at_km int; inspected_on text; state text {ready|out|repair|sold}; load_kg int",
    ),
    table(
        "drivers",
        "Who drives.",
        "id int; name text; licence text {B|C}; licence_until text; depot text -> depots.code; hours int: driven this week",
    ),
    table(
        "trips",
        "Trips planned and done.",
        "id int; plate text -> vehicles.plate; driver_id int -> drivers.id; date text; destination text; hours int; state text {planned|done|cancelled}",
        generated=True,
    ),
    table(
        "repairs",
        "Work on vehicles.",
        "id int; plate text -> vehicles.plate; fault text? ~; kind text {brakes|engine|tyres|body|service}; opened_on text; state text {open|done}",
        generated=True,
    ),
    table("fuel", "Fuel cards used.", "id int; plate text -> vehicles.plate; date text; litres int; euros int"),
)

_CITIES = (
    "Graz Linz Wels Steyr Enns Krems Tulln Melk Baden Moedling Leoben Bruck Villach Klagenfurt Lienz Hallein Salzburg Braunau Ried Freistadt"
).split()
_PLACES = ("Passau", "Brno", "Maribor", "Udine", "Sopron", "Munich", "Zilina", "Trieste", "Budweis", "Regensburg")


def rows(rng: Random) -> Rows:
    depots = [(city[:3].upper(), city, rng.randint(5, 20)) for city in _CITIES]
    vehicles = []
    for number in range(36):
        kind = ("van", "truck", "car")[number % 3]
        km = rng.randint(20, 180) * 1000
        state = "repair" if number % 9 == 4 else "ready"
        overdue = number % 5 == 0
        vehicles.append(
            (
                f"W-{310 + number * 7}",
                kind,
                depots[number // 3 % 6][0],
                km,
                km - (21_000 if overdue else rng.randint(2, 14) * 1000),
                day(TODAY, -(400 if number % 8 == 6 else rng.randint(20, 300))),
                state,
                {"van": 1200, "truck": 7500, "car": 400}[kind] + 50 * (number // 3),
            )
        )
    drivers = [
        (
            60 + number,
            name,
            "C" if number % 2 else "B",
            day(TODAY, -20 if number % 6 == 5 else rng.randint(60, 900)),
            depots[number % 6][0],
            46 if number % 4 == 0 else rng.randint(8, 30),
        )
        for number, name in enumerate(people(rng, 24), 1)
    ]
    trips = []
    for number in range(36):
        vehicle, driver = vehicles[(number * 5) % 36], drivers[number % 24]
        if vehicle[1] == "truck" and driver[2] == "B":
            vehicle = vehicles[(number * 5 + 1) % 36]
        ahead = number % 3 != 0
        trips.append(
            (
                number + 1,
                vehicle[0],
                driver[0],
                day(TODAY, 2 + number % 5 if ahead else -3 - number % 9),
                _PLACES[number % 10],
                3 + number % 7,
                "planned" if ahead else "done",
            )
        )
    kinds = ("brakes", "engine", "tyres", "body", "service")
    broken = [vehicle for vehicle in vehicles if vehicle[6] == "repair"]
    repairs = [
        (number + 1, vehicle[0], "noise", kinds[number % 4], day(TODAY, -number - 1), "open")
        for number, vehicle in enumerate(broken)
    ]
    repairs += [
        (number, vehicles[number][0], "worn", kinds[number % 5], day(TODAY, -100 - number), "done")
        for number in range(len(repairs) + 1, 21)
    ]
    fuel = [
        (number, vehicles[number % 36][0], day(TODAY, -number), litres := rng.randint(20, 90), litres * 2 - 7)
        for number in range(1, 41)
    ]
    return {
        "depots": depots,
        "vehicles": vehicles,
        "drivers": drivers,
        "trips": trips,
        "repairs": repairs,
        "fuel": fuel,
    }


TOOLS = (
    tool(
        "find_depot",
        "Depots by city.",
        "city text",
        get="SELECT * FROM depots WHERE instr(lower(city), lower(:city)) > 0",
        none="no depot in {city}",
    ),
    tool(
        "list_vehicles",
        "Vehicles at a depot.",
        "depot text: Code; kind text? {van|truck|car}",
        get="SELECT plate, kind, state, load_kg, km - serviced_at_km AS km_since_service, inspected_on FROM vehicles WHERE depot = :depot AND kind = coalesce(:kind, kind) ORDER BY plate",
    ),
    tool(
        "get_vehicle",
        "A vehicle by its plate.",
        "plate text",
        get="SELECT *, km - serviced_at_km AS km_since_service FROM vehicles WHERE plate = :plate",
        none="no vehicle {plate}",
    ),
    tool(
        "find_driver",
        "Drivers by name.",
        "name text",
        get="SELECT id AS driver_id, name, licence, licence_until, depot, hours FROM drivers WHERE instr(lower(name), lower(:name)) > 0 ORDER BY id",
        none="no driver is called {name}",
    ),
    tool(
        "list_trips",
        "Planned trips of a driver or of a vehicle.",
        "driver_id int?; plate text?",
        get="SELECT id AS trip_id, plate, driver_id, date, destination, hours FROM trips WHERE state = 'planned' AND driver_id = coalesce(:driver_id, driver_id) AND plate = coalesce(:plate, plate) ORDER BY date, id",
    ),
    tool(
        "plan_trip",
        "Plan a trip.",
        "plate text; driver_id int; date text; destination text; hours int",
        when=(
            ("SELECT 1 FROM vehicles WHERE plate = :plate AND state = 'ready'", "vehicle {plate} is not ready"),
            ("SELECT 1 FROM drivers WHERE id = :driver_id", "no driver {driver_id}"),
            (
                "SELECT 1 WHERE :date >= :today AND :hours > 0",
                "a trip begins today or later and takes at least an hour",
            ),
            (
                "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM trips WHERE date = :date AND state = 'planned' AND (plate = :plate OR driver_id = :driver_id))",
                "vehicle or driver has a trip on {date}",
            ),
        ),
        do=(
            "INSERT INTO trips (plate, driver_id, date, destination, hours, state) VALUES (:plate, :driver_id, :date, :destination, :hours, 'planned')",
        ),
        get="SELECT id AS trip_id FROM trips WHERE id = last_insert_rowid()",
    ),
    tool(
        "cancel_trip",
        "Cancel a planned trip.",
        "trip_id int",
        when=(("SELECT 1 FROM trips WHERE id = :trip_id AND state = 'planned'", "no planned trip {trip_id}"),),
        do=("UPDATE trips SET state = 'cancelled' WHERE id = :trip_id",),
    ),
    tool(
        "give_trip",
        "Give a planned trip to another driver.",
        "trip_id int; driver_id int",
        when=(
            ("SELECT 1 FROM trips WHERE id = :trip_id AND state = 'planned'", "no planned trip {trip_id}"),
            ("SELECT 1 FROM drivers WHERE id = :driver_id", "no driver {driver_id}"),
            (
                "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM trips AS mine JOIN trips AS other ON other.date = mine.date WHERE mine.id = :trip_id AND other.driver_id = :driver_id AND other.state = 'planned')",
                "driver {driver_id} has a trip on that day",
            ),
        ),
        do=("UPDATE trips SET driver_id = :driver_id WHERE id = :trip_id",),
    ),
    tool(
        "open_repair",
        "Send a vehicle to repair.",
        "plate text; kind text {brakes|engine|tyres|body|service}; fault text?",
        when=(
            ("SELECT 1 FROM vehicles WHERE plate = :plate AND state <> 'sold'", "no vehicle {plate}"),
            (
                "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM repairs WHERE plate = :plate AND state = 'open')",
                "vehicle {plate} is in repair already",
            ),
        ),
        do=(
            "INSERT INTO repairs (plate, fault, kind, opened_on, state) VALUES (:plate, coalesce(:fault, 'none'), :kind, :today, 'open')",
            "UPDATE vehicles SET state = 'repair' WHERE plate = :plate",
        ),
        get="SELECT id AS repair_id FROM repairs WHERE id = last_insert_rowid()",
    ),
    tool(
        "list_repairs",
        "Repairs of a vehicle.",
        "plate text",
        get="SELECT * FROM repairs WHERE plate = :plate ORDER BY id",
    ),
    tool(
        "close_repair",
        "A repair is done; the vehicle is ready again.",
        "repair_id int",
        when=(("SELECT 1 FROM repairs WHERE id = :repair_id AND state = 'open'", "no open repair {repair_id}"),),
        do=(
            "UPDATE repairs SET state = 'done' WHERE id = :repair_id",
            "UPDATE vehicles SET state = 'ready', serviced_at_km = CASE (SELECT kind FROM repairs WHERE id = :repair_id) WHEN 'service' THEN km ELSE serviced_at_km END WHERE plate = (SELECT "
            "plate FROM repairs WHERE id = :repair_id)",
        ),
    ),
    tool(
        "move_vehicle",
        "Note that a vehicle stands at another depot.",
        "plate text; depot text: Code",
        when=(
            ("SELECT 1 FROM vehicles WHERE plate = :plate", "no vehicle {plate}"),
            ("SELECT 1 FROM depots WHERE code = :depot", "no depot {depot}"),
        ),
        do=("UPDATE vehicles SET depot = :depot WHERE plate = :plate",),
    ),
    tool(
        "fuel_used",
        "Fuel that a vehicle took, the last first.",
        "plate text",
        get="SELECT date, litres, euros FROM fuel WHERE plate = :plate ORDER BY date DESC",
    ),
)

RULES = (
    "Trucks are driven only with licence C, and nobody drives after their licence has run out.",
    "Nobody drives more than 48 hours a week, the new trip included.",
    "A vehicle that has gone more than 20000 km since its service makes no new trip.",
    "A vehicle is inspected once a year: 365 days after its inspection it makes no new trip.",
)

_FIT = "state = 'ready' AND km - serviced_at_km <= 20000 AND days_between(inspected_on, :today) <= 350"
_TRIP = "SELECT trips.*, name AS who, kind FROM trips JOIN drivers ON drivers.id = driver_id JOIN vehicles ON vehicles.plate = trips.plate WHERE trips.state = 'planned' AND "


def tasks(w: World) -> None:
    for one in w.some(3, "SELECT * FROM vehicles"):
        w.add(
            "read",
            turn(
                f"How far has {one.plate} gone since its last service, and where does it stand?",
                [call("get_vehicle", plate=one.plate)],
                f"{one.km - one.serviced_at_km} km; it stands at {one.depot}.",
                [one.km - one.serviced_at_km, one.depot],
            ),
        )
    for one in w.some(
        3, _TRIP + "(SELECT count(*) FROM trips AS t WHERE t.driver_id = drivers.id AND t.state = 'planned') = 1"
    ):
        w.add(
            "read",
            turn(
                f"{one.who} here. Where do I drive next, on which day, and with which vehicle?",
                [call("find_driver", name=one.who), call("list_trips", driver_id=one.driver_id)],
                f"To {one.destination} on {one.date}, with {one.plate}.",
                [one.destination, one.date, one.plate],
            ),
        )
    free = "SELECT * FROM drivers WHERE licence = 'C' AND licence_until > add_days(:today, 30) AND hours < 36"
    for number, (who, one) in enumerate(
        zip(w.some(3, free), w.some(3, f"SELECT * FROM vehicles WHERE kind <> 'car' AND {_FIT}"), strict=True)
    ):
        date, place, hours = day(TODAY, 12 + number), _PLACES[number], 5 + number
        w.add(
            "multi",
            turn(
                f"{who.name} shall take {one.plate} to {place} on {date}; that is {hours} hours. Plan it if the rules allow it.",
                [
                    call("find_driver", name=who.name),
                    call("get_vehicle", plate=one.plate),
                    call("list_trips", driver_id=who.id),
                    call("plan_trip", plate=one.plate, driver_id=who.id, date=date, destination=place, hours=hours),
                ],
                "It is planned: licence, hours, service and inspection are all in order.",
            ),
            holds=[
                (
                    "it is planned",
                    f"SELECT 1 FROM trips WHERE plate = '{one.plate}' AND driver_id = {who.id} AND date = '{date}' AND destination = '{place}' AND state = 'planned'",
                )
            ],
        )
    for one in w.some(3, _TRIP + "1"):
        w.add(
            "write",
            turn(
                f"The trip of {one.who} to {one.destination} on {one.date} is off.",
                [
                    call("find_driver", name=one.who),
                    call("list_trips", driver_id=one.driver_id),
                    call("cancel_trip", trip_id=one.id),
                ],
                f"Trip {one.id} is cancelled.",
                [one.id],
            ),
            holds=[("it is cancelled", f"SELECT 1 FROM trips WHERE id = {one.id} AND state = 'cancelled'")],
        )
    for one, kind, words in zip(
        w.some(2, "SELECT * FROM vehicles WHERE state = 'ready'"),
        ("brakes", "tyres"),
        ("The brakes squeal", "Two tyres are worn out"),
        strict=True,
    ):
        w.add(
            "write",
            turn(
                f"{words}. Please send the thing to the workshop.",
                [call("get_vehicle", plate=one.plate), call("open_repair", plate=one.plate, kind=kind, fault=words)],
                f"{one.plate} goes to repair. It stands at {one.depot}.",
                [one.depot],
                facts=[(("plate", "vehicle", "which"), f"I mean {one.plate}.")],
            ),
            holds=[
                (
                    "it is in repair",
                    f"SELECT 1 FROM repairs WHERE plate = '{one.plate}' AND kind = '{kind}' AND state = 'open'",
                )
            ],
        )
    for one in w.some(
        2,
        "SELECT repairs.id, repairs.plate, repairs.kind, opened_on, depot FROM repairs JOIN vehicles ON vehicles.plate = repairs.plate WHERE repairs.state = 'open'",
    ):
        w.add(
            "multi",
            turn(
                f"Since when has {one.plate} been in the workshop, and what for?",
                [call("list_repairs", plate=one.plate)],
                f"Since {one.opened_on}: {one.kind}.",
                [one.opened_on, one.kind],
            ),
            turn(
                "It has just come back, all done, and is parked in Graz now.",
                [
                    call("close_repair", repair_id=one.id),
                    call("find_depot", city="Graz"),
                    call("move_vehicle", plate=one.plate, depot="GRA"),
                ],
                "It is ready again and stands in Graz.",
            ),
            holds=[
                ("it is ready", f"SELECT 1 FROM vehicles WHERE plate = '{one.plate}' AND state = 'ready'"),
                ("the repair is done", f"SELECT 1 FROM repairs WHERE id = {one.id} AND state = 'done'"),
            ],
        )
    for one, who in zip(
        w.some(2, _TRIP + "kind <> 'truck' AND trips.hours < 9"),
        w.some(2, free + " AND hours < 30 AND id NOT IN (SELECT driver_id FROM trips WHERE state = 'planned')"),
        strict=True,
    ):
        w.add(
            "multi",
            turn(
                f"{one.who} is ill. Let {who.name} take the trip to {one.destination} on {one.date}, if the hours allow it.",
                [
                    call("find_driver", name=one.who),
                    call("list_trips", driver_id=one.driver_id),
                    call("find_driver", name=who.name),
                    call("give_trip", trip_id=one.id, driver_id=who.id),
                ],
                f"{who.name} has it now: {who.hours} hours so far this week, so there is room.",
                [who.hours],
            ),
            holds=[("the trip is theirs", f"SELECT 1 FROM trips WHERE id = {one.id} AND driver_id = {who.id}")],
        )
    for one, who in zip(
        w.some(2, f"SELECT * FROM vehicles WHERE kind = 'truck' AND {_FIT}"),
        w.some(2, "SELECT * FROM drivers WHERE licence = 'B'"),
        strict=True,
    ):
        w.add(
            "refusal",
            turn(
                f"Let {who.name} take the truck {one.plate} to Brno next Monday, 6 hours.",
                [call("find_driver", name=who.name), call("get_vehicle", plate=one.plate)],
                f"I cannot plan that: {who.name} has licence B, and a truck needs C.",
                [CANNOT, tells("licence B", "B")],
            ),
        )
    for one, who in zip(
        w.some(2, "SELECT * FROM vehicles WHERE state = 'ready' AND km - serviced_at_km > 20000"),
        w.some(2, free),
        strict=True,
    ):
        w.add(
            "refusal",
            turn(
                f"Plan {one.plate} with {who.name} for Udine on {day(TODAY, 15)}, 7 hours.",
                [call("find_driver", name=who.name), call("get_vehicle", plate=one.plate)],
                f"That is not possible: it has gone {one.km - one.serviced_at_km} km since its service.",
                [CANNOT, one.km - one.serviced_at_km],
            ),
        )
    for who in w.some(2, "SELECT * FROM drivers WHERE hours > 44"):
        w.add(
            "refusal",
            turn(
                f"I am {who.name} and would like to drive to Passau today with any car you have, 5 hours.",
                [call("find_driver", name=who.name)],
                f"You have driven {who.hours} hours this week, so I cannot plan 5 more: 48 is the most.",
                [CANNOT, who.hours],
            ),
        )


BLUEPRINT = Blueprint(
    name="fleet",
    title="the vehicle desk of Alpen Logistik",
    description="The vehicles of a transport company: depots, drivers with licences and hours, trips, repairs, fuel.",
    today=TODAY,
    rules=RULES,
    tables=TABLES,
    rows=rows,
    tools=TOOLS,
    tasks=tasks,
)
