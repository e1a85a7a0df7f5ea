"""Random values for the generic corpus: words, names, paths, addresses, times, numbers. None can be learned."""

from __future__ import annotations

import random
from collections.abc import Callable

from words import ADJECTIVES, DOMAINS, ENDINGS, EXTENSIONS, FIRST, NOUNS, PREPOSITIONS, SYLLABLES, VERBS


class Rng(random.Random):
    """The source of every choice. ``lexicon``: words of the tokenizer, so that each of its pieces is seen and copied."""

    lexicon: tuple[str, ...] = ()


def made_up(rng: Rng) -> str:
    """A word nobody has seen, 3 to 9 letters."""
    if rng.lexicon and rng.random() < 0.3:
        return rng.choice(rng.lexicon) + rng.choice(rng.lexicon).lower()
    word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3)))
    return word + (rng.choice(ENDINGS) if rng.random() < 0.6 else "")


def drawn(rng: Rng, words: list[str]) -> str:
    """One of ``words``, now and then any lower-case word of the lexicon."""
    if rng.lexicon and rng.random() < 0.4:
        return rng.choice(rng.lexicon).lower()
    return rng.choice(words)


def word(rng: Rng) -> str:
    return rng.choice(rng.choice((NOUNS, NOUNS, ADJECTIVES, VERBS))) if rng.random() < 0.8 else made_up(rng)


def noun(rng: Rng) -> str:
    return drawn(rng, NOUNS) if rng.random() < 0.9 else made_up(rng)


def adjective(rng: Rng) -> str:
    return drawn(rng, ADJECTIVES)


def name(rng: Rng) -> str:
    first = rng.choice(FIRST) if rng.random() < 0.7 else made_up(rng).capitalize()
    return f"{first} {(made_up(rng) + rng.choice(ENDINGS)).capitalize()}" if rng.random() < 0.75 else first


def phrase(rng: Rng) -> str:
    """Two to six words: a thing, or a thing in a place."""
    kind = rng.random()
    if kind < 0.35:
        return f"{adjective(rng)} {noun(rng)}"
    if kind < 0.6:
        return f"{noun(rng)} {rng.choice(PREPOSITIONS)} the {noun(rng)}"
    if kind < 0.8:
        return f"a {adjective(rng)} {noun(rng)} {rng.choice(PREPOSITIONS)} a {noun(rng)}"
    return " ".join(noun(rng) if rng.random() < 0.6 else adjective(rng) for _ in range(rng.randint(2, 5)))


def todo(rng: Rng) -> str:
    """A thing to do: ``call Anna``, ``renew the lease``."""
    verb = rng.choice(VERBS)
    what = rng.choice((lambda: name(rng), lambda: f"the {noun(rng)}", lambda: f"the {adjective(rng)} {noun(rng)}"))
    tail = f" {rng.choice(PREPOSITIONS)} {noun(rng)}" if rng.random() < 0.25 else ""
    return f"{verb} {what()}{tail}"


def sentence(rng: Rng) -> str:
    """A short statement, as in a message or a file."""
    return rng.choice(
        (
            lambda: f"the {noun(rng)} is {adjective(rng)}",
            lambda: f"please {todo(rng)}",
            lambda: f"{name(rng)} will {todo(rng)}",
            lambda: f"{noun(rng)} at {clock(rng)}",
            lambda: f"the {noun(rng)} costs {number(rng)}",
            lambda: f"the {adjective(rng)} {noun(rng)} {rng.choice(VERBS)}s {noun(rng)} on {date(rng)}",
            lambda: f"the {noun(rng)} is {rng.choice(PREPOSITIONS)} {noun(rng)} {number(rng)}",
            lambda: f"my {noun(rng)} {noun(rng)} is {token(rng)}",
            lambda: f"we {rng.choice(VERBS)} {rng.choice(PREPOSITIONS)} {adjective(rng)} {noun(rng)}",
            lambda: f"I am running late for the {noun(rng)}",
            lambda: phrase(rng),
        )
    )()


def topic(rng: Rng) -> str:
    """What one searches for: a phrase, or a named thing and what one wants to know of it."""
    if rng.random() < 0.5:
        return phrase(rng)
    named = " ".join(noun(rng).capitalize() for _ in range(rng.randint(1, 3)))
    return f"{named} {noun(rng)}" if rng.random() < 0.7 else named


def picture(rng: Rng) -> str:
    kind = rng.choice(("picture", "drawing", "image", "painting", "cartoon", "photo", "icon", "portrait", noun(rng)))
    return (
        f"{kind} {rng.choice(('of', 'of', 'showing', 'with', 'for'))} {rng.choice(('', 'a ', 'the '))}{phrase(rng)}"
    )


def movie(rng: Rng) -> str:
    kind = rng.choice(("video", "clip", "movie", "animation", "short film", noun(rng)))
    return (
        f"{kind} {rng.choice(('of', 'of', 'about', 'showing', 'for'))} {rng.choice(('', 'a ', 'the '))}{phrase(rng)}"
    )


def title(rng: Rng) -> str:
    return rng.choice((phrase(rng), f"{noun(rng)} with {name(rng)}", f"{adjective(rng)} {noun(rng)} {noun(rng)}"))


def token(rng: Rng) -> str:
    """A word, number or code, as stands in a file."""
    return rng.choice((noun, noun, code, number, clock, made_up))(rng)


def hunted(rng: Rng) -> str:
    """What one looks for in a file."""
    return rng.choice((noun, name, phrase, code, lambda rng: f"{adjective(rng)} {noun(rng)}"))(rng)


def place(rng: Rng) -> str:
    """A file or a folder."""
    return path(rng) if rng.random() < 0.6 else "/".join(noun(rng) for _ in range(rng.randint(1, 2)))


def number(rng: Rng) -> str:
    return str(rng.randrange(10 ** rng.randint(1, 5)))


def clock(rng: Rng) -> str:
    return f"{rng.randrange(24):02d}:{rng.choice((0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55)):02d}"


def date(rng: Rng) -> str:
    return f"{rng.randint(2023, 2028)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def moment(rng: Rng) -> str:
    return rng.choice((clock(rng), f"{date(rng)} {clock(rng)}", clock(rng)))


def phone(rng: Rng) -> str:
    digits = "".join(rng.choice("0123456789") for _ in range(9))
    return rng.choice(
        (f"+{digits[:2]} {digits[2:5]} {digits[5:]}", f"{digits[:3]}-{digits[3:7]}", f"555-{digits[:4]}")
    )


def stem(rng: Rng) -> str:
    joiner = rng.choice("_-_")
    return joiner.join(noun(rng) for _ in range(rng.randint(1, 2))) + (
        rng.choice(("", "", f"{joiner}{rng.randrange(100)}"))
    )


def path(rng: Rng) -> str:
    folders = "".join(f"{noun(rng)}/" for _ in range(rng.choice((0, 1, 1, 2))))
    root = rng.choice(("", "", "/"))
    return f"{root}{folders}{stem(rng)}.{rng.choice(EXTENSIONS)}"


def url(rng: Rng) -> str:
    scheme = rng.choice(("https://", "https://", "http://", "www."))
    tail = rng.choice(("", f"/{noun(rng)}", f"/{noun(rng)}/{stem(rng)}", f"/{stem(rng)}.html"))
    return f"{scheme}{rng.choice((noun, made_up))(rng)}.{rng.choice(DOMAINS)}{tail}"


def email(rng: Rng) -> str:
    return f"{made_up(rng)}@{noun(rng)}.{rng.choice(DOMAINS)}"


def code(rng: Rng) -> str:
    letters = "".join(rng.choice("abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.randint(1, 3)))
    return f"{letters}{rng.choice(('', '-', '_'))}{rng.randrange(10 ** rng.randint(1, 4))}"


def command(rng: Rng) -> str:
    return rng.choice(
        (
            lambda: f"ls {noun(rng)}",
            lambda: f"wc -l {path(rng)}",
            lambda: f"head -n {rng.randint(1, 20)} {path(rng)}",
            lambda: f"mkdir {noun(rng)}/{noun(rng)}",
            lambda: f"mv {path(rng)} {path(rng)}",
            lambda: f"cp {path(rng)} {noun(rng)}/",
            lambda: f"rm {path(rng)}",
            lambda: "pwd",
            lambda: "date",
            lambda: f"echo {word(rng)}",
        )
    )()


def recipient(rng: Rng) -> str:
    return rng.choice((name, email, email))(rng)


VALUES: tuple[Callable[[Rng], str], ...] = (
    word, noun, name, phrase, todo, sentence, number, clock, date, moment, phone, path, url, email, code, made_up,
)  # fmt: skip
