"""``calculator``: arithmetic on a syntax tree that is walked here; nothing is ever handed to ``eval``.

Every step is bounded before it is taken: an integer that would have more than ``MAX_BITS`` bits is refused, so that
``9**9**9`` costs nothing. What remains takes microseconds, so no time limit is needed.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from firstchair.chat.messages import Tool
from firstchair.core.config import Strict
from firstchair.tools.base import Failure, ToolFailed, object_schema

MAX_CHARS = 1_000
"""Of an expression."""
MAX_BITS = 8_192
"""Of an integer, about 2,466 digits."""
MAX_PLACES = 300
"""Of ``round``."""

Number = int | float


class CalculatorSpec(Strict):
    """Has nothing to set."""

    type: Literal["calculator"] = "calculator"


class Calculator:
    """The tool."""

    timeout_s: float | None = None

    def __init__(self) -> None:
        self.tool = Tool(
            name="calculator",
            description="Evaluate one arithmetic expression in Python's notation: + - * / // % **, parentheses, "
            f"pi, e, tau, and the functions {', '.join(sorted({*FUNCTIONS, *_OF_MANY}))}. Integers are exact; "
            "angles are radians.",
            parameters=object_schema(
                {"expression": {"type": "string", "description": "For example: sqrt(2) * (3 + 4) ** 2"}},
                required=("expression",),
            ),
        )

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """The value."""
        return str(calculate(arguments["expression"]))

    async def close(self) -> None:
        """Nothing is held."""


def calculate(expression: str) -> Number:
    """The value of ``expression``. Raises ``ToolFailed``."""
    try:
        return _value(_parsed(expression))
    except ZeroDivisionError:
        raise _wrong("division by zero") from None
    except OverflowError:
        raise ToolFailed(Failure.TOO_LARGE, "the result is too large for a float; keep integers whole") from None
    except (TypeError, ValueError) as error:  # a function's own words: math domain error, wrong number of arguments
        raise _wrong(str(error)) from None
    except RecursionError:
        raise ToolFailed(Failure.TOO_LARGE, "nested too deeply; take it in steps") from None


def _wrong(message: str) -> ToolFailed:
    return ToolFailed(Failure.INVALID_ARGUMENTS, message)


def _parsed(expression: str) -> ast.expr:
    if len(expression) > MAX_CHARS:
        raise ToolFailed(
            Failure.TOO_LARGE, f"the expression has {len(expression):,} characters of at most {MAX_CHARS:,}"
        )
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL
        reason = getattr(error, "msg", str(error))
        raise _wrong(f"not an expression: {reason}; write plain Python arithmetic") from None
    except MemoryError:  # how CPython's parser says that something is nested too deeply
        raise ToolFailed(Failure.TOO_LARGE, "nested too deeply; take it in steps") from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=bool() | str() | bytes() | complex() | None):
            raise _wrong(f"{node.value!r} is not a number")
        case ast.Constant(value=int() | float() as number):
            return _bounded(number)
        case ast.Name(id=name):
            if name not in CONSTANTS:
                raise _wrong(f"unknown name {name!r}; there are {', '.join(CONSTANTS)} and the functions")
            return CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _value(inner)
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(op, _value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _called(name, arguments)
        case ast.Tuple():
            raise _wrong("found a comma; write numbers without thousands separators, one expression a call")
    raise _wrong(f"{type(node).__name__} is not arithmetic; use numbers, operators and the listed functions")


def _binary(op: ast.operator, left: Number, right: Number) -> Number:
    if isinstance(op, ast.BitXor):
        raise _wrong("^ is not a power here; write **")
    plain = _OPERATORS.get(type(op))
    if plain is None:
        raise _wrong(f"the operator {type(op).__name__} is not there; use + - * / // % **")
    if isinstance(left, int) and isinstance(right, int):
        if isinstance(op, ast.Pow):
            return _power(left, right)
        if isinstance(op, ast.Mult):
            _refuse_bits(left.bit_length() + right.bit_length())
    return _bounded(plain(left, right))


def _power(base: int, exponent: int) -> Number:
    if exponent > 0 and abs(base) > 1:
        # base ≥ 2^(bits-1), so the power has at least (bits-1)·exponent bits.
        _refuse_bits((base.bit_length() - 1) * exponent)
    return _bounded(base**exponent)


def _refuse_bits(bits: float) -> None:
    if bits > MAX_BITS:
        raise ToolFailed(
            Failure.TOO_LARGE,
            f"the result would have about {bits * math.log10(2):,.0f} digits; use logarithms",
        )


def _bounded(number: Any) -> Number:
    if isinstance(number, complex):
        raise _wrong("the result is not a real number")
    if isinstance(number, int):
        _refuse_bits(number.bit_length())
    elif not math.isfinite(number):
        raise ToolFailed(Failure.TOO_LARGE, "the result is not a finite number")
    return number  # type: ignore[no-any-return]


def _called(name: str, nodes: list[ast.expr]) -> Number:
    if name in _OF_MANY:
        items = nodes[0].elts if len(nodes) == 1 and isinstance(nodes[0], ast.List | ast.Tuple) else nodes
        if not items:
            raise _wrong(f"{name} needs a number")
        return _bounded(_OF_MANY[name]([_value(item) for item in items]))
    if name not in FUNCTIONS:
        raise _wrong(f"unknown function {name!r}; there are {', '.join(sorted({*FUNCTIONS, *_OF_MANY}))}")
    return _bounded(FUNCTIONS[name](*map(_value, nodes)))


def _factorial(n: int) -> int:
    if n > 1:
        _refuse_bits(math.lgamma(n + 1) / math.log(2))
    return math.factorial(n)


def _choose(n: int, k: int) -> int:
    if n > 1 and k > 0:
        _refuse_bits(_log2_choose(n, min(k, max(n - k, 0))))
    return math.comb(n, k)


def _log2_choose(n: int, k: int) -> float:
    """An upper bound of log2 of C(n, k) for small k: C(n, k) ≤ (e·n/k)^k."""
    return k * (math.log2(math.e) + math.log2(n) - math.log2(k)) if k else 0.0


def _permute(n: int, k: int | None = None) -> int:
    if n > 1:
        _refuse_bits(min(n, n if k is None else max(k, 0)) * math.log2(n))
    return math.perm(n, k)


def _lcm(*numbers: int) -> int:
    _refuse_bits(sum(number.bit_length() for number in numbers))
    return math.lcm(*numbers)


def _round(number: Number, places: int = 0) -> Number:
    if not isinstance(places, int) or abs(places) > MAX_PLACES:
        raise ValueError(f"round takes at most {MAX_PLACES} places")
    return round(number, places) if places else round(number)


CONSTANTS: Mapping[str, float] = MappingProxyType({"pi": math.pi, "e": math.e, "tau": math.tau})
FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "abs": abs,
        "acos": math.acos,
        "asin": math.asin,
        "atan": math.atan,
        "atan2": math.atan2,
        "cbrt": math.cbrt,
        "ceil": math.ceil,
        "comb": _choose,
        "cos": math.cos,
        "cosh": math.cosh,
        "degrees": math.degrees,
        "erf": math.erf,
        "exp": math.exp,
        "factorial": _factorial,
        "floor": math.floor,
        "fmod": math.fmod,
        "gamma": math.gamma,
        "gcd": math.gcd,
        "hypot": math.hypot,
        "isqrt": math.isqrt,
        "lcm": _lcm,
        "log": math.log,
        "log10": math.log10,
        "log2": math.log2,
        "perm": _permute,
        "radians": math.radians,
        "round": _round,
        "sin": math.sin,
        "sinh": math.sinh,
        "sqrt": math.sqrt,
        "tan": math.tan,
        "tanh": math.tanh,
        "trunc": math.trunc,
    }
)
"""Names → functions of numbers; those whose result can grow without bound are wrapped above."""
_OF_MANY: Mapping[str, Callable[[list[Number]], Number]] = MappingProxyType({"max": max, "min": min, "sum": sum})
"""Functions of any number of numbers, or of one list of them."""
_OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Any]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
        ast.Pow: operator.pow,
    }
)
