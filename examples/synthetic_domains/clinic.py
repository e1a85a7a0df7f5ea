"""A clinic: doctors, patients, appointments, prescriptions, invoices."""

from __future__ import annotations

from random import Random

from kit import CANNOT, Blueprint, Rows, World, call, day, people, table, tool, turn

TODAY = "2026-10-05"

TABLES = (
    table(
        "doctors",
        "Who treats.",
        "id int; name text; field text {general|skin|heart|eyes}; room text; new_patients text {yes|no}",
    ),
    table("patients", "Who is treated.", "id int; name text; born text; phone text; doctor_id int -> doctors.id"),
    table("slots", "Times that a doctor offers.", "id int; doctor_id int -> doctors.id; date text; time text"),
    table(
        "appointments",
        "Slots taken.",
        "id int; slot_id int -> slots.id; patient_id int -> patients.id; reason text? ~; state text {booked|cancelled|missed|kept}",
        generated=True,
    ),
    table(
        "prescriptions",
        "What patients may fetch.",
        "id int; patient_id int -> patients.id; drug text; refills int: left; last_filled text; controlled text {yes|no}",
    ),
    table(
        "invoices",
        "What patients owe.",
        "id int; patient_id int -> patients.id; amount int; due_on text; state text {open|paid|waived}",
    ),
)

_DRUGS = ("Lisinol", "Metforan", "Atorvex", "Salbutin", "Oxytram", "Loratin", "Amoxil", "Diazepan")


def rows(rng: Random) -> Rows:
    names = people(rng, 48)
    fields = ("general", "skin", "heart", "eyes")
    doctors = [
        (number, f"Dr {name}", fields[number % 4], f"{rng.choice('ABC')}{number}", "no" if number % 5 == 0 else "yes")
        for number, name in enumerate(names[:20], 1)
    ]
    patients = [
        (
            700 + number,
            name,
            f"{rng.randint(1940, 2015)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
            f"555-{1000 + number * 7}",
            doctors[number % 20][0],
        )
        for number, name in enumerate(names[20:], 1)
    ]
    slots = [
        (
            number,
            doctors[number % 20][0],
            day(TODAY, (0, 1, 3, 8)[number // 20] if number < 60 else -7),
            f"{8 + number % 9:02}:30",
        )
        for number in range(60)
    ]
    appointments = []
    for number, slot in enumerate(slots):
        if number % 2 == 0:
            patient = patients[(number // 2) % len(patients)]
            appointments.append((len(appointments) + 1, slot[0], patient[0], None, "booked"))
    prescriptions = [
        (
            number,
            patients[number % 28][0],
            drug := _DRUGS[number % 8],
            (number * 5) % 4,
            day(TODAY, -(10 if number % 3 == 0 else 35)),
            "yes" if drug in ("Oxytram", "Diazepan") else "no",
        )
        for number in range(1, 41)
    ]
    invoices = [
        (
            900 + number,
            patients[(number * 3) % 28][0],
            rng.randint(2, 30) * 5,
            day(TODAY, rng.randint(-40, 20)),
            "paid" if number % 3 == 0 else "open",
        )
        for number in range(1, 26)
    ]
    return {
        "doctors": doctors,
        "patients": patients,
        "slots": slots,
        "appointments": appointments,
        "prescriptions": prescriptions,
        "invoices": invoices,
    }


_FREE = "NOT EXISTS (SELECT 1 FROM appointments WHERE slot_id = slots.id AND state = 'booked')"
TOOLS = (
    tool(
        "find_doctors",
        "Doctors by name or field.",
        "text text",
        get="SELECT id AS doctor_id, name, field, room, new_patients FROM doctors WHERE instr(lower(name || ' ' || field), lower(:text)) > 0 ORDER BY id",
    ),
    tool(
        "find_patient",
        "Patients by name.",
        "name text",
        get="SELECT id AS patient_id, name, born FROM patients WHERE instr(lower(name), lower(:name)) > 0 ORDER BY id",
        none="no patient is called {name}",
    ),
    tool(
        "get_patient",
        "A patient's record, with their doctor.",
        "patient_id int",
        get="SELECT patients.id, patients.name, born, phone, doctor_id, doctors.name AS doctor FROM patients JOIN doctors ON doctors.id = doctor_id WHERE patients.id = :patient_id",
        none="no patient {patient_id}",
    ),
    tool(
        "free_slots",
        "A doctor's free times from today on.",
        "doctor_id int",
        get=f"SELECT id AS slot_id, date, time FROM slots WHERE doctor_id = :doctor_id AND date >= :today AND {_FREE} ORDER BY date, time",
    ),
    tool(
        "list_appointments",
        "A patient's booked appointments.",
        "patient_id int",
        get="SELECT appointments.id AS appointment_id, date, time, doctors.name AS doctor, doctors.room FROM appointments JOIN slots ON slots.id = slot_id JOIN doctors ON "
        "doctors.id = slots.doctor_id WHERE patient_id = :patient_id AND state = 'booked' ORDER BY date, time",
    ),
    tool(
        "book_slot",
        "Book a free slot for a patient.",
        "slot_id int; patient_id int; reason text?",
        when=(
            (f"SELECT 1 FROM slots WHERE id = :slot_id AND date >= :today AND {_FREE}", "slot {slot_id} is not free"),
            ("SELECT 1 FROM patients WHERE id = :patient_id", "no patient {patient_id}"),
        ),
        do=(
            "INSERT INTO appointments (slot_id, patient_id, reason, state) VALUES (:slot_id, :patient_id, coalesce(:reason, 'none given'), 'booked')",
        ),
        get="SELECT appointments.id AS appointment_id, date, time FROM appointments JOIN slots ON slots.id = slot_id WHERE appointments.id = last_insert_rowid()",
    ),
    tool(
        "cancel_appointment",
        "Cancel a booked appointment.",
        "appointment_id int",
        when=(
            (
                "SELECT 1 FROM appointments WHERE id = :appointment_id AND state = 'booked'",
                "no booked appointment {appointment_id}",
            ),
        ),
        do=("UPDATE appointments SET state = 'cancelled' WHERE id = :appointment_id",),
    ),
    tool(
        "list_prescriptions",
        "A patient's prescriptions.",
        "patient_id int",
        get="SELECT * FROM prescriptions WHERE patient_id = :patient_id ORDER BY id",
    ),
    tool(
        "refill",
        "Refill a prescription that has refills left.",
        "prescription_id int",
        when=(
            (
                "SELECT 1 FROM prescriptions WHERE id = :prescription_id AND refills > 0",
                "prescription {prescription_id} has no refills left",
            ),
        ),
        do=("UPDATE prescriptions SET refills = refills - 1, last_filled = :today WHERE id = :prescription_id",),
        get="SELECT id, drug, refills FROM prescriptions WHERE id = :prescription_id",
    ),
    tool(
        "list_invoices",
        "A patient's invoices.",
        "patient_id int",
        get="SELECT id AS invoice_id, amount, due_on, state FROM invoices WHERE patient_id = :patient_id ORDER BY id",
    ),
    tool(
        "pay_invoice",
        "Note that an open invoice has been paid.",
        "invoice_id int",
        when=(("SELECT 1 FROM invoices WHERE id = :invoice_id AND state = 'open'", "no open invoice {invoice_id}"),),
        do=("UPDATE invoices SET state = 'paid' WHERE id = :invoice_id",),
    ),
    tool(
        "set_phone",
        "Change a patient's telephone number.",
        "patient_id int; phone text",
        when=(("SELECT 1 FROM patients WHERE id = :patient_id", "no patient {patient_id}"),),
        do=("UPDATE patients SET phone = :phone WHERE id = :patient_id",),
    ),
)

RULES = (
    "Appointments on the day itself are not cancelled by the assistant; the patient has to ring the desk.",
    "Controlled drugs are not refilled by the assistant.",
    "A prescription may be refilled 28 days after it was last filled, not earlier.",
    "Doctors who take no new patients only see those whose doctor they are.",
    "When a patient wants the first free time of a doctor, book the earliest slot.",
)

_APPOINTED = (
    "SELECT appointments.id, patient_id, patients.name AS who, date, time, doctors.name AS doctor, doctors.room FROM appointments JOIN slots ON slots.id = slot_id JOIN doctors "
    "ON doctors.id = slots.doctor_id JOIN patients ON patients.id = patient_id WHERE state = 'booked' AND (SELECT count(*) FROM appointments AS a WHERE a.patient_id = "
    "patients.id) = 1 AND "
)
_DRUG = (
    "SELECT prescriptions.*, patients.name AS who FROM prescriptions JOIN patients ON patients.id = patient_id WHERE (SELECT count(*) FROM prescriptions AS p WHERE "
    "p.patient_id = patients.id AND p.drug = prescriptions.drug) = 1 AND "
)


def tasks(w: World) -> None:
    for one in w.some(3, _APPOINTED + "date > :today"):
        w.add(
            "read",
            turn(
                f"{one.who} here, when is my next appointment, and in which room?",
                [call("find_patient", name=one.who), call("list_appointments", patient_id=one.patient_id)],
                f"You are expected on {one.date} at {one.time}, room {one.room}.",
                [one.date, one.time, one.room],
            ),
        )
    for one in w.some(3, _DRUG + "refills > 0"):
        w.add(
            "read",
            turn(
                f"How many refills of {one.drug} have I got left? I am {one.who}.",
                [call("find_patient", name=one.who), call("list_prescriptions", patient_id=one.patient_id)],
                f"There are {one.refills} refills left.",
                [one.refills],
            ),
        )
    first = f"SELECT slots.id, doctor_id, doctors.name AS doctor, min(date || ' ' || time) AS at, date, time FROM slots JOIN doctors ON doctors.id = doctor_id WHERE new_patients = 'yes' AND date >= :today AND {_FREE} GROUP BY doctor_id"
    for one, who in zip(w.some(3, first), w.some(3, "SELECT * FROM patients"), strict=True):
        w.add(
            "multi",
            turn(
                f"I am {who.name}. Give me the first free time of {one.doctor}.",
                [
                    call("find_patient", name=who.name),
                    call("find_doctors", text=one.doctor),
                    call("free_slots", doctor_id=one.doctor_id),
                    call("book_slot", slot_id=one.id, patient_id=who.id),
                ],
                f"You can come on {one.date} at {one.time}.",
                [one.date, one.time],
            ),
            holds=[
                (
                    "the slot is theirs",
                    f"SELECT 1 FROM appointments WHERE slot_id = {one.id} AND patient_id = {who.id} AND state = 'booked'",
                )
            ],
        )
    for one in w.some(3, _APPOINTED + "date > :today"):
        w.add(
            "write",
            turn(
                f"Something has come up, so I will not come to {one.doctor}. Cancel it, please. {one.who}",
                [
                    call("find_patient", name=one.who),
                    call("list_appointments", patient_id=one.patient_id),
                    call("cancel_appointment", appointment_id=one.id),
                ],
                f"Your appointment on {one.date} is cancelled.",
                [one.date],
            ),
            holds=[("it is cancelled", f"SELECT 1 FROM appointments WHERE id = {one.id} AND state = 'cancelled'")],
        )
    for one in w.some(3, _DRUG + "refills > 0 AND controlled = 'no' AND days_between(last_filled, :today) >= 28"):
        w.add(
            "write",
            turn(
                f"I have run out of {one.drug} and need more. My name is {one.who}.",
                [
                    call("find_patient", name=one.who),
                    call("list_prescriptions", patient_id=one.patient_id),
                    call("refill", prescription_id=one.id),
                ],
                f"It is refilled; after this there are {one.refills - 1} refills left.",
                [one.refills - 1],
            ),
            holds=[
                ("it is refilled", f"SELECT 1 FROM prescriptions WHERE id = {one.id} AND last_filled = '{TODAY}'")
            ],
        )
    owing = "SELECT patients.id, name, count(*) AS n, sum(amount) AS total, min(invoices.id) AS a, max(invoices.id) AS b FROM invoices JOIN patients ON patients.id = patient_id WHERE state = 'open' GROUP BY patients.id HAVING count(*) = "
    for one in w.some(2, owing + "1"):
        w.add(
            "multi",
            turn(
                f"What do I still owe you? {one.name} is my name.",
                [call("find_patient", name=one.name), call("list_invoices", patient_id=one.id)],
                f"One invoice of {one.total} euros is open.",
                [one.total],
            ),
            turn(
                "I have just paid it by card at the desk, so please note that.",
                [call("pay_invoice", invoice_id=one.a)],
                f"Invoice {one.a} is marked as paid.",
                [one.a],
            ),
            holds=[("it is paid", f"SELECT 1 FROM invoices WHERE id = {one.a} AND state = 'paid'")],
        )
    for number, one in enumerate(w.some(2, "SELECT * FROM patients")):
        phone = f"555-90{17 + number}"
        w.add(
            "write",
            turn(
                f"My telephone number is {phone} from now on.",
                [call("find_patient", name=one.name), call("set_phone", patient_id=one.id, phone=phone)],
                "I have noted it.",
                facts=[(("name", "who", "called"), f"I am {one.name}.")],
            ),
            holds=[("the number is noted", f"SELECT 1 FROM patients WHERE id = {one.id} AND phone = '{phone}'")],
        )
    for one in w.some(2, _APPOINTED + "date = :today"):
        w.add(
            "refusal",
            turn(
                f"I will not make it to {one.doctor} today, so take me off the list. {one.who}",
                [call("find_patient", name=one.who), call("list_appointments", patient_id=one.patient_id)],
                f"I am not able to cancel an appointment on the day itself. Yours is at {one.time}; please ring the desk.",
                [CANNOT, one.time],
            ),
        )
    for one in w.some(2, _DRUG + "controlled = 'yes' AND refills > 0"):
        w.add(
            "refusal",
            turn(
                f"Please refill my {one.drug}. I am {one.who}.",
                [call("find_patient", name=one.who), call("list_prescriptions", patient_id=one.patient_id)],
                f"I cannot refill prescription {one.id}: it is a controlled drug. Your doctor has to.",
                [CANNOT, one.id],
            ),
        )
    for one in w.some(2, _DRUG + "controlled = 'no' AND refills > 0 AND days_between(last_filled, :today) < 28"):
        w.add(
            "refusal",
            turn(
                f"Could I have my {one.drug} filled again, please? {one.who} is the name.",
                [call("find_patient", name=one.who), call("list_prescriptions", patient_id=one.patient_id)],
                f"It was last filled on {one.last_filled}, less than 28 days ago, so I cannot do it yet.",
                [CANNOT, one.last_filled],
            ),
        )


BLUEPRINT = Blueprint(
    name="clinic",
    title="the Bellevue clinic",
    description="A clinic with doctors of several fields: free slots, appointments, prescriptions with refills, invoices.",
    today=TODAY,
    rules=RULES,
    tables=TABLES,
    rows=rows,
    tools=TOOLS,
    tasks=tasks,
)
