"""Patterns passed to `matches` follow RE2, and the time that they take is limited."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from events.manifest import InvalidManifestError
from infra.providers.rest.cost import Work
from infra.providers.rest.expressions import Expression, ExpressionError, ExpressionWorkError
from infra.providers.rest.patterns import PatternError, read_pattern

HOSTS = [f"h{number}.example.org" for number in range(490)]


@contextmanager
def _cpu_limit(seconds: float) -> Generator[None]:
    started_at = time.process_time()
    yield
    assert time.process_time() - started_at < seconds


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ("b+", "abba", True),
        (r"^[\w.-]{1,63}$", "a_b.c-9", True),
        (r"^[\w.-]{1,63}$", "a" * 64, False),
        (r"\w|\d|\s", "é٣\u00a0", False),
        (r"^\W\D\S$", "éée", True),
        (r"^[^\w]$", "é", True),
        (r"^[\W]$", "é", True),
        (r"^\pL{2}\p{Nd}$", "éß٣", True),
        ("(?i)^STRASSE$", "strasse", True),
        (r"^[]a\]-]+[^]a]$", "]a-b", True),
        (r"^[[:alpha:]_]+$", "a_b", True),
        (r"^\x{1F600}\x41$", "😀A", True),
        (r"^(?P<one>a|b){2,}(?:c)(?s:.)$", "abc\n", True),
        (r"^\{\}}$", "{}}", True),
    ],
)
def test_a_pattern_has_the_meaning_that_re2_defines(pattern: str, text: str, is_match: bool):
    assert read_pattern(pattern).is_in(text) is is_match


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (r"\pL{1,63}", "has a size of 37800 after its repetitions are expanded"),
        ("((a{9}){90}){9}", "has a size of "),
        ("(a(bc){9,})[^x]{500}", "has a size of "),
        (r"(?i)[\x{80}-\x{10FFFF}]", "has a size of "),
        ("a" * 1001, "has 1001 characters"),
        (r"(a)\1", "backreferences are not supported"),
        ("(?=a)", "no lookaround"),
        ("(?x) a { 1000 }", "is not an RE2 regular expression"),
        (r"(?x-u)a", "is not an RE2 regular expression"),
        ("a{ 1000 }", "is not an RE2 regular expression"),
        (r"[a-\w]", "invalid range"),
        (r"[\w-z]", "invalid range"),
        ("a)", "is not an RE2 regular expression"),
        ("(a", "unclosed group"),
    ],
)
def test_a_pattern_that_is_invalid_or_too_large_is_refused(pattern: str, problem: str):
    with _cpu_limit(1), pytest.raises(PatternError, match=problem):
        read_pattern(pattern).is_in("a")


def test_the_time_a_pattern_takes_is_proportional_to_its_size():
    rng = random.Random(3)
    accepted = 0
    for _ in range(1000):
        try:
            pattern = read_pattern(_random_pattern(rng, 3))
            with _cpu_limit(0.02 + pattern.size * 10e-6):
                pattern.is_in("a")
            accepted += 1
        except PatternError:
            continue
    assert accepted > 200


def _random_pattern(rng: random.Random, levels: int) -> str:
    atoms = ["a", "K", "é", ".", *(rf"\{letter}" for letter in "wWdDsSbB"), r"\pL", r"\P{Greek}"]
    atoms += ["[a-z]", "[^a]", r"[\w.-]", r"[^\w]", "[à-ž]", r"[\x{80}-\x{ffff}]", "[[:^digit:]]"]
    atoms += ["^", "$", "(?i)", "[]a]", "[^]a]", r"\x41", r"\x{1F600}", "-", "|", "/"]
    counts = ["", "", "*", "+", "?", "*?", "{2}", "{3,}", "{0,7}", "{1,63}", "{300}", "{1000}"]
    pattern = ""
    for _ in range(rng.randint(1, 4)):
        atom = rng.choice(atoms)
        if levels and rng.random() < 0.5:
            group = rng.choice(["(", "(?:", "(?i:"])
            atom = f"{group}{_random_pattern(rng, levels - 1)})"
        pattern += atom + rng.choice(counts)
    return pattern


def test_an_operators_pattern_is_fast_on_many_strings():
    hosts = Expression(r"a.filter(h, h.matches('^[\\w.-]{1,63}$'))", "here", {"a"})
    with _cpu_limit(1):
        assert hosts.value({"a": HOSTS}) == HOSTS


@pytest.mark.parametrize(
    "pattern", [r"\w{150}", r"\pL{150}", r"\W{150}", r"(?i)\w{100}", "(x*y*)*z", "(" * 600, r"\pL"]
)
@pytest.mark.parametrize(
    "text",
    [
        "a.filter(x, b.exists(p, x.matches(p)))",
        "a.filter(x, b.exists(p, x . //\n matches\n(p)) || true)",
        "a.filter(x, b.exists(p, matches(x, p)))",
    ],
)
def test_a_tenants_patterns_are_fast_or_refused(text: str, pattern: str):
    expression = Expression(text, "here", {"a", "b"})
    patterns = [f"{pattern}{number}" for number in range(50)]
    with _cpu_limit(1):
        try:
            assert len(expression.value({"a": HOSTS[:50], "b": patterns})) in (0, 50)
        except ExpressionError as error:
            problem = str(error)
        else:
            problem = ""
    assert not problem or "too long" in problem or "size" in problem or "not an RE2" in problem


def test_the_cost_of_a_long_string_is_multiplied_by_the_pattern_size():
    expression = Expression("t.matches('[ab]*a[ab]{1000}c')", "here", {"t"})
    assert expression.value({"t": "ab" * 100}) is False
    rng = random.Random(1)
    text = "".join(rng.choice("ab") for _ in range(100_000))
    with _cpu_limit(0.5), pytest.raises(ExpressionWorkError, match="match simpler patterns"):
        expression.value({"t": text})


def test_a_literal_pattern_is_checked_when_the_expression_is_compiled():
    with pytest.raises(InvalidManifestError, match=r"here: pattern '.*' has a size of 37800"):
        Expression(r"a.matches('\\pL{1,63}')", "here", {"a"})
    with pytest.raises(InvalidManifestError, match=r"backreferences"):
        Expression(r"a.matches(r'(a)\1')", "here", {"a"})


def test_an_invalid_pattern_is_an_error_that_nothing_hides_or_logs(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    expression = Expression("a.matches(b) || true", "here", {"a", "b"})
    for pattern in ("(", 1):
        with pytest.raises(ExpressionError, match="failed: "):
            expression.value({"a": "x", "b": pattern})
    assert not caplog.records
    assert capfd.readouterr().err == ""


COSTLY: list[tuple[str, dict[str, Any]]] = [
    ("+".join(["t"] * 33), {"t": "x" * 250_000}),
    ("||".join(["d.k == 5"] * 80), {"d": {f"k{number}": number for number in range(490)}}),
    ("l.map(i, {'a': i, 'b': i, 'c': i, 'd': [i, i, i, i]})", {"l": list(range(490))}),
    ("l.exists(i, l[i].size() > 9)", {"l": [[number] * 19 for number in range(490)]}),
    ("l.exists(i, o.l[i] == '')", {"l": list(range(490)), "o": {"l": ["x" * 500] * 490}}),
]


@pytest.mark.parametrize(("text", "variables"), COSTLY)
def test_expressions_with_a_shared_time_limit_stay_within_it(text: str, variables: dict[str, Any]):
    """Copies of long strings and containers count, not only the number of values."""
    expression = Expression(text, "here", variables)
    work = Work()
    with _cpu_limit(4), pytest.raises(ExpressionError):  # the limit is 0.2 s
        _ = [expression.value(variables, work) for _ in range(2000)]
