import asyncio
import math

import pytest

from firstchair.tools.base import Failure, ToolFailed
from firstchair.tools.calculator import MAX_BITS, Calculator, calculate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * -3", -9),
        ("7 // 2 + 7 % 2", 4),
        ("2 ** 100", 2**100),
        ("2 ** -2", 0.25),
        ("0.1 + 0.2", 0.1 + 0.2),
        ("sqrt(2) ** 2", math.sqrt(2) ** 2),
        ("factorial(20) / factorial(18)", 380.0),
        ("comb(52, 5)", 2_598_960),
        ("perm(10, 3)", 720),
        ("lcm(4, 6) + gcd(12, 18)", 18),
        ("round(2.675, 2)", 2.67),
        ("round(12345, -2)", 12300),
        ("max(1, 2.5) + min([3, 4]) + sum([1, 2, 3])", 11.5),
        ("log(100, 10)", 2.0),
        ("sin(pi / 2)", 1.0),
        ("(-1) ** 10 ** 9", 1),
        ("0 ** 10 ** 9", 0),
        (" 1_000 * 3 ", 3000),
    ],
)
def test_arithmetic_is_pythons(expression: str, value: float):
    found = calculate(expression)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("expression", "kind", "words"),
    [
        ("9**9**9", Failure.TOO_LARGE, "digits"),
        ("2**9999 * 2**9999", Failure.TOO_LARGE, "digits"),
        ("(2**8000) * (2**8000)", Failure.TOO_LARGE, "digits"),
        ("factorial(10**9)", Failure.TOO_LARGE, "digits"),
        ("factorial(factorial(100))", Failure.TOO_LARGE, "digits"),
        ("comb(10**9, 5*10**8)", Failure.TOO_LARGE, "digits"),
        ("perm(10**6)", Failure.TOO_LARGE, "digits"),
        ("lcm(2**8000, 3**5000)", Failure.TOO_LARGE, "digits"),
        ("round(5, -10**9)", Failure.INVALID_ARGUMENTS, "places"),
        ("2.0 ** 5000", Failure.TOO_LARGE, "float"),
        ("1e999", Failure.TOO_LARGE, "finite"),
        ("exp(1000)", Failure.TOO_LARGE, "float"),
        ("1 / 0", Failure.INVALID_ARGUMENTS, "division by zero"),
        ("sqrt(-1)", Failure.INVALID_ARGUMENTS, "math"),
        ("(-8) ** 0.5", Failure.INVALID_ARGUMENTS, "not a real number"),
        ("2 ^ 3", Failure.INVALID_ARGUMENTS, "write **"),
        ("1,234 * 2", Failure.INVALID_ARGUMENTS, "thousands separators"),
        ("5!", Failure.INVALID_ARGUMENTS, "not an expression"),
        ("__import__('os').system('id')", Failure.INVALID_ARGUMENTS, "not arithmetic"),
        ("().__class__", Failure.INVALID_ARGUMENTS, "not arithmetic"),
        ("open('/etc/passwd')", Failure.INVALID_ARGUMENTS, "unknown function 'open'"),
        ("x + 1", Failure.INVALID_ARGUMENTS, "unknown name 'x'"),
        ("'a' * 3", Failure.INVALID_ARGUMENTS, "not a number"),
        ("True + 1", Failure.INVALID_ARGUMENTS, "not a number"),
        ("1 if 2 else 3", Failure.INVALID_ARGUMENTS, "not arithmetic"),
        ("[x for x in 1]", Failure.INVALID_ARGUMENTS, "not arithmetic"),
        ("max()", Failure.INVALID_ARGUMENTS, "needs a number"),
        ("factorial(2.5)", Failure.INVALID_ARGUMENTS, "float"),
        ("sqrt(1, 2)", Failure.INVALID_ARGUMENTS, "argument"),
        ("1 << 10**9", Failure.INVALID_ARGUMENTS, "LShift"),
        ("(" * 400 + "1" + ")" * 400, Failure.INVALID_ARGUMENTS, "too many nested"),
        ("-" * 999 + "1", Failure.TOO_LARGE, "nested too deeply"),
        ("1+" * 600 + "1", Failure.TOO_LARGE, "1,201 characters"),
        ("1\0", Failure.INVALID_ARGUMENTS, "not an expression"),
        ("", Failure.INVALID_ARGUMENTS, "not an expression"),
    ],
)
def test_what_is_no_bounded_arithmetic_is_refused(expression: str, kind: Failure, words: str):
    with pytest.raises(ToolFailed) as failed:
        calculate(expression)
    assert failed.value.kind is kind
    assert words in str(failed.value)


def test_the_largest_integer_can_be_written_out():
    assert len(calculate_text(f"2 ** {MAX_BITS - 1}")) == 2466


def calculate_text(expression: str) -> str:
    return asyncio.run(Calculator().run({"expression": expression}))
