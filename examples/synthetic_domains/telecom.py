"""A telephone company: plans, customers, lines, usage, invoices, tickets."""

from __future__ import annotations

from random import Random

from kit import CANNOT, Blueprint, Rows, World, call, day, people, table, tells, tool, turn

TODAY = "2026-11-18"

TABLES = (
    table(
        "plans",
        "What can be bought.",
        "code text; name text; price int: a month; data_gb int; roaming text {yes|no}; sold text {yes|no}",
    ),
    table("customers", "Who buys.", "id int; name text; since text; balance int: owed, in euros"),
    table(
        "lines",
        "Telephone lines.",
        "number text; customer_id int -> customers.id; plan text -> plans.code; state text {active|suspended|ended}; roaming text {on|off}; bound_until text; used_gb int: this month",
    ),
    table(
        "invoices",
        "Monthly invoices.",
        "id int; customer_id int -> customers.id; month text; amount int; state text {open|paid|disputed}",
    ),
    table(
        "tickets",
        "Faults reported.",
        "id int; line text -> lines.number; kind text {no_signal|slow_data|billing|other}; opened_on text; note text? ~; state text {open|closed}",
        generated=True,
    ),
    table(
        "packs",
        "Data packs bought for a line.",
        "id int; line text -> lines.number; gb int; price int; bought_on text",
        generated=True,
    ),
)


def rows(rng: Random) -> Rows:
    plans = []
    for number in range(20):
        size = (2, 5, 10, 20, 40)[number % 5]
        family = ("Basic", "Flex", "Pro", "Classic")[number // 5]
        plans.append(
            (
                f"{family[0].lower()}{size}",
                f"{family} {size}",
                6 + size // 2 + 3 * (number // 5),
                size,
                "no" if family == "Basic" else "yes",
                "no" if family == "Classic" else "yes",
            )
        )
    plans = [(f"x{code}" if name.startswith("Classic") else code, name, *rest) for code, name, *rest in plans]
    customers = [
        (2000 + number, name, day(TODAY, -rng.randint(100, 3000)), rng.choice((45, 80)) if number % 5 == 0 else 0)
        for number, name in enumerate(people(rng, 30), 1)
    ]
    lines = []
    for number in range(40):
        customer, plan = customers[number % 30], plans[(number * 3) % 20]
        state = "suspended" if customer[3] and number < 30 else "active"
        bound = day(TODAY, (-90, 120, 200, -10)[number % 4])
        lines.append(
            (
                f"0660-{4100 + number * 37}",
                customer[0],
                plan[0],
                state,
                "off" if number % 3 else "on" if plan[4] == "yes" else "off",
                bound,
                rng.randint(0, plan[3]),
            )
        )
    invoices = []
    for number in range(50):
        customer = customers[number % 30]
        month = ("2026-10", "2026-09")[number // 30]
        state = "open" if customer[3] and month == "2026-10" else "paid"
        invoices.append((8000 + number, customer[0], month, customer[3] or rng.randint(9, 60), state))
    tickets = [
        (
            number,
            lines[(number * 2) % 40][0],
            ("no_signal", "slow_data", "billing", "other")[number % 4],
            day(TODAY, -number),
            None,
            "open" if number % 3 == 0 else "closed",
        )
        for number in range(1, 21)
    ]
    packs = [
        (number, lines[(number * 3) % 40][0], gb := (1, 5)[number % 2], gb * 3, day(TODAY, -rng.randint(1, 60)))
        for number in range(1, 21)
    ]
    return {
        "plans": plans,
        "customers": customers,
        "lines": lines,
        "invoices": invoices,
        "tickets": tickets,
        "packs": packs,
    }


TOOLS = (
    tool(
        "list_plans",
        "Plans that are sold.",
        "least_gb int?: At least so much data",
        get="SELECT code, name, price, data_gb, roaming FROM plans WHERE sold = 'yes' AND data_gb >= coalesce(:least_gb, 0) ORDER BY price, code",
    ),
    tool(
        "get_plan",
        "A plan, those that are no longer sold too.",
        "code text",
        get="SELECT * FROM plans WHERE code = :code",
        none="no plan {code}",
    ),
    tool(
        "find_customer",
        "Customers by name.",
        "name text",
        get="SELECT id AS customer_id, name, balance FROM customers WHERE instr(lower(name), lower(:name)) > 0 ORDER BY id",
        none="nobody is called {name}",
    ),
    tool(
        "list_lines",
        "A customer's lines.",
        "customer_id int",
        get="SELECT number, plan, state, roaming, bound_until FROM lines WHERE customer_id = :customer_id ORDER BY number",
    ),
    tool(
        "get_line",
        "A line with its plan and the data used this month.",
        "number text",
        get="SELECT lines.*, plans.name AS plan_name, data_gb, plans.price FROM lines JOIN plans ON code = plan WHERE number = :number",
        none="no line {number}",
    ),
    tool(
        "change_plan",
        "Move a line to another plan.",
        "number text; plan text: Code of the plan",
        when=(
            ("SELECT 1 FROM lines WHERE number = :number AND state = 'active'", "no active line {number}"),
            ("SELECT 1 FROM plans WHERE code = :plan", "no plan {plan}"),
        ),
        do=("UPDATE lines SET plan = :plan WHERE number = :number",),
        get="SELECT number, plan FROM lines WHERE number = :number",
    ),
    tool(
        "set_roaming",
        "Switch roaming of a line on or off.",
        "number text; roaming text {on|off}",
        when=(
            ("SELECT 1 FROM lines WHERE number = :number AND state = 'active'", "no active line {number}"),
            (
                "SELECT 1 FROM lines JOIN plans ON code = plan WHERE number = :number AND (:roaming = 'off' OR plans.roaming = 'yes')",
                "the plan of {number} has no roaming",
            ),
        ),
        do=("UPDATE lines SET roaming = :roaming WHERE number = :number",),
    ),
    tool(
        "end_line",
        "End a line today.",
        "number text",
        when=(("SELECT 1 FROM lines WHERE number = :number AND state <> 'ended'", "no line {number} to end"),),
        do=("UPDATE lines SET state = 'ended', roaming = 'off' WHERE number = :number",),
    ),
    tool(
        "resume_line",
        "Make a suspended line active again.",
        "number text",
        when=(
            ("SELECT 1 FROM lines WHERE number = :number AND state = 'suspended'", "line {number} is not suspended"),
        ),
        do=("UPDATE lines SET state = 'active' WHERE number = :number",),
    ),
    tool(
        "buy_pack",
        "Buy a data pack for a line: 1 or 5 GB at 3 euros each GB.",
        "number text; gb int",
        when=(
            ("SELECT 1 FROM lines WHERE number = :number AND state = 'active'", "no active line {number}"),
            ("SELECT 1 WHERE :gb IN (1, 5)", "packs have 1 or 5 GB"),
        ),
        do=("INSERT INTO packs (line, gb, price, bought_on) VALUES (:number, :gb, :gb * 3, :today)",),
        get="SELECT id AS pack_id, price FROM packs WHERE id = last_insert_rowid()",
    ),
    tool(
        "list_invoices",
        "A customer's invoices.",
        "customer_id int",
        get="SELECT id AS invoice_id, month, amount, state FROM invoices WHERE customer_id = :customer_id ORDER BY month DESC",
    ),
    tool(
        "pay_invoice",
        "Note that an open invoice has been paid; the balance goes down with it.",
        "invoice_id int",
        when=(("SELECT 1 FROM invoices WHERE id = :invoice_id AND state = 'open'", "no open invoice {invoice_id}"),),
        do=(
            "UPDATE customers SET balance = balance - (SELECT amount FROM invoices WHERE id = :invoice_id) WHERE id = (SELECT customer_id FROM invoices WHERE id = :invoice_id)",
            "UPDATE invoices SET state = 'paid' WHERE id = :invoice_id",
        ),
        get="SELECT customers.id, balance FROM customers JOIN invoices ON customer_id = customers.id WHERE invoices.id = :invoice_id",
    ),
    tool(
        "list_tickets",
        "Faults of a line.",
        "number text",
        get="SELECT id AS ticket_id, kind, opened_on, state FROM tickets WHERE line = :number ORDER BY id",
    ),
    tool(
        "open_ticket",
        "Report a fault of a line.",
        "number text; kind text {no_signal|slow_data|billing|other}; note text?",
        when=(("SELECT 1 FROM lines WHERE number = :number", "no line {number}"),),
        do=(
            "INSERT INTO tickets (line, kind, opened_on, note, state) VALUES (:number, :kind, :today, coalesce(:note, 'none'), 'open')",
        ),
        get="SELECT id AS ticket_id FROM tickets WHERE id = last_insert_rowid()",
    ),
)

RULES = (
    "A line that is bound until a later date is neither ended nor moved to a cheaper plan before that date.",
    "Only plans that are sold may be chosen.",
    "A suspended line is resumed only after its customer owes nothing.",
    "Roaming is switched only for lines whose plan has it.",
    "Open no second ticket of a kind for a line while one of that kind is open.",
)

_LINE = (
    "SELECT lines.*, customers.name AS who, balance, plans.name AS plan_name, plans.price, data_gb, plans.roaming AS may_roam FROM lines JOIN customers ON customers.id = customer_id JOIN "
    "plans ON code = plan WHERE (SELECT count(*) FROM lines AS l WHERE l.customer_id = customers.id) = 1 AND "
)


def tasks(w: World) -> None:
    for one in w.some(3, _LINE + "state = 'active'"):
        w.add(
            "read",
            turn(
                f"Which plan am I on, and how much data have I used this month? {one.who}",
                [
                    call("find_customer", name=one.who),
                    call("list_lines", customer_id=one.customer_id),
                    call("get_line", number=one.number),
                ],
                f"You are on {one.plan_name} and have used {one.used_gb} of {one.data_gb} GB.",
                [one.plan_name, one.used_gb, one.data_gb],
            ),
        )
    for least in (4, 15, 30):
        best = w.every(f"SELECT * FROM plans WHERE sold = 'yes' AND data_gb >= {least} ORDER BY price, code")[0]
        w.add(
            "read",
            turn(
                f"What is your cheapest plan with at least {least} GB, and its price?",
                [call("list_plans", least_gb=least)],
                f"That is {best.name} for {best.price} euros a month.",
                [best.name, best.price],
            ),
        )
    for one in w.some(3, _LINE + "state = 'active' AND data_gb < 40 AND plans.sold = 'yes'"):
        bigger = w.every(
            f"SELECT * FROM plans WHERE sold = 'yes' AND data_gb = 40 AND name LIKE '{one.plan_name.split()[0]}%'"
        )[0]
        w.add(
            "multi",
            turn(
                f"I need more data: put me on {bigger.name}, please. My name is {one.who}.",
                [
                    call("find_customer", name=one.who),
                    call("list_lines", customer_id=one.customer_id),
                    call("list_plans", least_gb=40),
                    call("change_plan", number=one.number, plan=bigger.code),
                ],
                f"Your line {one.number} is on it now, for {bigger.price} euros a month.",
                [one.number, bigger.price],
            ),
            holds=[
                ("the line is on it", f"SELECT 1 FROM lines WHERE number = '{one.number}' AND plan = '{bigger.code}'")
            ],
        )
    for one in w.some(2, _LINE + "state = 'active' AND lines.roaming = 'off' AND plans.roaming = 'yes'"):
        w.add(
            "write",
            turn(
                f"I travel to Spain tomorrow. Make my telephone work there. {one.who}",
                [
                    call("find_customer", name=one.who),
                    call("list_lines", customer_id=one.customer_id),
                    call("get_line", number=one.number),
                    call("set_roaming", number=one.number, roaming="on"),
                ],
                f"Roaming is on for {one.number}.",
                [one.number],
            ),
            holds=[("roaming is on", f"SELECT 1 FROM lines WHERE number = '{one.number}' AND roaming = 'on'")],
        )
    for one, size in zip(w.some(2, _LINE + "state = 'active'"), (1, 5), strict=True):
        w.add(
            "write",
            turn(
                f"My data is used up. I would like a pack of {size} GB.",
                [call("buy_pack", number=one.number, gb=size)],
                f"It is bought, for {size * 3} euros.",
                [size * 3],
                facts=[(("number", "line", "name"), f"My number is {one.number}.")],
            ),
            holds=[
                (
                    "it is bought",
                    f"SELECT 1 FROM packs WHERE line = '{one.number}' AND gb = {size} AND bought_on = '{TODAY}'",
                )
            ],
        )
    for one in w.some(3, _LINE + "state = 'suspended'"):
        bill = w.one(f"SELECT * FROM invoices WHERE customer_id = {one.customer_id} AND state = 'open'")
        w.add(
            "multi",
            turn(
                f"{one.who} here. Why does my telephone not work?",
                [
                    call("find_customer", name=one.who),
                    call("list_lines", customer_id=one.customer_id),
                    call("list_invoices", customer_id=one.customer_id),
                ],
                f"Your line is suspended, because {bill.amount} euros are open for {bill.month}.",
                [tells("suspended"), bill.amount],
            ),
            turn(
                "I have just paid that at the post office, here is the receipt. Please make it work again.",
                [call("pay_invoice", invoice_id=bill.id), call("resume_line", number=one.number)],
                "Thank you. Your line is active again.",
                [tells("active", looked_up=False)],
            ),
            holds=[
                ("the line is active", f"SELECT 1 FROM lines WHERE number = '{one.number}' AND state = 'active'"),
                ("nothing is owed", f"SELECT 1 FROM customers WHERE id = {one.customer_id} AND balance = 0"),
            ],
        )
    for one in w.some(
        2,
        _LINE
        + "state = 'active' AND NOT EXISTS (SELECT 1 FROM tickets WHERE line = lines.number AND tickets.kind = 'no_signal' AND tickets.state = 'open')",
    ):
        w.add(
            "multi",
            turn(
                f"I have had no signal since this morning, please look into it. I am {one.who}.",
                [
                    call("find_customer", name=one.who),
                    call("list_lines", customer_id=one.customer_id),
                    call("list_tickets", number=one.number),
                    call("open_ticket", number=one.number, kind="no_signal", note="since this morning"),
                ],
                f"I have reported it for {one.number}.",
                [one.number],
            ),
            holds=[
                (
                    "it is reported",
                    f"SELECT 1 FROM tickets WHERE line = '{one.number}' AND kind = 'no_signal' AND opened_on = '{TODAY}'",
                )
            ],
        )
    for one in w.some(2, _LINE + "state = 'active' AND bound_until > :today"):
        w.add(
            "refusal",
            turn(
                f"I want to end my contract today. {one.who}",
                [call("find_customer", name=one.who), call("list_lines", customer_id=one.customer_id)],
                f"I am sorry, that is not possible yet: your line is bound until {one.bound_until}.",
                [CANNOT, one.bound_until],
            ),
        )
    for one in w.some(2, _LINE + "state = 'suspended'"):
        w.add(
            "refusal",
            turn(
                f"Switch my line on again, I will pay some day. My name: {one.who}.",
                [call("find_customer", name=one.who), call("list_lines", customer_id=one.customer_id)],
                f"I cannot resume it while {one.balance} euros are owed.",
                [CANNOT, one.balance],
            ),
        )
    for one in w.some(2, _LINE + "state = 'active' AND plans.roaming = 'no' AND lines.roaming = 'off'"):
        w.add(
            "refusal",
            turn(
                f"Turn roaming on for me, I fly out tonight. {one.who}",
                [
                    call("find_customer", name=one.who),
                    call("list_lines", customer_id=one.customer_id),
                    call("get_plan", code=one.plan),
                ],
                f"I cannot switch it on: {one.plan_name} has no roaming.",
                [CANNOT, one.plan_name],
            ),
        )


BLUEPRINT = Blueprint(
    name="telecom",
    title="Tern Mobile",
    description="A telephone company: plans, lines bound by contract, data packs, roaming, invoices, faults.",
    today=TODAY,
    rules=RULES,
    tables=TABLES,
    rows=rows,
    tools=TOOLS,
    tasks=tasks,
)
