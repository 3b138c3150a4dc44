"""How secrets are hidden in text: in every encoding, truncated, in lines, and after a rotation."""

from __future__ import annotations

import base64
import json
import quopri
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler import secrecy as secrecy_module
from reconciler.byte_dumps import dumps_in
from reconciler.secrecy import (
    GRACE_SECONDS,
    HIDDEN,
    MIN_CHARACTERS,
    Search,
    Secrecy,
    complete,
    split_login,
    strings_in,
)
from tests.security.encodings import (
    BASE64,
    DUMPS,
    ENCODED_ONCE,
    ESCAPES,
    Encoding,
    base64_between,
    dump_like_xxd,
    encode_in_every_way,
)

TOKEN = "pl\"an'ted-in/a+var&able=<7f3a> 91c2%41\\n"
_CHARACTERS = st.sampled_from("abcXYZ019 \"'\\/&<>%+=-_.:;#?$äß€漢😀")
_LOOKS_ESCAPED = re.compile(r"[%=][0-9a-zA-Z]|\\|&[#\w]*;")  # decoded, it may be very short
_SECRETS = (
    st.text(_CHARACTERS, min_size=6, max_size=60)
    .map(lambda text: _LOOKS_ESCAPED.sub("-", text).strip())
    .filter(lambda text: len(text) >= MIN_CHARACTERS)
)
_ESCAPES = st.sampled_from(list(ESCAPES.values()))
_OUTER = st.sampled_from([each for name, each in ESCAPES.items() if name not in ENCODED_ONCE])
PEM = f"-----BEGIN PRIVATE KEY-----\n{base64.encodebytes(bytes(range(200))).decode()}-----END-----"


def test_a_secret_is_hidden_in_every_encoding() -> None:
    secrecy = Secrecy(TOKEN)
    hidden_texts = {
        name: secrecy.hide(f"«{encoding}»") for name, encoding in encode_in_every_way(TOKEN).items()
    }
    assert [name for name, hidden in hidden_texts.items() if HIDDEN not in hidden] == []
    assert {hidden_texts[name] for name in ESCAPES} == {f"«{HIDDEN}»"}


@pytest.mark.parametrize("inner", list(ESCAPES))
def test_a_soft_line_break_of_mail_within_an_escape_does_not_reveal_a_secret(inner: str) -> None:
    secrecy = Secrecy(f"a&b<c{TOKEN}😀")
    for before in range(76):
        text = "x" * before + ESCAPES[inner](f"a&b<c{TOKEN}😀")
        assert HIDDEN in secrecy.hide(quopri.encodestring(text.encode()).decode()), before


@given(secret=_SECRETS, outer=_OUTER, inner=_ESCAPES)
def test_any_secret_is_completely_hidden_in_nested_escapes(
    secret: str, outer: Encoding, inner: Encoding
) -> None:
    assert Secrecy(secret).hide(f"«{outer(inner(secret))}»") == f"«{HIDDEN}»"


@given(
    secret=_SECRETS,
    outer=_OUTER,
    before=st.binary(max_size=5),
    after=st.binary(max_size=5),
    url=st.booleans(),
)
def test_any_secret_is_hidden_in_base64_at_any_position(
    secret: str, outer: Encoding, before: bytes, after: bytes, url: bool
) -> None:
    encoded = base64_between(before, after, url=url)(secret)
    hidden = Secrecy(secret).hide(f"«{outer(encoded)}»")
    assert HIDDEN in hidden
    edges = len(encoded) - len(secret.encode()) * 8 // 6 + 2  # characters that are shared
    widest = max(len(outer(each)) for each in encoded)
    assert len(hidden) <= widest * edges + len(f"«{HIDDEN}»")


@given(
    secret=st.text("ghijklmnopqrstuvwxyzGHIJKLMNOPQRSTUVWXYZ", min_size=16, max_size=60),
    dump=st.sampled_from(list(DUMPS)),
    before=st.binary(max_size=40),
    after=st.binary(max_size=40),
    is_json=st.booleans(),
)
def test_any_secret_is_hidden_in_a_byte_dump_at_any_position(
    secret: str, dump: str, before: bytes, after: bytes, is_json: bool
) -> None:
    text = f"bad request 400:\n{DUMPS[dump](before + secret.encode() + after)}"
    if is_json:
        text = json.dumps(text)
    hidden = Secrecy(secret).hide(text)
    assert HIDDEN in hidden
    for start in range(len(secret) - 7):  # nor as text at the end of a line
        assert secret[start : start + 8] not in hidden


@settings(max_examples=2_000)
@given(st.text("09afx \n:-|,uzU+", max_size=60))
def test_each_decoded_byte_of_a_dump_has_a_position(text: str) -> None:
    content = text.encode()
    for dump in complete(dumps_in(content)):
        spans = complete(dump.spans())
        assert len(spans) == len(dump.content)
        assert all(0 <= start < end <= len(content) for start, end in spans)


_SLOW_TEXTS = [
    *("ab:", "ab " * 3, "10.0.0.1, ", "00000000  ", "ab:cd:ef ", "\n", "0x00,", "aa" * 8 + "-"),
    *("0000: 61 62 63 64 65 66\n", "0000: 61 62 63 64 65 66\\\\n", "61 62 63 64 65 66 zz"),
    *("00000000: 6162 6364 6566 6768 696a  abcdefghij\n", "1 2 3 4 5 6 7 x", "%61", "%2525252561"),
    *("\\", "\\u1234", "&amp;", "&abc;", "a\n", "=\n", "QUJDREVG\n", "012345", "6789abcdefghij"),
]


@pytest.mark.parametrize("text", _SLOW_TEXTS)
def test_the_time_of_a_search_is_proportional_to_the_text(text: str) -> None:
    secrecy = Secrecy("0123456789abcdefghij")

    def seconds(length: int) -> float:
        started_at = time.process_time()
        secrecy.hide((text * length)[:length])
        return time.process_time() - started_at

    seconds(1_000)
    short = max(0.001, min(seconds(30_000) for _ in range(3)))
    assert min(seconds(240_000) for _ in range(3)) < 24 * short


def _longest_piece(search: Search[Any]) -> tuple[float, float]:
    """Return the CPU time of the longest piece of a search, and of the whole search."""
    started_at = now = time.process_time()
    longest = 0.0
    for _ in search:
        now, cpu_before = time.process_time(), now
        longest = max(longest, now - cpu_before)
    return max(longest, time.process_time() - now), time.process_time() - started_at


@pytest.mark.parametrize("text", _SLOW_TEXTS)
def test_a_search_lets_other_work_run_every_few_milliseconds(text: str) -> None:
    secrecy = Secrecy("0123456789abcdefghij")
    plain = b"hello world, " * 19_000
    baseline = min(_longest_piece(secrecy.search_json(plain))[1] for _ in range(5))
    hostile = json.dumps((text * 250_000)[:250_000]).encode()
    longest = min(_longest_piece(secrecy.search_json(hostile))[0] for _ in range(3))
    assert longest < 40 * baseline  # a whole search takes 100 to 500 times as long


@pytest.mark.parametrize("encoding", ["as it is", "percent for every byte", "a hexadecimal dump"])
def test_hiding_a_secret_lets_other_work_run_every_few_milliseconds(encoding: str) -> None:
    secret = "kQ7vTz0mXw3pLr9bNc5hJd2gSf8yWe4u"
    secrecy = Secrecy(secret)
    baseline = min(_longest_piece(secrecy.search("hello world, " * 19_000))[1] for _ in range(5))
    text = (f"{ESCAPES[encoding](secret)} " * 8_000)[:250_000]
    longest = min(_longest_piece(secrecy.search_and_hide({"a": text}))[0] for _ in range(3))
    assert longest < 40 * baseline


def test_an_offset_of_any_size_is_searched() -> None:
    """The next offset shows how many bytes a line has."""
    secrecy = Secrecy("planted-token")
    lines = dump_like_xxd(b"planted-token").replace("00000000", f"{0:016}").rstrip()
    assert HIDDEN in secrecy.hide(f"{lines}\n{'f' * 16}: 6162 6364  abcd")


@given(secret=_SECRETS, encode=_ESCAPES, cut_length=st.integers(0, 30))
def test_a_truncated_secret_is_hidden(secret: str, encode: Encoding, cut_length: int) -> None:
    cut_length = max(
        0, min(cut_length, len(secret) - 12, len(secret) - len(secret.encode()) // 2 - 1)
    )
    truncated = secret[: len(secret) - cut_length]
    hidden = Secrecy(secret).hide(f"«{encode(truncated)}")
    assert hidden == f"«{HIDDEN}"


@given(encode=_ESCAPES, cut_length=st.integers(0, 10))
def test_a_secret_truncated_within_an_escape_is_hidden(encode: Encoding, cut_length: int) -> None:
    encoded = encode(TOKEN)
    hidden = Secrecy(TOKEN).hide(f"«{encoded[: len(encoded) - cut_length]}")
    assert hidden.startswith(f"«{HIDDEN}")
    assert len(hidden) <= len(f"«{HIDDEN},\n  0X6")


@given(st.text(_CHARACTERS))
def test_text_without_a_secret_stays_the_same_object(text: str) -> None:
    assert Secrecy("0123456789ABCDEF").hide(text) is text


def test_a_prefix_that_is_a_separate_word_is_not_hidden() -> None:
    secrecy = Secrecy("reconciler-token-7f3a91")
    for text in ("the reconciler", "reconciler-", "reconciler-token-of-ann"):
        assert secrecy.hide(text) == text
    assert secrecy.hide("reconciler-token-7f…") == f"{HIDDEN}…"


def test_each_long_line_of_a_secret_is_hidden() -> None:
    secrecy = Secrecy(PEM)
    first, second, *_ = PEM.splitlines()[1:]
    assert secrecy.hide(f"line 2 is {first}!") == f"line 2 is {HIDDEN}!"
    assert secrecy.hide(json.dumps(PEM)) == f'"{HIDDEN}"'
    assert secrecy.hide(f"{first} {second}") == f"{HIDDEN} {HIDDEN}"
    assert secrecy.hide(first + second) == HIDDEN


def test_the_marks_of_a_pem_file_are_not_hidden_in_other_files() -> None:
    public = PEM.replace(PEM[30:-10], "\nMIIB\n")
    assert Secrecy(PEM).hide(public) == public


def test_many_secrets_with_a_common_prefix_cost_no_more_than_one() -> None:
    secrecy = Secrecy()
    for number in range(50):
        secrecy.add(PEM.replace("\n", f"\n{number:08}", 1))
    started_at = time.process_time()
    for text in ("-" * 100_000, PEM[:27] * 4_000):
        assert secrecy.hide(text) is text
    assert time.process_time() - started_at < 2  # 100 s with an index of their first bytes


def test_the_password_of_a_login_is_hidden_without_its_user() -> None:
    assert Secrecy("ann:p4ss/w0rd").hide("no access with p4ss%2fw0rd") == f"no access with {HIDDEN}"
    secrecy = Secrecy("postgresql://ann:p4ss%2Fw0rd@db:5432/orders")
    assert secrecy.hide("p4ss/w0rd is wrong, p4ss%2Fw0rd") == f"{HIDDEN} is wrong, {HIDDEN}"
    assert secrecy.hide("postgresql://db:5432") == "postgresql://db:5432"


_PASSWORD = "gT5xQ8vL/m2Rz7Kp%4Wn9"


@given(user=st.text(), password=st.text(min_size=MIN_CHARACTERS))
def test_the_password_that_a_provider_uses_is_hidden_whatever_its_user(
    user: str, password: str
) -> None:
    secret = f"{user}:{password}".strip()
    login = split_login(secret)
    assert login is not None
    if len(login.password.strip()) >= MIN_CHARACTERS:
        assert login.password.strip() not in Secrecy(secret).hide(f"«{login.password}»")


@pytest.mark.parametrize(
    "secret",
    [
        f"git:{_PASSWORD}",
        f"git: {_PASSWORD}",
        *(f"{user}:{_PASSWORD}" for user in ("", "team/bot", "John Doe", "a\tb", "é", "a@b", "//")),
        f"postgresql://a@b:{quote(_PASSWORD, safe='')}@db:5432/orders",
        f"postgresql://app:{quote(_PASSWORD, safe='')}@db:5432/orders",
        f"# the databases\nURL=postgresql://app:{quote(_PASSWORD, safe='')}@db/a\nTIMEOUT=1\n",
    ],
)
def test_a_password_is_hidden_on_its_own_in_every_encoding(secret: str) -> None:
    secrecy = Secrecy(secret)
    encodings = encode_in_every_way(_PASSWORD)
    unhidden = [
        name for name, encoding in encodings.items() if HIDDEN not in secrecy.hide(f"«{encoding}»")
    ]
    assert unhidden == []


def test_a_secret_that_seems_to_contain_escapes_is_hidden_in_every_encoding() -> None:
    secret = 'Qx/9+"kZ&<p%41\\Lm7=?tR'
    secrecy = Secrecy(secret)
    encodings = encode_in_every_way(secret)
    shown = [
        name for name, encoding in encodings.items() if HIDDEN not in secrecy.hide(f"«{encoding}»")
    ]
    assert shown == []


def test_a_line_of_a_secret_is_hidden_in_base64_and_hexadecimal() -> None:
    secrecy = Secrecy(f"the account is\nann\n{_PASSWORD}\n")
    for encode in (*BASE64.values(), ESCAPES["hexadecimal"], ESCAPES["HEXADECIMAL"]):
        assert HIDDEN in secrecy.hide(f"«{encode(_PASSWORD)}»")


@pytest.mark.parametrize(
    ("secret", "is_hidden"), [("ab12", False), ("ab12c", False), ("ab12cd", True)]
)
def test_a_secret_of_fewer_than_six_characters_is_not_searched(
    secret: str, is_hidden: bool
) -> None:
    text = f"x{secret}, yy{secret}, zzz{secret}, {secret}"
    secrecy = Secrecy(secret)
    assert secrecy.is_in(text) == is_hidden
    assert secrecy.hide(text) == (text.replace(secret, HIDDEN) if is_hidden else text)
    assert Secrecy(None).hide(text) is text


def test_many_secrets_are_hidden_together() -> None:
    secrecy = Secrecy()
    tokens = [f"{number:04}-token-{number:04}" for number in range(500)]
    for token in tokens:
        secrecy.add(token)
    assert secrecy.hide(" ".join(tokens)) == " ".join([HIDDEN] * 500)
    assert repr(secrecy) == "Secrecy(500 secrets)"


def test_data_is_searched_in_values_keys_and_numbers() -> None:
    secrecy = Secrecy("12345678")
    data: dict[str, Any] = {
        "pin": 12345678,
        "\\u0031\\u0032345678": [("MTIzNDU2Nzg=", None, True, 1.5)],
    }
    assert secrecy.hide_in(data) == {"pin": HIDDEN, HIDDEN: [[f"{HIDDEN}g=", None, True, 1.5]]}
    assert secrecy.hide_in({"a": b"12345678"}) == {"a": f"b'{HIDDEN}'"}
    assert secrecy.hide_in(["12345678", "12345678 "], strings_in({"12345678": 1})) == [
        "12345678",
        f"{HIDDEN} ",
    ]


@given(secret=_SECRETS, encode=st.sampled_from([*ESCAPES.values(), *BASE64.values()]))
def test_a_secret_is_found_in_json_as_in_its_strings(secret: str, encode: Encoding) -> None:
    secrecy = Secrecy(secret)
    for ensure_ascii in (True, False):
        content = json.dumps({"a": [1, encode(secret)]}, ensure_ascii=ensure_ascii).encode()
        assert secrecy.is_in_json(content)
    assert not secrecy.is_in_json(b'{"a": 1, "b": "100 % & more\\n"}')


# --- remembered secrets


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrecy_module, "MAX_REMEMBERED", 3)


def _clock() -> tuple[list[float], Callable[[], float]]:
    now = [0.0]
    return now, lambda: now[0]


def test_a_replaced_secret_stays_hidden() -> None:
    secrecy = Secrecy("first-token")
    secrecy.add("second-token")
    assert secrecy.hide("first-token, second-token") == f"{HIDDEN}, {HIDDEN}"


@pytest.mark.usefixtures("small_limit")
def test_no_secret_is_dropped_within_its_grace_period() -> None:
    now, clock = _clock()
    secrecy = Secrecy(clock=clock)
    for number in range(10):
        secrecy.add(f"{number}-token")
    now[0] = GRACE_SECONDS
    secrecy.add("10-token")
    assert all(secrecy.is_in(f"{number}-token") for number in range(11))


@pytest.mark.usefixtures("small_limit")
def test_above_the_limit_secrets_that_were_replaced_long_ago_are_dropped() -> None:
    now, clock = _clock()
    secrecy = Secrecy("old-token", clock=clock)
    secrecy.add("used-token")
    now[0] = GRACE_SECONDS + 1
    secrecy.add("used-token")
    secrecy.add("new-token")
    assert secrecy.is_in("old-token")  # there is space
    secrecy.add("newest-token")
    assert [secrecy.is_in(f"{each}-token") for each in ("old", "used", "new", "newest")] == [
        False,
        True,
        True,
        True,
    ]


def test_the_time_to_add_a_secret_is_proportional_to_its_lines() -> None:
    """A certificate bundle or a database dump of up to 1 MiB may be a secret."""

    def seconds(lines: int) -> float:
        secret = "\n".join(f"line {number} of a long secret" for number in range(lines))
        start = time.process_time()
        Secrecy(secret)
        return time.process_time() - start

    few, many = (min(seconds(lines) for _ in range(3)) for lines in (300, 3_000))
    assert many < 30 * few  # before the fix: 100 times as long


@pytest.mark.parametrize("length", [40, 1_000, 5_000])
def test_a_secret_at_the_cut_is_hidden_although_hiding_shortens_the_text(
    length: int,
) -> None:
    secret = "".join(chr(ord("a") + number * number % 26) for number in range(length))
    secrecy = Secrecy(secret)
    for limit in (100, 16_384):
        for text in (secret * 500, f" {secret}" * 500, "x" * (limit - 5) + secret * 500):
            hidden = secrecy.hide_start(text, limit)
            assert len(hidden) <= limit
            assert secret[:20] not in hidden
