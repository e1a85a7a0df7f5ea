"""A box office: venues, events, seat categories, orders, vouchers."""

from __future__ import annotations

from random import Random

from kit import CANNOT, Blueprint, Rows, World, call, day, people, table, tool, turn

TODAY = "2026-08-03"

TABLES = (
    table("venues", "Where events take place.", "id int; name text; city text; step_free text {yes|no}"),
    table(
        "events",
        "Events.",
        "id int; title text; kind text {concert|theatre|sport|comedy}; venue_id int -> venues.id; date text; doors text; least_age int; state text {on|moved|cancelled}",
    ),
    table(
        "blocks",
        "Seats of one price at an event.",
        "id int; event_id int -> events.id; name text {stalls|circle|standing}; price int; left_over int: seats still for sale",
    ),
    table("buyers", "Who buys.", "id int; name text; email text; born int: year"),
    table(
        "orders",
        "Tickets bought.",
        "id int; block_id int -> blocks.id; buyer_id int -> buyers.id; seats int; paid int; bought_on text; state text {valid|refunded|used}; delivery text {mail|post|desk}",
        generated=True,
    ),
    table("vouchers", "Gift vouchers.", "code text; euros int: left; expires text"),
)

_VENUES = (
    "Arena Nord|Kursaal|The Foundry|Opera on the Quay|Riverside Stage|Tramway Hall|Old Exchange|Velodrome|Garden Theatre|Lido Hall|Studio Six|The Granary|Assembly Rooms|Lighthouse Club|"
    "Castle Yard|Harbour Tent|Palais|Ice Hall|Cellar Stage|Observatory"
).split("|")
_TITLES = (
    "Marble Choir|The Late Postman|Rovers against Albion|Laugh Track|Winter Quartet|A Chair for Two|City Sprint|Mild Panic|Brass Parade|The Forgotten Key|Derby Night|Second Helping|Velvet Static|"
    "Ghost Light|Cup Final|Open Wound, Open Mic|Strings at Noon|The Salt Merchant|Long Jump Gala|Nobody's Uncle|Electric Harvest|Three Umbrellas|Masters on Ice|Plain Speaking"
).split("|")
_CITIES = ("Leeds", "Cork", "Ghent", "Basel", "Turku")


def rows(rng: Random) -> Rows:
    venues = [
        (number, name, _CITIES[number % 5], "no" if number % 4 == 0 else "yes")
        for number, name in enumerate(_VENUES, 1)
    ]
    kinds = ("concert", "theatre", "sport", "comedy")
    events = [
        (
            number,
            title,
            kinds[(number - 1) % 4],
            venues[number % 20][0],
            day(TODAY, -4 if number % 8 == 5 else 1 if number % 8 == 2 else rng.randint(12, 90)),
            f"{18 + number % 3}:{number % 2 * 3}0",
            18 if number % 4 == 0 else 0,
            "cancelled" if number % 8 == 7 else "moved" if number % 8 == 3 else "on",
        )
        for number, title in enumerate(_TITLES, 1)
    ]
    blocks = []
    for event in events:
        base = rng.randint(18, 60)
        for name, more in (("stalls", 20), ("circle", 8)) if event[0] % 2 else (("standing", 0), ("circle", 12)):
            blocks.append(
                (len(blocks) + 1, event[0], name, base + more, 0 if len(blocks) % 9 == 4 else rng.randint(4, 60))
            )
    buyers = [
        (
            80 + number,
            name,
            f"{name.split()[0].lower()}.{name.split()[1].lower()}@example.org",
            2010 if number % 6 == 0 else rng.randint(1950, 2004),
        )
        for number, name in enumerate(people(rng, 36), 1)
    ]
    orders = []
    for number in range(42):
        block, buyer, seats = blocks[(number * 5) % 48], buyers[number % 36], 1 + number % 4
        state = "used" if events[block[1] - 1][4] < TODAY else "valid"
        orders.append(
            (
                number + 1,
                block[0],
                buyer[0],
                seats,
                seats * block[3],
                day(TODAY, -6 - rng.randint(1, 50)),
                state,
                ("mail", "post", "desk")[number % 3],
            )
        )
    vouchers = [
        (
            f"GIFT-{400 + number * 13}",
            rng.choice((20, 50, 100)),
            day(TODAY, -30 if number % 5 == 0 else rng.randint(20, 400)),
        )
        for number in range(20)
    ]
    return {
        "venues": venues,
        "events": events,
        "blocks": blocks,
        "buyers": buyers,
        "orders": orders,
        "vouchers": vouchers,
    }


TOOLS = (
    tool(
        "search_events",
        "Events by a word in the title, by kind or by city, from today on.",
        "text text?; kind text? {concert|theatre|sport|comedy}; city text?",
        get="SELECT events.id AS event_id, title, kind, venues.name AS venue, city, date, state FROM events JOIN venues ON venues.id = venue_id WHERE date >= :today AND instr(lower(title), "
        "lower(coalesce(:text, title))) > 0 AND kind = coalesce(:kind, kind) AND city = coalesce(:city, city) ORDER BY date, events.id",
    ),
    tool(
        "get_event",
        "An event with its venue.",
        "event_id int",
        get="SELECT events.*, venues.name AS venue, city, step_free FROM events JOIN venues ON venues.id = venue_id WHERE events.id = :event_id",
        none="no event {event_id}",
    ),
    tool(
        "list_blocks",
        "Seats of an event: prices and how many are left.",
        "event_id int",
        get="SELECT id AS block_id, name, price, left_over FROM blocks WHERE event_id = :event_id ORDER BY price",
        none="no event {event_id}",
    ),
    tool(
        "find_buyer",
        "Buyers by name or address of mail.",
        "text text",
        get="SELECT id AS buyer_id, name, email, born FROM buyers WHERE instr(lower(name || ' ' || email), lower(:text)) > 0 ORDER BY id",
        none="no buyer {text}",
    ),
    tool(
        "list_orders",
        "A buyer's orders.",
        "buyer_id int",
        get="SELECT orders.id AS order_id, title, date, blocks.name AS block, seats, paid, orders.state, delivery, events.state AS event_state FROM orders JOIN blocks ON blocks.id = block_id JOIN events ON events.id = "
        "event_id WHERE buyer_id = :buyer_id ORDER BY date",
    ),
    tool(
        "get_order",
        "An order.",
        "order_id int",
        get="SELECT * FROM orders WHERE id = :order_id",
        none="no order {order_id}",
    ),
    tool(
        "sell",
        "Sell seats of a block.",
        "block_id int; buyer_id int; seats int; delivery text {mail|post|desk}",
        when=(
            (
                "SELECT 1 FROM blocks JOIN events ON events.id = event_id WHERE blocks.id = :block_id AND state <> 'cancelled' AND date >= :today",
                "block {block_id} is not for sale",
            ),
            (
                "SELECT 1 FROM blocks WHERE id = :block_id AND left_over >= :seats AND :seats > 0",
                "there are not {seats} seats left in block {block_id}",
            ),
            ("SELECT 1 FROM buyers WHERE id = :buyer_id", "no buyer {buyer_id}"),
        ),
        do=(
            "UPDATE blocks SET left_over = left_over - :seats WHERE id = :block_id",
            "INSERT INTO orders (block_id, buyer_id, seats, paid, bought_on, state, delivery) SELECT :block_id, :buyer_id, :seats, :seats * price, :today, 'valid', :delivery FROM blocks WHERE id = :block_id",
        ),
        get="SELECT id AS order_id, paid FROM orders WHERE id = last_insert_rowid()",
    ),
    tool(
        "refund",
        "Refund a valid order and put its seats back on sale.",
        "order_id int",
        when=(("SELECT 1 FROM orders WHERE id = :order_id AND state = 'valid'", "no valid order {order_id}"),),
        do=(
            "UPDATE blocks SET left_over = left_over + (SELECT seats FROM orders WHERE id = :order_id) WHERE id = (SELECT block_id FROM orders WHERE id = :order_id)",
            "UPDATE orders SET state = 'refunded' WHERE id = :order_id",
        ),
        get="SELECT id AS order_id, paid AS refunded FROM orders WHERE id = :order_id",
    ),
    tool(
        "set_delivery",
        "Change how the tickets of a valid order are delivered.",
        "order_id int; delivery text {mail|post|desk}",
        when=(("SELECT 1 FROM orders WHERE id = :order_id AND state = 'valid'", "no valid order {order_id}"),),
        do=("UPDATE orders SET delivery = :delivery WHERE id = :order_id",),
    ),
    tool(
        "give_to",
        "Put a valid order in another buyer's name.",
        "order_id int; buyer_id int",
        when=(
            ("SELECT 1 FROM orders WHERE id = :order_id AND state = 'valid'", "no valid order {order_id}"),
            ("SELECT 1 FROM buyers WHERE id = :buyer_id", "no buyer {buyer_id}"),
        ),
        do=("UPDATE orders SET buyer_id = :buyer_id WHERE id = :order_id",),
    ),
    tool(
        "get_voucher",
        "What is left on a voucher.",
        "code text",
        get="SELECT * FROM vouchers WHERE code = :code",
        none="no voucher {code}",
    ),
    tool(
        "spend_voucher",
        "Take an amount off a voucher.",
        "code text; euros int",
        when=(
            (
                "SELECT 1 FROM vouchers WHERE code = :code AND euros >= :euros AND :euros > 0",
                "there are not {euros} euros on {code}",
            ),
        ),
        do=("UPDATE vouchers SET euros = euros - :euros WHERE code = :code",),
        get="SELECT code, euros FROM vouchers WHERE code = :code",
    ),
)

RULES = (
    "Tickets are refunded only when the event was cancelled or moved.",
    "Nobody below an event's least age buys tickets for it; the year of birth decides.",
    "A buyer gets at most 4 seats for one event.",
    "Vouchers that have expired are not spent.",
    "Tickets go by mail unless the buyer asks for something else.",
)

_ORDER = (
    "SELECT orders.*, title, kind, date, doors, events.state AS event_state, buyers.name AS who, venues.name AS venue FROM orders JOIN blocks ON blocks.id = block_id JOIN events ON events.id = event_id JOIN venues ON "
    "venues.id = venue_id JOIN buyers ON buyers.id = buyer_id WHERE (SELECT count(*) FROM orders AS o WHERE o.buyer_id = buyers.id) = 1 AND "
)
_BLOCK = "SELECT blocks.*, title, kind, date, doors, least_age, venues.name AS venue FROM blocks JOIN events ON events.id = event_id JOIN venues ON venues.id = venue_id WHERE date > :today AND state = 'on' AND "


def tasks(w: World) -> None:
    for one in w.some(3, _BLOCK + "left_over > 0 GROUP BY event_id"):
        w.add(
            "read",
            turn(
                f"Where and when is {one.title}?",
                [call("search_events", text=one.title)],
                f"At {one.venue}, on {one.date}.",
                [one.venue, one.date],
            ),
        )
    for one in w.some(3, _ORDER + "orders.state = 'valid'"):
        w.add(
            "read",
            turn(
                f"What did I pay for my tickets, and for which event were they? {one.who}",
                [call("find_buyer", text=one.who), call("list_orders", buyer_id=one.buyer_id)],
                f"{one.paid} euros, for {one.title}.",
                [one.paid, one.title],
            ),
        )
    for one, who, seats in zip(
        w.some(3, _BLOCK + "left_over > 3 AND least_age = 0 GROUP BY event_id"),
        w.some(3, "SELECT * FROM buyers WHERE born < 2000 AND id > 100"),
        (2, 3, 4),
        strict=True,
    ):
        held = f"SELECT 1 FROM orders JOIN blocks ON blocks.id = block_id WHERE buyer_id = {who.id} AND event_id = {one.event_id}"
        assert not w.every(held), "a buyer who has seats there already may get fewer; take another seed"
        w.add(
            "multi",
            turn(
                f"{seats} seats for {one.title} in the {one.name}, please. I am {who.name}.".replace(
                    "the standing", "the standing area"
                ),
                [
                    call("find_buyer", text=who.name),
                    call("search_events", text=one.title),
                    call("list_blocks", event_id=one.event_id),
                    call("sell", block_id=one.id, buyer_id=who.id, seats=seats, delivery="mail"),
                ],
                f"They are yours, for {seats * one.price} euros.",
                [seats * one.price],
            ),
            holds=[
                (
                    "the seats are theirs",
                    f"SELECT 1 FROM orders WHERE block_id = {one.id} AND buyer_id = {who.id} AND seats = {seats} AND bought_on = '{TODAY}'",
                )
            ],
        )
    for one in w.some(3, _ORDER + "orders.state = 'valid' AND events.state IN ('cancelled', 'moved')"):
        w.add(
            "multi",
            turn(
                f"I heard that something happened to {one.title}. I would like my money back, if I may. {one.who}",
                [
                    call("find_buyer", text=one.who),
                    call("list_orders", buyer_id=one.buyer_id),
                    call("refund", order_id=one.id),
                ],
                f"It was {one.event_state}, so I have refunded {one.paid} euros.",
                [one.paid, one.event_state],
            ),
            holds=[("it is refunded", f"SELECT 1 FROM orders WHERE id = {one.id} AND state = 'refunded'")],
        )
    for one in w.some(2, _ORDER + "orders.state = 'valid' AND delivery <> 'desk' AND events.state = 'on'"):
        w.add(
            "write",
            turn(
                f"I want to collect my tickets for {one.title} at the desk. {one.who}",
                [
                    call("find_buyer", text=one.who),
                    call("list_orders", buyer_id=one.buyer_id),
                    call("set_delivery", order_id=one.id, delivery="desk"),
                ],
                f"Your {one.seats} tickets will be at the desk.",
                [one.seats] if one.seats > 1 else [],
            ),
            holds=[("they wait at the desk", f"SELECT 1 FROM orders WHERE id = {one.id} AND delivery = 'desk'")],
        )
    for one, who in zip(
        w.some(2, _ORDER + "orders.state = 'valid' AND events.state = 'on' AND least_age = 0"),
        w.some(2, "SELECT * FROM buyers WHERE id < 100"),
        strict=True,
    ):
        w.add(
            "write",
            turn(
                f"I cannot make it to {one.title}. Could you put my tickets in somebody else's name?",
                [
                    call("find_buyer", text=one.who),
                    call("list_orders", buyer_id=one.buyer_id),
                    call("find_buyer", text=who.email),
                    call("give_to", order_id=one.id, buyer_id=who.id),
                ],
                f"Order {one.id} is now theirs.",
                [one.id],
                facts=[
                    (
                        (
                            "your name",
                            "your full name",
                            "who are you",
                            "your email",
                            "your account",
                            "order",
                            "order number",
                        ),
                        f"I am {one.who}.",
                    ),
                    (
                        ("whose name", "new name", "person", "recipient", "holder", "whom", "transfer"),
                        f"In the name of {who.name}, whose address is {who.email}.",
                    ),
                ],
            ),
            holds=[("the order is theirs", f"SELECT 1 FROM orders WHERE id = {one.id} AND buyer_id = {who.id}")],
        )
    for one in w.some(2, "SELECT * FROM vouchers WHERE expires > :today AND euros >= 50"):
        w.add(
            "write",
            turn(
                f"My voucher has the code {one.code}. Take 20 euros off it and tell me what is left.",
                [call("get_voucher", code=one.code), call("spend_voucher", code=one.code, euros=20)],
                f"There are {one.euros - 20} euros left.",
                [one.euros - 20],
            ),
            holds=[("it is spent", f"SELECT 1 FROM vouchers WHERE code = '{one.code}' AND euros = {one.euros - 20}")],
        )
    for one in w.some(2, _ORDER + "orders.state = 'valid' AND events.state = 'on'"):
        w.add(
            "refusal",
            turn(
                f"I have no time for {one.title} any more. Refund my tickets. {one.who}",
                [call("find_buyer", text=one.who), call("list_orders", buyer_id=one.buyer_id)],
                f"I am sorry, I cannot refund the {one.paid} euros: the event takes place as planned.",
                [CANNOT, one.paid],
            ),
        )
    for one, who in zip(
        w.some(2, _BLOCK + "left_over > 1 AND least_age = 18 GROUP BY event_id"),
        w.some(2, "SELECT * FROM buyers WHERE born = 2010"),
        strict=True,
    ):
        w.add(
            "refusal",
            turn(
                f"{who.name} here, one ticket for {one.title}, please, wherever there is a seat.",
                [
                    call("find_buyer", text=who.name),
                    call("search_events", text=one.title),
                    call("get_event", event_id=one.event_id),
                ],
                f"I cannot sell it to you: it is for people of 18 and more, and you were born in {who.born}.",
                [CANNOT, 18, who.born],
            ),
        )
    for one in w.some(2, "SELECT * FROM vouchers WHERE expires < :today"):
        w.add(
            "refusal",
            turn(
                f"Please take 20 euros off the voucher {one.code}.",
                [call("get_voucher", code=one.code)],
                f"That is not possible, it expired on {one.expires}.",
                [CANNOT, one.expires],
            ),
        )


BLUEPRINT = Blueprint(
    name="tickets",
    title="the Curtain box office",
    description="A box office: venues, events with blocks of seats, buyers, orders that can be refunded or given on, vouchers.",
    today=TODAY,
    rules=RULES,
    tables=TABLES,
    rows=rows,
    tools=TOOLS,
    tasks=tasks,
)
