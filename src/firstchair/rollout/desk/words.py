"""Word lists that the desk's values are drawn from. Tables of data, nothing else."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().split("\n"))


FIRST_NAMES = _words(
    """
    Ana Ben Carla David Elena Felix Greta Hugo Irene Jonas Karin Leo Maria Nils Olga Pedro Quinn Rosa Simon Tara
    Ugo Vera Walter Xenia Yara Zoe Adam Bella Cyril Dora Emil Fiona Gavin Helen Ivan Julia Kurt Laura Marco Nora
    Oscar Paula Ralf Sara Tom Ursula Victor Wanda Yusuf Zara Amir Bruno Clara Dario Edith Frank Gloria Henry
    Ines Jakob Kira Lukas Mona Noah Otto Petra Rita Sven Tina Uma Viktor Wilma Alma Boris Celia Dana Erik Flora
    Georg Hanna Igor Jana Klaus Lena Mario Nadia Omar Pia Robert Silvia Theo Valentin Wendy Agnes Bernd Chloe
    Diego
    """
)

LAST_NAMES = _words(
    """
    Silva Brown Costa Dunn Evans Fischer Garcia Hill Irving Jensen Keller Lopez Moore Nolan Owen Parker Quist
    Reed Stone Turner Ude Vance Wells Young Ziegler Abbott Baker Carter Drake Eaton Flynn Grant Hayes Iverson
    Jordan Kent Lang Marsh North Olsen Page Rowe Shaw Tate Upton Vega Walsh York Zeller Archer Banks Cole Dale
    Ellis Frost Gibbs Hunt Ingram James Knox Lane Mason Nash Ortiz Price Rhodes Sharp Thorne Underwood Vogel
    Weber Yates Zimmer Adler Bishop Conrad Davis Engel Foster Graves Hoffman Jacobs Klein Lambert Meyer Norton
    Perry Ramos Santos Torres
    """
)

NOUNS = _words(
    """
    harbor lantern river garden bridge castle forest market window mirror planet rocket sailor tunnel valley
    violin wagon anchor basket candle desert engine falcon guitar hammer island jacket kettle ladder magnet
    needle orchard pepper quarry ribbon saddle temple umbrella velvet walnut yogurt zebra apple barrel camera
    dragon eagle feather glacier helmet insect jungle kitchen lemon meadow napkin ocean pencil rabbit shadow
    ticket uniform village whistle acorn beacon cabin dolphin emblem fabric gravel hotel iron jewel kernel
    lagoon marble nest onion parrot quilt radar salad tower urchin vessel winter yard almond bucket copper
    donkey ember fossil goblet hazel ivory jasmine kayak lily maple nickel otter pillow raven silver tulip vapor
    willow amber bamboo cactus daisy elm fern ginger honey iris juniper kiwi lotus mango nutmeg olive pearl
    quartz robin sage thistle violet wheat bakery museum library theater station school studio gallery factory
    clinic airport stadium chapel cinema depot office budget survey summary lesson recipe invoice ledger memo
    outline poster report sketch agenda brief chart diary essay format guide index journal letter manual notice
    offer permit quote roster script tender update
    """
)

ADJECTIVES = _words(
    """
    blue red green golden quiet bright narrow gentle rapid steady ancient modern silent curious frozen hidden
    hollow humble lively loyal lucky mellow noble orange polite proud purple royal rustic shiny simple smooth
    solar spicy stormy strong sunny sweet tiny urban vivid warm white wild wooden young amber bold brave calm
    clever cozy crisp dark deep early fancy fresh giant grand great happy heavy honest icy jolly keen kind large
    late light little long lovely merry mild misty neat new nimble northern old pale plain pretty pure quick
    rare rich round secret sharp short silver slow small soft solid southern square still tall tender thin tidy
    eastern western
    """
)

VERBS = _words(
    """
    water check print order clean call paint pack update renew review collect return repair book cancel confirm
    download email feed file finish fix move open plan prepare read scan sell send sharpen sign sort study taste
    test wash weigh write archive assemble borrow bring buy change charge close copy count deliver describe draw
    empty
    """
)

FOLDERS = _words(
    """
    notes plans reports drafts archive team data office legal sales design travel events finance budget letters
    minutes orders projects lab shipping stock studio support surveys training vendors press partners payroll
    policies photos recipes records reviews roadmap schedule school sites staff
    """
)

THINGS = _lines(
    """
    locker code
    badge code
    door code
    garage code
    safe code
    alarm code
    gate code
    login code
    customer number
    passport number
    member number
    insurance number
    account number
    phone number
    train number
    flight number
    room number
    tax number
    shoe size
    shirt size
    helmet size
    jacket size
    ring size
    hat size
    car color
    desk color
    bike color
    door color
    folder color
    laptop password
    printer password
    wifi password
    email password
    tea brand
    coffee brand
    bike brand
    pen brand
    favorite song
    favorite dish
    favorite book
    favorite place
    favorite game
    dentist day
    gym day
    market day
    cleaning day
    parking spot
    desk spot
    bike spot
    """
)

KEYS_OF_PEOPLE = _words("owner host editor author supplier driver partner manager sponsor trainer buyer pilot")

KEYS_OF_DATES = _words("deadline launch arrival departure delivery renewal")

KEYS_OF_TIMES = _words("opening closing start break curfew checkout")

KEYS_OF_NUMBERS = _words("budget price fee limit count depth height width weight room floor rating capacity rent")

KEYS_OF_CODES = _words("code serial batch label model gate route locker permit voucher")

KEYS_OF_STATES = _words("status color")

DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

STATUSES = _words(
    """
    open closed approved pending rejected delayed shipped paid unpaid draft final cancelled
    """
)

COLORS = _words(
    """
    red blue green yellow purple orange black white gray brown pink teal navy olive maroon silver gold
    """
)

PLACES = _words(
    """
    Hotel Museum Bakery Library Theater Garden Market Station Clinic School Gallery Harbor Cafe Inn
    """
)

EVENTS = _words(
    """
    review lunch workshop call interview demo briefing training dinner tour rehearsal audit
    """
)

TOPICS = _lines(
    """
    share a file
    book a meeting
    set a reminder
    search my files
    make a picture
    make a video
    read a PDF
    call a client
    send a message
    change my memory
    ask for research
    build a spreadsheet
    write a letter
    extend a clip
    find a contact
    check my calendar
    read my mail
    rename a file
    delete a file
    open a web page
    compare two sites
    undo an edit
    move a folder
    list my reminders
    stop a reminder
    """
)

GOALS = _lines(
    """
    a table for two
    a table for four
    a room for one night
    a taxi to the station
    a haircut
    a dentist visit
    a better price
    a later delivery
    a refund
    a car wash
    a guided tour
    a piano lesson
    a new contract
    a second appointment
    a window repair
    a longer warranty
    """
)

GOAL_TIMES = ("", " at {time}", " on {date}")

DISTRACTORS = _lines(
    """
    It is a busy morning.
    Sorry for the rush.
    My coffee is cold already.
    No hurry with this.
    The office is loud today.
    I am on the train.
    We had a long meeting.
    The printer is broken again.
    It rains here.
    I just got back.
    Lunch was good.
    My screen is tiny.
    The weekend is near.
    I am a bit tired.
    The team is waiting.
    That would help me a lot.
    I have five minutes.
    Somebody moved my chair.
    The lift is stuck.
    What a day!
    The phone keeps ringing.
    I am in a meeting.
    Nice weather outside.
    Traffic was terrible.
    We are short of staff.
    """
)
