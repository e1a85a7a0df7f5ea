"""A shop on the web: products and stock, customers, orders and their items, returns."""

from __future__ import annotations

from random import Random

from kit import CANNOT, Blueprint, Rows, World, call, day, people, table, tells, tool, turn

TODAY = "2026-09-14"

TABLES = (
    table(
        "products",
        "What is sold.",
        "id int; name text; category text {audio|kitchen|garden|office}; price int; stock int; final_sale text {yes|no}",
    ),
    table("customers", "Who buys.", "id int; name text; email text; address text; points int"),
    table(
        "orders",
        "Orders of customers.",
        "id int; customer_id int -> customers.id; placed_on text; state text {pending|shipped|delivered|cancelled}; ship_to text; delivered_on text?",
        generated=True,
    ),
    table(
        "items",
        "Products of an order.",
        "id int; order_id int -> orders.id; product_id int -> products.id; quantity int; price int: of one",
        generated=True,
    ),
    table(
        "returns",
        "Items that come back.",
        "id int; item_id int -> items.id; opened_on text; reason text? ~; state text {open|received|refunded}",
        generated=True,
    ),
)

_PRODUCTS = (
    "Walnut Speaker|Nimbus Headphones|Pocket Radio|Turntable Mat|Studio Microphone|Vinyl Brush|Copper Kettle|Bread Knife|Salt Mill|"
    "Cast Iron Pan|Egg Timer|Noodle Bowl|Pruning Shears|Watering Can|Seed Box|Garden Lantern|Rain Gauge|Herb Planter|Desk Lamp|"
    "Paper Tray|Cork Board|Brass Stapler|Ink Set|Document Case"
).split("|")
_STREETS = ("Mill Lane", "Harbour Street", "Linden Road", "Station Square", "Bell Yard")


def rows(rng: Random) -> Rows:
    kinds = ("audio", "kitchen", "garden", "office")
    products = [
        (
            number,
            name,
            kinds[(number - 1) // 6],
            rng.randint(8, 180),
            0 if number % 7 == 0 else rng.randint(2, 40),
            "yes" if number % 6 == 0 else "no",
        )
        for number, name in enumerate(_PRODUCTS, 1)
    ]
    customers = [
        (
            300 + number,
            name,
            f"{name.split()[1].lower()}@example.net",
            f"{rng.randint(1, 99)} {rng.choice(_STREETS)}",
            rng.choice((0, 40, 120, 300)),
        )
        for number, name in enumerate(people(rng, 25), 1)
    ]
    orders, items, returned = [], [], []
    for number in range(1, 41):
        customer = customers[(number * 3) % 25]
        state = ("delivered", "pending", "shipped", "delivered")[number % 4]
        ago = (
            rng.randint(20, 29) if number % 4 == 0 else rng.randint(45, 80) if number % 8 == 3 else rng.randint(2, 12)
        )
        delivered = day(TODAY, 5 - ago - 3) if state == "delivered" else None
        orders.append((number, customer[0], day(TODAY, -ago - 5), state, customer[3], delivered))
        for product in rng.sample(products, 1 + number % 3 // 2):
            if len(items) < 58:
                items.append((len(items) + 1, number, product[0], rng.choice((1, 1, 2)), product[3]))
    for item in items:
        if orders[item[1] - 1][3] == "delivered" and len(returned) < 6:
            returned.append((len(returned) + 1, item[0], day(TODAY, -len(returned)), None, "open"))
    while len(returned) < 20:
        item = items[-len(returned)]
        returned.append((len(returned) + 1, item[0], day(TODAY, -30 - len(returned)), "did not fit", "refunded"))
    return {"products": products, "customers": customers, "orders": orders, "items": items, "returns": returned}


TOOLS = (
    tool(
        "search_products",
        "Products with a word in the name.",
        "text text",
        get="SELECT * FROM products WHERE instr(lower(name), lower(:text)) > 0 ORDER BY id",
    ),
    tool(
        "list_category",
        "Products of a category that are in stock.",
        "category text {audio|kitchen|garden|office}; most int?: Highest price",
        get="SELECT id, name, price, stock FROM products WHERE category = :category AND stock > 0 AND price <= coalesce(:most, price) ORDER BY price",
    ),
    tool(
        "find_customer",
        "Customers by name or address of mail.",
        "text text",
        get="SELECT id AS customer_id, name, email, address FROM customers WHERE instr(lower(name || ' ' || email), lower(:text)) > 0 ORDER BY id",
        none="no customer {text}",
    ),
    tool(
        "get_customer",
        "A customer's account.",
        "customer_id int",
        get="SELECT * FROM customers WHERE id = :customer_id",
        none="no customer {customer_id}",
    ),
    tool(
        "list_orders",
        "A customer's orders.",
        "customer_id int",
        get="SELECT orders.id AS order_id, placed_on, state, group_concat(name, ', ') AS products FROM orders JOIN items ON order_id = orders.id JOIN products ON "
        "products.id = product_id WHERE customer_id = :customer_id GROUP BY orders.id ORDER BY orders.id",
    ),
    tool(
        "get_order",
        "An order with its state and where it goes.",
        "order_id int",
        get="SELECT * FROM orders WHERE id = :order_id",
        none="no order {order_id}",
    ),
    tool(
        "list_items",
        "The items of an order.",
        "order_id int",
        get="SELECT items.id AS item_id, product_id, name, quantity, items.price, final_sale FROM items JOIN products ON products.id = product_id WHERE order_id = :order_id "
        "ORDER BY items.id",
        none="no order {order_id}",
    ),
    tool(
        "place_order",
        "Order one product for a customer, to the customer's address.",
        "customer_id int; product_id int; quantity int",
        when=(
            ("SELECT 1 FROM customers WHERE id = :customer_id", "no customer {customer_id}"),
            (
                "SELECT 1 FROM products WHERE id = :product_id AND stock >= :quantity AND :quantity > 0",
                "product {product_id} is not in stock {quantity} times",
            ),
        ),
        do=(
            "UPDATE products SET stock = stock - :quantity WHERE id = :product_id",
            "INSERT INTO orders (customer_id, placed_on, state, ship_to) SELECT :customer_id, :today, 'pending', address FROM customers WHERE id = :customer_id",
            "INSERT INTO items (order_id, product_id, quantity, price) SELECT (SELECT max(id) FROM orders), :product_id, :quantity, price FROM products WHERE id = :product_id",
        ),
        get="SELECT order_id, quantity * price AS total FROM items WHERE id = last_insert_rowid()",
    ),
    tool(
        "cancel_order",
        "Cancel an order and put its items back into stock.",
        "order_id int",
        when=(
            ("SELECT 1 FROM orders WHERE id = :order_id AND state <> 'cancelled'", "no order {order_id} to cancel"),
        ),
        do=(
            "UPDATE products SET stock = stock + (SELECT sum(quantity) FROM items WHERE order_id = :order_id AND product_id = products.id) WHERE id IN (SELECT product_id "
            "FROM items WHERE order_id = :order_id)",
            "UPDATE orders SET state = 'cancelled' WHERE id = :order_id",
        ),
    ),
    tool(
        "set_ship_to",
        "Change where a pending order goes.",
        "order_id int; address text",
        when=(
            ("SELECT 1 FROM orders WHERE id = :order_id AND state = 'pending'", "order {order_id} is not pending"),
        ),
        do=("UPDATE orders SET ship_to = :address WHERE id = :order_id",),
    ),
    tool(
        "set_address",
        "Change the address in a customer's account.",
        "customer_id int; address text",
        when=(("SELECT 1 FROM customers WHERE id = :customer_id", "no customer {customer_id}"),),
        do=("UPDATE customers SET address = :address WHERE id = :customer_id",),
    ),
    tool(
        "open_return",
        "Open a return for an item.",
        "item_id int; reason text?: In the customer's words",
        when=(
            ("SELECT 1 FROM items WHERE id = :item_id", "no item {item_id}"),
            (
                "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM returns WHERE item_id = :item_id)",
                "item {item_id} has a return already",
            ),
        ),
        do=(
            "INSERT INTO returns (item_id, opened_on, reason, state) VALUES (:item_id, :today, coalesce(:reason, 'none given'), 'open')",
        ),
        get="SELECT id AS return_id, state FROM returns WHERE id = last_insert_rowid()",
    ),
    tool(
        "spend_points",
        "Take points off a customer's account.",
        "customer_id int; points int",
        when=(
            (
                "SELECT 1 FROM customers WHERE id = :customer_id AND points >= :points AND :points > 0",
                "they do not have {points} points",
            ),
        ),
        do=("UPDATE customers SET points = points - :points WHERE id = :customer_id",),
        get="SELECT id, points FROM customers WHERE id = :customer_id",
    ),
)

RULES = (
    "Only pending orders may be cancelled or sent elsewhere.",
    "An item may be returned up to 30 days after its order was delivered. Final-sale products are not taken back.",
    "A new address for an order does not change the customer's account, unless they ask for that.",
    "100 points are worth 5 euros; they are spent only in hundreds.",
)

_ORDER = (
    "SELECT orders.id, customer_id, customers.name AS who, placed_on, orders.state, ship_to, delivered_on, items.id AS item, product_id, products.name AS product, quantity, "
    "items.price, items.quantity * items.price AS total, final_sale FROM orders JOIN customers ON customers.id = customer_id JOIN items ON order_id = orders.id JOIN products "
    "ON products.id = product_id WHERE (SELECT count(*) FROM orders AS o JOIN items AS i ON i.order_id = o.id WHERE o.customer_id = customers.id AND i.product_id = products.id) "
    "= 1 AND (SELECT count(*) FROM items AS i WHERE i.order_id = orders.id) = 1 AND "
)


def tasks(w: World) -> None:
    for one in w.some(3, "SELECT * FROM products WHERE stock > 0"):
        w.add(
            "read",
            turn(
                f"What does the {one.name} cost, and how many do you have?",
                [call("search_products", text=one.name)],
                f"The {one.name} is {one.price} euros; we have {one.stock}.",
                [one.price, one.stock],
            ),
        )
    for one in w.some(3, _ORDER + "orders.state = 'shipped'"):
        w.add(
            "read",
            turn(
                f"Has my {one.product} been sent yet, and when did I order it? {one.who} is my name.",
                [
                    call("find_customer", text=one.who),
                    call("list_orders", customer_id=one.customer_id),
                    call("get_order", order_id=one.id),
                ],
                f"It has shipped. You ordered it on {one.placed_on}.",
                [one.placed_on, tells("shipped")],
            ),
        )
    for one, who in zip(
        w.some(3, "SELECT * FROM products WHERE stock > 4"), w.some(3, "SELECT * FROM customers"), strict=True
    ):
        w.add(
            "multi",
            turn(
                f"I want three of the {one.name}. My account is under {who.email}.",
                [
                    call("search_products", text=one.name),
                    call("find_customer", text=who.email),
                    call("place_order", customer_id=who.id, product_id=one.id, quantity=3),
                ],
                f"Ordered: three for {3 * one.price} euros.",
                [3 * one.price],
            ),
            holds=[
                (
                    "it is ordered",
                    f"SELECT 1 FROM items JOIN orders ON orders.id = order_id WHERE product_id = {one.id} AND quantity = 3 AND customer_id = {who.id} AND "
                    f"placed_on = '{TODAY}'",
                )
            ],
        )
    for one in w.some(3, _ORDER + "orders.state = 'pending'"):
        w.add(
            "write",
            turn(
                f"Please cancel my order of the {one.product}. {one.who}",
                [
                    call("find_customer", text=one.who),
                    call("list_orders", customer_id=one.customer_id),
                    call("cancel_order", order_id=one.id),
                ],
                f"Order {one.id} is cancelled.",
                [one.id],
            ),
            holds=[("it is cancelled", f"SELECT 1 FROM orders WHERE id = {one.id} AND state = 'cancelled'")],
        )
    for number, one in enumerate(w.some(2, _ORDER + "orders.state = 'pending'")):
        place = f"{12 + number} Chapel Hill"
        w.add(
            "write",
            turn(
                f"The {one.product} that I ordered should go to {place} instead. It is for {one.who}.",
                [
                    call("find_customer", text=one.who),
                    call("list_orders", customer_id=one.customer_id),
                    call("set_ship_to", order_id=one.id, address=place),
                ],
                f"Order {one.id} now goes there.",
                [one.id],
            ),
            holds=[("it goes there", f"SELECT 1 FROM orders WHERE id = {one.id} AND ship_to = '{place}'")],
        )
    for one in w.some(
        2,
        _ORDER
        + "orders.state = 'delivered' AND days_between(delivered_on, :today) <= 30 AND final_sale = 'no' AND items.id NOT IN (SELECT item_id FROM returns)",
    ):
        w.add(
            "multi",
            turn(
                f"The {one.product} is not what I thought. I would like to send it back. {one.who}",
                [
                    call("find_customer", text=one.who),
                    call("list_orders", customer_id=one.customer_id),
                    call("get_order", order_id=one.id),
                    call("list_items", order_id=one.id),
                    call("open_return", item_id=one.item, reason="not what they thought"),
                ],
                "The return is open, and you will get a label by mail.",
            ),
            holds=[("the return is open", f"SELECT 1 FROM returns WHERE item_id = {one.item} AND state = 'open'")],
        )
    for one in w.some(2, "SELECT * FROM customers WHERE points >= 120"):
        w.add(
            "multi",
            turn(
                f"This is {one.name}. How many points have I got?",
                [call("find_customer", text=one.name), call("get_customer", customer_id=one.id)],
                f"You have {one.points} points.",
                [one.points],
            ),
            turn(
                "Then spend as many of them as I may.",
                [call("spend_points", customer_id=one.id, points=one.points // 100 * 100)],
                f"Done: that is {one.points // 100 * 5} euros off, and {one.points % 100} points are left.",
                [one.points % 100],
            ),
            holds=[
                (
                    "the hundreds are spent",
                    f"SELECT 1 FROM customers WHERE id = {one.id} AND points = {one.points % 100}",
                )
            ],
        )
    for one in w.some(2, _ORDER + "orders.state = 'shipped'"):
        w.add(
            "refusal",
            turn(
                f"Stop my order of the {one.product}, I do not want it any more. {one.who}",
                [call("find_customer", text=one.who), call("list_orders", customer_id=one.customer_id)],
                f"I am sorry, I cannot cancel order {one.id}: it has shipped.",
                [CANNOT, tells("shipped"), one.id],
            ),
        )
    for one in w.some(2, _ORDER + "orders.state = 'delivered' AND days_between(delivered_on, :today) > 30"):
        w.add(
            "refusal",
            turn(
                f"I want to return the {one.product}. My name is {one.who}.",
                [
                    call("find_customer", text=one.who),
                    call("list_orders", customer_id=one.customer_id),
                    call("get_order", order_id=one.id),
                ],
                f"I am sorry, that is not possible any more: it was delivered on {one.delivered_on}, more than 30 days ago.",
                [CANNOT, one.delivered_on],
            ),
        )


BLUEPRINT = Blueprint(
    name="retail",
    title="Larder & Lamp, a shop on the web",
    description="A web shop for audio, kitchen, garden and office goods: stock, customers with points, orders, returns.",
    today=TODAY,
    rules=RULES,
    tables=TABLES,
    rows=rows,
    tools=TOOLS,
    tasks=tasks,
)
