"""A payroll office: employees, leave, expenses, payslips, bank accounts."""

from __future__ import annotations

from random import Random

from kit import CANNOT, Blueprint, Rows, World, call, day, people, table, tool, turn

TODAY = "2026-06-15"

TABLES = (
    table("teams", "Teams.", "code text; name text; budget int: left for expenses this year, in euros"),
    table(
        "employees",
        "Who is employed.",
        "id int; name text; team text -> teams.code; started text; salary int: a month; leave_left int: days; iban text; manager text {yes|no}",
    ),
    table(
        "leave",
        "Days off.",
        "id int; employee_id int -> employees.id; first text; last text; days int; kind text {holiday|sick|parental}; state text {asked|granted|refused|cancelled}",
        generated=True,
    ),
    table(
        "expenses",
        "What employees have laid out.",
        "id int; employee_id int -> employees.id; amount int; spent_on text; kind text {travel|meal|equipment|course}; receipt text {yes|no}; state text {open|approved|refused|paid}",
        generated=True,
    ),
    table(
        "payslips", "Payslips.", "id int; employee_id int -> employees.id; month text; gross int; tax int; net int"
    ),
)

_TEAMS = (
    "Sales Support Design Research Finance Legal Logistics Kitchen Security Marketing Quality Training Purchasing Press Events Archive Maintenance Hosting Mobile Web"
).split()


def rows(rng: Random) -> Rows:
    teams = [(name[:3].lower(), name, rng.randint(2, 30) * 100) for name in _TEAMS]
    employees = [
        (
            3000 + number,
            name,
            teams[number % 20][0],
            day(TODAY, -(60 if number % 7 == 3 else rng.randint(200, 4000))),
            rng.randint(22, 60) * 100,
            (0, 4, 9, 14, 22)[number % 5],
            f"AT{rng.randint(10, 99)} {rng.randint(1000, 9999)} {rng.randint(1000, 9999)}",
            "yes" if number <= 20 else "no",
        )
        for number, name in enumerate(people(rng, 44), 1)
    ]
    leave = []
    for number in range(26):
        start = 20 + number if number % 2 else -60 + number
        leave.append(
            (
                number + 1,
                employees[(number * 3) % 44][0],
                day(TODAY, start),
                day(TODAY, start + 2),
                3,
                "sick" if number % 5 == 4 else "holiday",
                "asked" if number % 4 == 1 else "granted",
            )
        )
    expenses = [
        (
            number + 1,
            employees[(number * 5) % 44][0],
            700 + number if number % 6 == 5 else rng.randint(12, 240),
            day(TODAY, -(120 if number % 8 == 2 else rng.randint(3, 70))),
            ("travel", "meal", "equipment", "course")[number % 4],
            "no" if number % 7 == 3 else "yes",
            "open" if number % 3 else "paid",
        )
        for number in range(40)
    ]
    payslips = []
    for number in range(50):
        employee = employees[number % 44]
        tax = employee[4] * (18 + number % 12) // 100
        payslips.append(
            (5000 + number, employee[0], "2026-05" if number < 44 else "2026-04", employee[4], tax, employee[4] - tax)
        )
    return {"teams": teams, "employees": employees, "leave": leave, "expenses": expenses, "payslips": payslips}


TOOLS = (
    tool(
        "find_employee",
        "Employees by name.",
        "name text",
        get="SELECT id AS employee_id, name, team, manager FROM employees WHERE instr(lower(name), lower(:name)) > 0 ORDER BY id",
        none="nobody is called {name}",
    ),
    tool(
        "get_employee",
        "An employee's contract, leave and account.",
        "employee_id int",
        get="SELECT * FROM employees WHERE id = :employee_id",
        none="no employee {employee_id}",
    ),
    tool(
        "get_team",
        "A team and its budget.",
        "code text",
        get="SELECT * FROM teams WHERE code = :code",
        none="no team {code}",
    ),
    tool(
        "get_payslip",
        "A payslip.",
        "employee_id int; month text: YYYY-MM",
        get="SELECT * FROM payslips WHERE employee_id = :employee_id AND month = :month",
        none="no payslip of {month}",
    ),
    tool(
        "list_leave",
        "An employee's days off.",
        "employee_id int",
        get="SELECT id AS leave_id, first, last, days, kind, state FROM leave WHERE employee_id = :employee_id ORDER BY first",
    ),
    tool(
        "ask_leave",
        "Enter days off that an employee asks for.",
        "employee_id int; first text; last text; days int: Working days; kind text {holiday|sick|parental}",
        when=(
            ("SELECT 1 FROM employees WHERE id = :employee_id", "no employee {employee_id}"),
            ("SELECT 1 WHERE :first <= :last AND :days > 0", "the dates do not fit"),
        ),
        do=(
            "INSERT INTO leave (employee_id, first, last, days, kind, state) VALUES (:employee_id, :first, :last, :days, :kind, 'asked')",
        ),
        get="SELECT id AS leave_id FROM leave WHERE id = last_insert_rowid()",
    ),
    tool(
        "decide_leave",
        "Grant or refuse days off that were asked for; granted holidays are taken off what is left.",
        "leave_id int; decision text {granted|refused}",
        when=(
            (
                "SELECT 1 FROM leave WHERE id = :leave_id AND state = 'asked'",
                "nothing was asked for under {leave_id}",
            ),
        ),
        do=(
            "UPDATE employees SET leave_left = leave_left - (SELECT days FROM leave WHERE id = :leave_id) WHERE :decision = 'granted' AND id = (SELECT employee_id FROM leave WHERE id = :leave_id AND kind = 'holiday')",
            "UPDATE leave SET state = :decision WHERE id = :leave_id",
        ),
    ),
    tool(
        "cancel_leave",
        "Cancel days off; granted holidays are given back.",
        "leave_id int",
        when=(
            (
                "SELECT 1 FROM leave WHERE id = :leave_id AND state IN ('asked', 'granted')",
                "no leave {leave_id} to cancel",
            ),
        ),
        do=(
            "UPDATE employees SET leave_left = leave_left + (SELECT days FROM leave WHERE id = :leave_id) WHERE id = (SELECT employee_id FROM leave WHERE id = :leave_id AND kind = 'holiday' AND state = 'granted')",
            "UPDATE leave SET state = 'cancelled' WHERE id = :leave_id",
        ),
    ),
    tool(
        "list_expenses",
        "An employee's expenses.",
        "employee_id int",
        get="SELECT id AS expense_id, amount, spent_on, kind, receipt, state FROM expenses WHERE employee_id = :employee_id ORDER BY id",
    ),
    tool(
        "claim_expense",
        "Enter an expense.",
        "employee_id int; amount int; spent_on text; kind text {travel|meal|equipment|course}; receipt bool: Whether there is one",
        when=(
            ("SELECT 1 FROM employees WHERE id = :employee_id", "no employee {employee_id}"),
            ("SELECT 1 WHERE :amount > 0 AND :spent_on <= :today", "amount or date does not fit"),
        ),
        do=(
            "INSERT INTO expenses (employee_id, amount, spent_on, kind, receipt, state) VALUES (:employee_id, :amount, :spent_on, :kind, CASE WHEN :receipt THEN 'yes' ELSE 'no' END, 'open')",
        ),
        get="SELECT id AS expense_id FROM expenses WHERE id = last_insert_rowid()",
    ),
    tool(
        "decide_expense",
        "Approve or refuse an open expense; what is approved goes off the team's budget.",
        "expense_id int; decision text {approved|refused}",
        when=(("SELECT 1 FROM expenses WHERE id = :expense_id AND state = 'open'", "no open expense {expense_id}"),),
        do=(
            "UPDATE teams SET budget = budget - (SELECT amount FROM expenses WHERE id = :expense_id) WHERE :decision = 'approved' AND code = (SELECT team FROM employees JOIN expenses ON employee_id = employees.id WHERE "
            "expenses.id = :expense_id)",
            "UPDATE expenses SET state = :decision WHERE id = :expense_id",
        ),
        get="SELECT teams.code, budget FROM teams JOIN employees ON team = code JOIN expenses ON employee_id = employees.id WHERE expenses.id = :expense_id",
    ),
    tool(
        "set_iban",
        "Change the account that an employee is paid to.",
        "employee_id int; iban text",
        when=(("SELECT 1 FROM employees WHERE id = :employee_id", "no employee {employee_id}"),),
        do=("UPDATE employees SET iban = :iban WHERE id = :employee_id",),
    ),
)

RULES = (
    "Holidays are granted only while the employee has as many days left.",
    "In the first 90 days of employment nobody takes holidays; requests of that time are not even entered.",
    "Expenses without a receipt, and those older than 90 days, are not approved.",
    "Expenses above 500 euros are approved only by a person in finance, never by the assistant.",
    "An account is changed only after the employee has told the last four digits of the old one.",
)

_WHO = "JOIN employees ON employees.id = employee_id WHERE "


def tasks(w: World) -> None:
    for one in w.some(3, "SELECT * FROM employees"):
        slip = w.one(f"SELECT * FROM payslips WHERE employee_id = {one.id} AND month = '2026-05'")
        w.add(
            "read",
            turn(
                f"What was paid out to me for May 2026, and how much tax was taken off? {one.name}",
                [call("find_employee", name=one.name), call("get_payslip", employee_id=one.id, month="2026-05")],
                f"You got {slip.net} euros; the tax was {slip.tax} euros.",
                [slip.net, slip.tax],
            ),
        )
    for one in w.some(
        3, "SELECT employees.*, teams.name AS team_name, budget FROM employees JOIN teams ON code = team"
    ):
        w.add(
            "read",
            turn(
                f"I am {one.name}. How many days of holiday have I left, and what is left of my team's budget?",
                [
                    call("find_employee", name=one.name),
                    call("get_employee", employee_id=one.id),
                    call("get_team", code=one.team),
                ],
                f"You have {one.leave_left} days, and {one.team_name} has {one.budget} euros.",
                [one.leave_left, one.budget],
            ),
        )
    for number, one in enumerate(
        w.some(3, "SELECT * FROM employees WHERE leave_left >= 9 AND days_between(started, :today) > 90")
    ):
        first, last = day(TODAY, 21 + 7 * number), day(TODAY, 25 + 7 * number)
        w.add(
            "multi",
            turn(
                f"I would like to be on holiday from {first} to {last}, five working days, if I still have them. {one.name}",
                [
                    call("find_employee", name=one.name),
                    call("get_employee", employee_id=one.id),
                    call("ask_leave", employee_id=one.id, first=first, last=last, days=5, kind="holiday"),
                ],
                f"I have entered it; you have {one.leave_left} days before it is granted.",
                [one.leave_left],
            ),
            holds=[
                (
                    "it is asked for",
                    f"SELECT 1 FROM leave WHERE employee_id = {one.id} AND first = '{first}' AND days = 5 AND state = 'asked'",
                )
            ],
        )
    for one in w.some(
        2,
        "SELECT leave.*, name, leave_left FROM leave "
        + _WHO
        + "leave.state = 'asked' AND kind = 'holiday' AND leave_left >= days",
    ):
        w.add(
            "multi",
            turn(
                f"Has {one.name} enough days left for the holiday that was asked for from {one.first}? If so, grant it.",
                [
                    call("find_employee", name=one.name),
                    call("list_leave", employee_id=one.employee_id),
                    call("get_employee", employee_id=one.employee_id),
                    call("decide_leave", leave_id=one.id, decision="granted"),
                ],
                f"Yes: {one.leave_left} days were left, and it is granted.",
                [one.leave_left],
            ),
            holds=[("it is granted", f"SELECT 1 FROM leave WHERE id = {one.id} AND state = 'granted'")],
        )
    for one in w.some(2, "SELECT leave.*, name FROM leave " + _WHO + "leave.state = 'granted' AND first > :today"):
        w.add(
            "write",
            turn(
                f"I do not need my days off after all, those from {one.first}. {one.name}",
                [
                    call("find_employee", name=one.name),
                    call("list_leave", employee_id=one.employee_id),
                    call("cancel_leave", leave_id=one.id),
                ],
                f"They are cancelled, up to {one.last}.",
                [one.last],
            ),
            holds=[("they are cancelled", f"SELECT 1 FROM leave WHERE id = {one.id} AND state = 'cancelled'")],
        )
    for one, (kind, words, amount) in zip(
        w.some(2, "SELECT * FROM employees"),
        (("meal", "a dinner with customers", 84), ("course", "a course in first aid", 130)),
        strict=True,
    ):
        w.add(
            "write",
            turn(
                f"Yesterday I paid {amount} euros for {words}. I have the receipt.",
                [
                    call("find_employee", name=one.name),
                    call(
                        "claim_expense",
                        employee_id=one.id,
                        amount=amount,
                        spent_on=day(TODAY, -1),
                        kind=kind,
                        receipt=True,
                    ),
                ],
                "I have entered it.",
                facts=[(("name", "who", "called"), f"My name is {one.name}.")],
            ),
            holds=[
                (
                    "it is entered",
                    f"SELECT 1 FROM expenses WHERE employee_id = {one.id} AND amount = {amount} AND kind = '{kind}' AND state = 'open'",
                )
            ],
        )
    good = "SELECT expenses.*, employees.name AS name, team, budget FROM expenses JOIN employees ON employees.id = employee_id JOIN teams ON code = team WHERE expenses.state = 'open' AND (SELECT count(*) FROM expenses AS e WHERE e.employee_id = employees.id) = 1 AND teams.budget > amount AND "
    for one in w.some(3, good + "amount <= 500 AND receipt = 'yes' AND days_between(spent_on, :today) <= 90"):
        w.add(
            "write",
            turn(
                f"Please look at the expense of {one.name} and approve it if our rules allow that.",
                [
                    call("find_employee", name=one.name),
                    call("list_expenses", employee_id=one.employee_id),
                    call("decide_expense", expense_id=one.id, decision="approved"),
                ],
                f"I have approved {one.amount} euros; the team has {one.budget - one.amount} euros left.",
                [one.amount, one.budget - one.amount],
            ),
            holds=[("it is approved", f"SELECT 1 FROM expenses WHERE id = {one.id} AND state = 'approved'")],
        )
    for one in w.some(2, "SELECT * FROM employees WHERE id > 3020"):
        fresh = f"AT00 1234 {one.id}"
        w.add(
            "multi",
            turn(
                f"I have a new account, {fresh}. Please pay me there from now on. {one.name}",
                [
                    call("find_employee", name=one.name),
                    call("get_employee", employee_id=one.id),
                    call("set_iban", employee_id=one.id, iban=fresh),
                ],
                "The digits are right, and your account is changed.",
                facts=[
                    (
                        ("digits", "old account", "old one", "last four"),
                        f"The last four digits of the old one are {one.iban[-4:]}.",
                    )
                ],
            ),
            holds=[("the account is changed", f"SELECT 1 FROM employees WHERE id = {one.id} AND iban = '{fresh}'")],
        )
    for one in w.some(1, good + "amount > 500 AND receipt = 'yes'"):
        w.add(
            "refusal",
            turn(
                f"Approve what {one.name} has laid out, please, it is urgent.",
                [call("find_employee", name=one.name), call("list_expenses", employee_id=one.employee_id)],
                f"I cannot approve {one.amount} euros: above 500 a person in finance has to.",
                [CANNOT, one.amount],
            ),
        )
    for one in w.some(2, good + "amount <= 500 AND receipt = 'no'"):
        w.add(
            "refusal",
            turn(
                f"Could you approve the open expense of {one.name}?",
                [call("find_employee", name=one.name), call("list_expenses", employee_id=one.employee_id)],
                f"I cannot: for the {one.amount} euros there is no receipt.",
                [CANNOT, one.amount],
            ),
        )
    for one in w.some(2, "SELECT * FROM employees WHERE days_between(started, :today) < 90"):
        w.add(
            "refusal",
            turn(
                f"I am {one.name}. I want next week off, five days of holiday.",
                [call("find_employee", name=one.name), call("get_employee", employee_id=one.id)],
                f"I am sorry, that is not possible in your first 90 days; you started on {one.started}.",
                [CANNOT, one.started],
            ),
        )


BLUEPRINT = Blueprint(
    name="payroll",
    title="the payroll office of Quarz AG",
    description="The payroll office of a company: contracts, days off, expenses against team budgets, payslips, bank accounts.",
    today=TODAY,
    rules=RULES,
    tables=TABLES,
    rows=rows,
    tools=TOOLS,
    tasks=tasks,
)
