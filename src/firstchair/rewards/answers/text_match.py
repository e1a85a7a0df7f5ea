"""Short answers as text: exact match and token F1 as SQuAD defines them (Rajpurkar et al. 2016, section 6.1), but for
punctuation that a number or a name means something by.
"""

from __future__ import annotations

import re
import string
from collections import Counter

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# SQuAD removes these too, and takes 15 for 1.5, 5 for -5, C for C++ and Na for Na+.
_MEANT = r"(?<=\d)[.:/\-](?=\d)|(?<![\w)])-(?=\d)|(?<=\w)[+#]+"
_PUNCTUATION = re.compile(rf"({_MEANT})|[{re.escape(string.punctuation)}]")


def normal_text(text: str) -> str:
    """Lower case without punctuation, articles and surplus white space."""
    return " ".join(_ARTICLES.sub(" ", _PUNCTUATION.sub(lambda match: match[1] or "", text.lower())).split())


def exact_match(gold: str, answer: str) -> bool:
    """Whether both are equal once normalised; texts of which nothing is left (``+``, ``the``), as they are."""
    left, right = normal_text(gold), normal_text(answer)
    return left == right if left or right else gold.strip() == answer.strip()


def token_f1(gold: str, answer: str) -> float:
    """Harmonic mean of precision and recall of the answer's words, each counted as often as it occurs: 0 to 1."""
    left, right = normal_text(gold).split(), normal_text(answer).split()
    if not left or not right:
        return float(exact_match(gold, answer))
    shared = sum((Counter(left) & Counter(right)).values())
    # 2PR / (P + R) with P = shared / |right| and R = shared / |left|.
    return 2 * shared / (len(left) + len(right))
