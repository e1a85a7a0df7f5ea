"""A regional airline: flights, passengers, bookings, bags, credit."""

from __future__ import annotations

from random import Random

from kit import CANNOT, Blueprint, Rows, World, call, day, people, table, tells, tool, turn

TODAY = "2026-03-09"

TABLES = (
    table("airports", "Where the airline flies.", "code text; city text; country text"),
    table(
        "flights",
        "Scheduled flights.",
        "id int; number text; origin text -> airports.code; destination text -> airports.code; date text; departs text; "
        "seats int; fare int: of an economy seat, in euros; state text {scheduled|delayed|cancelled}",
    ),
    table(
        "passengers",
        "Known passengers.",
        "id int; name text; tier text {standard|silver|gold}; email text; credit int: euros",
    ),
    table(
        "bookings",
        "Seats on flights.",
        "id int; flight_id int -> flights.id; passenger_id int -> passengers.id; cabin text {economy|flex}; price int; "
        "bags int; state text {active|cancelled|flown}; booked_on text",
        generated=True,
    ),
)

_AIRPORTS = (
    "OSL Oslo Norway|BGO Bergen Norway|TRD Trondheim Norway|ARN Stockholm Sweden|GOT Gothenburg Sweden|HEL Helsinki Finland|"
    "TMP Tampere Finland|CPH Copenhagen Denmark|AAL Aalborg Denmark|RIX Riga Latvia|TLL Tallinn Estonia|VNO Vilnius Lithuania|"
    "KEF Reykjavik Iceland|HAM Hamburg Germany|GDN Gdansk Poland|EDI Edinburgh Scotland|DUB Dublin Ireland|AMS Amsterdam "
    "Netherlands|BRU Brussels Belgium|BOD Bordeaux France"
)
_ROUTES = ("OSL HEL", "OSL RIX", "CPH KEF", "ARN GDN", "HEL TLL", "BGO AMS", "HAM EDI", "DUB BOD")


def rows(rng: Random) -> Rows:
    flights = []
    for route in _ROUTES:
        origin, destination = route.split()
        for days in (-1, 3, 4, 6, 9):
            fares = rng.sample(range(60, 240, 7), 2)
            for hour, fare in zip((7, 16), fares, strict=True):
                if days == 9 and hour == 7:
                    continue
                number = len(flights) + 1
                state = "delayed" if days == -1 and hour == 7 else "cancelled" if number % 13 == 0 else "scheduled"
                flights.append(
                    (
                        number,
                        f"NX{200 + number}",
                        origin,
                        destination,
                        day(TODAY, days),
                        f"{hour:02}:{number % 6}0",
                        rng.choice((3, 4, 6)),
                        fare,
                        state,
                    )
                )
    flights = flights[:60]
    passengers = [
        (
            500 + number,
            name,
            ("standard", "silver", "gold")[number // 3 % 3],
            f"{name.split()[0].lower()}@example.org",
            rng.choice((0, 0, 25, 50)),
        )
        for number, name in enumerate(people(rng, 30), 1)
    ]
    bookings = []
    for number, passenger in enumerate(passengers * 2):
        flight = flights[(number * 7) % len(flights)]
        if number >= 55:
            break
        cabin = "flex" if number % 2 else "economy"
        flown = flight[4] < TODAY
        state = "flown" if flown else "cancelled" if number % 17 == 16 else "active"
        bookings.append(
            (
                len(bookings) + 1,
                flight[0],
                passenger[0],
                cabin,
                flight[7] + (60 if cabin == "flex" else 0),
                number % 4,
                state,
                day(min(TODAY, flight[4]), -rng.randint(2, 40)),
            )
        )
    airports = [(line.split()[0], line.split()[1], line.split()[2]) for line in _AIRPORTS.split("|")]
    return {"airports": airports, "flights": flights, "passengers": passengers, "bookings": bookings}


_LEFT = "seats - (SELECT count(*) FROM bookings WHERE flight_id = flights.id AND state = 'active')"
TOOLS = (
    tool(
        "find_airport",
        "Airports by city or country.",
        "text text",
        get="SELECT * FROM airports WHERE instr(lower(city || ' ' || country), lower(:text)) > 0 ORDER BY code",
    ),
    tool(
        "search_flights",
        "Flights between two airports, with the seats that are left.",
        "origin text: Code of the airport; destination text; date text?: YYYY-MM-DD, all dates from today when left out",
        get=f"SELECT id AS flight_id, number, date, departs, fare, state, {_LEFT} AS seats_left FROM flights WHERE origin = "
        ":origin AND destination = :destination AND (date = :date OR (:date IS NULL AND date >= :today)) ORDER BY date, departs",
    ),
    tool(
        "get_flight",
        "A flight by its id.",
        "flight_id int",
        get=f"SELECT *, {_LEFT} AS seats_left FROM flights WHERE id = :flight_id",
        none="no flight {flight_id}",
    ),
    tool(
        "find_passenger",
        "Passengers by name.",
        "name text",
        get="SELECT id AS passenger_id, name, tier FROM passengers WHERE instr(lower(name), lower(:name)) > 0 ORDER BY id",
        none="nobody is called {name}",
    ),
    tool(
        "get_passenger",
        "A passenger's tier, address and credit.",
        "passenger_id int",
        get="SELECT * FROM passengers WHERE id = :passenger_id",
        none="no passenger {passenger_id}",
    ),
    tool(
        "list_bookings",
        "All bookings of a passenger.",
        "passenger_id int",
        get="SELECT bookings.id AS booking_id, number, origin, destination, date, flights.state AS flight_state, cabin, "
        "bookings.state FROM bookings JOIN flights ON flights.id = flight_id WHERE passenger_id = :passenger_id ORDER BY date",
    ),
    tool(
        "get_booking",
        "A booking with its flight, price and bags.",
        "booking_id int",
        get="SELECT bookings.*, number, origin, destination, date, departs, flights.state AS flight_state FROM bookings JOIN "
        "flights ON flights.id = flight_id WHERE bookings.id = :booking_id",
        none="no booking {booking_id}",
    ),
    tool(
        "book",
        "Book a seat; a flex seat costs 60 euros more.",
        "flight_id int; passenger_id int; cabin text {economy|flex}",
        when=(
            (
                "SELECT 1 FROM flights WHERE id = :flight_id AND state <> 'cancelled' AND date >= :today",
                "flight {flight_id} cannot be booked",
            ),
            (f"SELECT 1 FROM flights WHERE id = :flight_id AND {_LEFT} > 0", "flight {flight_id} is full"),
            ("SELECT 1 FROM passengers WHERE id = :passenger_id", "no passenger {passenger_id}"),
        ),
        do=(
            "INSERT INTO bookings (flight_id, passenger_id, cabin, price, bags, state, booked_on) SELECT :flight_id, "
            ":passenger_id, :cabin, fare + CASE :cabin WHEN 'flex' THEN 60 ELSE 0 END, 0, 'active', :today FROM flights WHERE "
            "id = :flight_id",
        ),
        get="SELECT id AS booking_id, price FROM bookings WHERE id = last_insert_rowid()",
    ),
    tool(
        "cancel_booking",
        "Cancel an active booking and refund its price.",
        "booking_id int",
        when=(
            ("SELECT 1 FROM bookings WHERE id = :booking_id AND state = 'active'", "no active booking {booking_id}"),
        ),
        do=("UPDATE bookings SET state = 'cancelled' WHERE id = :booking_id",),
        get="SELECT id AS booking_id, state, price AS refund FROM bookings WHERE id = :booking_id",
    ),
    tool(
        "change_flight",
        "Move an active booking to another flight of the same route.",
        "booking_id int; flight_id int: The new flight",
        when=(
            ("SELECT 1 FROM bookings WHERE id = :booking_id AND state = 'active'", "no active booking {booking_id}"),
            (
                "SELECT 1 FROM bookings JOIN flights AS old ON old.id = flight_id JOIN flights AS new ON new.origin = old.origin "
                "AND new.destination = old.destination WHERE bookings.id = :booking_id AND new.id = :flight_id AND new.state <> "
                "'cancelled'",
                "flight {flight_id} is not of the same route",
            ),
            (f"SELECT 1 FROM flights WHERE id = :flight_id AND {_LEFT} > 0", "flight {flight_id} is full"),
        ),
        do=("UPDATE bookings SET flight_id = :flight_id WHERE id = :booking_id",),
        get="SELECT bookings.id AS booking_id, number, date, departs FROM bookings JOIN flights ON flights.id = flight_id WHERE "
        "bookings.id = :booking_id",
    ),
    tool(
        "set_bags",
        "Say how many bags go with a booking, in all.",
        "booking_id int; bags int",
        when=(
            ("SELECT 1 FROM bookings WHERE id = :booking_id AND state = 'active'", "no active booking {booking_id}"),
            ("SELECT 1 WHERE :bags >= 0", "bags must be 0 or more"),
        ),
        do=("UPDATE bookings SET bags = :bags WHERE id = :booking_id",),
    ),
    tool(
        "give_credit",
        "Add credit to a passenger's account.",
        "passenger_id int; euros int",
        when=(("SELECT 1 FROM passengers WHERE id = :passenger_id AND :euros > 0", "no passenger {passenger_id}"),),
        do=("UPDATE passengers SET credit = credit + :euros WHERE id = :passenger_id",),
        get="SELECT id, credit FROM passengers WHERE id = :passenger_id",
    ),
    tool(
        "set_email",
        "Change a passenger's address.",
        "passenger_id int; email text",
        when=(("SELECT 1 FROM passengers WHERE id = :passenger_id", "no passenger {passenger_id}"),),
        do=("UPDATE passengers SET email = :email WHERE id = :passenger_id",),
    ),
)

RULES = (
    "Economy bookings are not cancelled, unless the airline has cancelled their flight.",
    "Flex bookings may be cancelled or moved to another flight of the same route up to the day before departure.",
    "A booking has at most 3 bags.",
    "For a delayed flight that they have flown, silver and gold passengers get 50 euros of credit once they ask; "
    "standard passengers get none.",
    "When somebody wants the cheapest flight, book the one with the lowest fare that is not cancelled and has a seat.",
)

_BOOKED = (
    "SELECT bookings.id, passenger_id, name, tier, credit, cabin, price, bags, bookings.state, number, flight_id, origin, "
    "destination, date, flights.departs, o.city AS of_city, d.city AS to_city FROM bookings JOIN flights ON flights.id = "
    "flight_id JOIN passengers ON passengers.id = passenger_id JOIN airports AS o ON o.code = origin JOIN airports AS d ON "
    "d.code = destination WHERE "
)
_ONLY = (
    " AND (SELECT count(*) FROM bookings AS b JOIN flights AS f ON f.id = b.flight_id WHERE b.passenger_id = passengers.id AND "
    "f.origin = flights.origin AND f.destination = flights.destination) = 1"
)


def tasks(w: World) -> None:
    for one in w.some(3, _BOOKED + "bookings.state = 'active' AND flights.state = 'scheduled'" + _ONLY):
        w.add(
            "read",
            turn(
                f"I am {one.name}. At what time does my flight to {one.to_city} leave, and on which day?",
                [
                    call("find_passenger", name=one.name),
                    call("list_bookings", passenger_id=one.passenger_id),
                    call("get_booking", booking_id=one.id),
                ],
                f"Flight {one.number} leaves on {one.date} at {one.departs}.",
                [one.date, one.departs],
            ),
        )
    for one in w.some(
        3,
        f"SELECT flights.*, o.city AS of_city, d.city AS to_city, {_LEFT} AS free FROM flights JOIN airports AS "
        "o ON o.code = origin JOIN airports AS d ON d.code = destination WHERE flights.state = 'scheduled' AND "
        "date > :today AND departs >= '16'",
    ):
        w.add(
            "read",
            turn(
                f"How much is the afternoon flight from {one.of_city} to {one.to_city} on {one.date}, and how many seats are left?",
                [
                    call("find_airport", text=one.of_city),
                    call("find_airport", text=one.to_city),
                    call("search_flights", origin=one.origin, destination=one.destination, date=one.date),
                ],
                f"{one.number} costs {one.fare} euros in economy and has {one.free} seats left.",
                [one.fare, one.free],
            ),
        )
    cheap = (
        f"SELECT * FROM (SELECT flights.*, o.city AS of_city, d.city AS to_city, min(fare) AS least FROM flights JOIN airports AS "
        f"o ON o.code = origin JOIN airports AS d ON d.code = destination WHERE flights.state <> 'cancelled' AND date >= :today "
        f"AND {_LEFT} > 0 GROUP BY origin, destination)"
    )
    buyers = w.some(3, "SELECT * FROM passengers WHERE id > 525")
    for one, who in zip(w.some(3, cheap), buyers, strict=True):
        w.add(
            "multi",
            turn(
                f"{who.name} here: book me an economy seat on the cheapest flight from {one.of_city} to {one.to_city}.",
                [
                    call("find_passenger", name=who.name),
                    call("find_airport", text=one.of_city),
                    call("find_airport", text=one.to_city),
                    call("search_flights", origin=one.origin, destination=one.destination),
                    call("book", flight_id=one.id, passenger_id=who.id, cabin="economy"),
                ],
                f"You are on {one.number} on {one.date}, for {one.fare} euros.",
                [one.number, one.date, one.fare],
            ),
            holds=[
                (
                    "they have a seat",
                    f"SELECT 1 FROM bookings WHERE flight_id = {one.id} AND passenger_id = {who.id} AND "
                    "booked_on = '" + TODAY + "'",
                )
            ],
        )
    moves = (
        "SELECT bookings.id, passenger_id, name, d.city AS to_city, old.origin, old.destination, new.id AS new_id, "
        "new.number AS new_number, new.date AS new_date FROM bookings JOIN passengers ON passengers.id = passenger_id "
        "JOIN flights AS old ON old.id = flight_id JOIN airports AS d ON d.code = old.destination JOIN flights AS new ON "
        "new.origin = old.origin AND new.destination = old.destination AND new.id <> old.id WHERE bookings.state = "
        "'active' AND cabin = 'flex' AND old.date > :today AND new.departs < '10' AND new.state <> 'cancelled' AND "
        "new.date > :today AND new.seats > (SELECT count(*) FROM bookings AS b WHERE b.flight_id = new.id AND b.state = "
        "'active') AND (SELECT count(*) FROM bookings AS b JOIN flights AS f ON f.id = b.flight_id WHERE b.passenger_id = "
        "passengers.id AND f.destination = old.destination) = 1 GROUP BY passengers.id"
    )
    for one in w.some(2, moves):
        w.add(
            "multi",
            turn(
                f"Please move my flight to {one.to_city} to the morning flight of {one.new_date}. I am {one.name}.",
                [
                    call("find_passenger", name=one.name),
                    call("list_bookings", passenger_id=one.passenger_id),
                    call("search_flights", origin=one.origin, destination=one.destination, date=one.new_date),
                    call("change_flight", booking_id=one.id, flight_id=one.new_id),
                ],
                f"You now fly with {one.new_number}.",
                [one.new_number],
            ),
            holds=[
                (
                    "the booking is on the new flight",
                    f"SELECT 1 FROM bookings WHERE id = {one.id} AND flight_id = {one.new_id}",
                )
            ],
        )
    for one in w.some(2, _BOOKED + "bookings.state = 'flown' AND flights.state = 'delayed' AND tier <> 'standard'"):
        w.add(
            "multi",
            turn(
                f"My flight to {one.to_city} was badly delayed. What do I get for that? My name is {one.name}.",
                [
                    call("find_passenger", name=one.name),
                    call("list_bookings", passenger_id=one.passenger_id),
                    call("give_credit", passenger_id=one.passenger_id, euros=50),
                ],
                f"I am sorry about that. I have added 50 euros; your credit is now {one.credit + 50} euros.",
                [one.credit + 50],
            ),
            holds=[
                (
                    "the credit is there",
                    f"SELECT 1 FROM passengers WHERE id = {one.passenger_id} AND credit = {one.credit + 50}",
                )
            ],
        )
    for one in w.some(3, _BOOKED + "bookings.state = 'active' AND cabin = 'flex' AND date > :today" + _ONLY):
        w.add(
            "write",
            turn(
                f"I cannot travel to {one.to_city} after all. Cancel that, please. {one.name}",
                [
                    call("find_passenger", name=one.name),
                    call("list_bookings", passenger_id=one.passenger_id),
                    call("cancel_booking", booking_id=one.id),
                ],
                f"It is cancelled, and you get {one.price} euros back.",
                [one.price],
            ),
            holds=[("it is cancelled", f"SELECT 1 FROM bookings WHERE id = {one.id} AND state = 'cancelled'")],
        )
    bags = w.some(2, _BOOKED + "bookings.state = 'active' AND bags < 2 AND date > :today")
    for one, (more, words) in zip(bags, ((1, "one more bag"), (2, "two more bags")), strict=True):
        w.add(
            "write",
            turn(
                f"I would like to take {words} along.",
                [call("get_booking", booking_id=one.id), call("set_bags", booking_id=one.id, bags=one.bags + more)],
                f"That makes {one.bags + more} bags in all, with {one.number}.",
                [tells(one.bags + more, looked_up=False), one.number],
                facts=[
                    (
                        ("booking", "booking number", "reservation", "flight", "name", "who"),
                        f"It is booking {one.id}.",
                    )
                ],
            ),
            holds=[
                ("the bags are noted", f"SELECT 1 FROM bookings WHERE id = {one.id} AND bags = {one.bags + more}")
            ],
        )
    for one in w.some(
        3, _BOOKED + "bookings.state = 'active' AND cabin = 'economy' AND flights.state = 'scheduled'" + _ONLY
    ):
        w.add(
            "refusal",
            turn(
                f"Something came up. Cancel my booking to {one.to_city} and give me my money back! {one.name}",
                [call("find_passenger", name=one.name), call("list_bookings", passenger_id=one.passenger_id)],
                f"I am sorry, I cannot cancel it: your seat on {one.number} is an economy booking.",
                [CANNOT, tells("economy"), one.number],
            ),
        )
    for one in w.some(2, _BOOKED + "bookings.state = 'flown' AND flights.state = 'delayed' AND tier = 'standard'"):
        w.add(
            "refusal",
            turn(
                f"{one.name} speaking. My flight to {one.to_city} was late, I want money for it.",
                [call("find_passenger", name=one.name), call("list_bookings", passenger_id=one.passenger_id)],
                f"I am sorry that {one.number} was late. I cannot give you credit: yours is the standard tier.",
                [CANNOT, tells("standard")],
            ),
        )


BLUEPRINT = Blueprint(
    name="airline",
    title="Nordex Air",
    description="A regional airline: flights between Nordic cities, passengers with tiers and credit, economy and flex bookings.",
    today=TODAY,
    rules=RULES,
    tables=TABLES,
    rows=rows,
    tools=TOOLS,
    tasks=tasks,
)
