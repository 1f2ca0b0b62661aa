"""Ways to spoil an input: values, types, extremes, structure and bytes. The same random numbers spoil the same way."""

from __future__ import annotations

import random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 0.0, -0.0, 0.5, 1.5, 1e-9, 1e-300, 1e-320, 1e9, 1e18, 1e30, 1e300, 1.7e308, 255, 65_536, 2**31,
    2**31 - 1, 2**32, 2**53 + 1, 2**63, 2**64, 10**19, 10**40, 10**400, 100_000, 10_000_000, 4_294_967_296,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", " ", "x", "none", "null", "true", "auto", "nan", "inf", "1e400", "0x10", "1_000", "\uff11\uff12", "-5", "1e3",
    "0.0", "9" * 5000, "\x1b]0;title\x07", "\x9b31m", "\u202ename", "a\nb", "a\tb", "n" * 100_000, "../../etc/passwd",
    "/dev/zero", "/tmp", "=1+1", "%s%n", "{0}", "32M tokens", "1 tokens", "0 sequences", "100000000 sequences",
    "2147483648", "1e300d", "5us", "0s", "1e-300s", "36501d", "9999999TB/s", "1B", "1e18B", "0W", "1e30TFLOP/s",
    "0.001Gbps", "8K", "2M", "65536M", "1%",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [1],
    {"a": 1},
    ["x", None],
    [[[[]]]],
    {"a": {"a": {"a": {}}}},
)


def other_value(dice: random.Random, old: Any) -> Any:
    """Something else in the place of *old*: near it, an extreme, or another type."""
    if isinstance(old, bool):
        return not old if dice.random() < 0.5 else dice.choice(OTHERS + NUMBERS[:12])
    roll = dice.random()
    if isinstance(old, int | float) and abs(old) < 1e250 and roll < 0.5:
        return dice.choice(
            (
                old * 2,
                old * 4,
                old + 1,
                old - 1,
                old // 2,
                old / 3,
                -old,
                old * 10.0 ** dice.randint(-30, 30),
                old * 100,
            )
        )
    if isinstance(old, str) and roll < 0.5:
        return spoiled_text(dice, old)
    pool = NUMBERS if roll < 0.7 else TEXTS if roll < 0.9 else OTHERS
    return dice.choice(pool)


def spoiled_text(dice: random.Random, text: str) -> str:
    """A text with another number, without its unit, doubled, cut, or with a character that does not belong there."""
    if text[:1].isdigit() and dice.random() < 0.4:  # another quantity with the same unit
        return (
            f"{dice.choice((1, 2, 3, 7, 10, 100, 1000, 1e6, 1e9, 1e-3, 1e-6)):g}{text.lstrip('0123456789.')}"
        )
    digits = [i for i, character in enumerate(text) if character.isdigit()]
    if digits and dice.random() < 0.6:
        place = dice.choice(digits)
        return (
            text[:place]
            + dice.choice(("0", "9", "99999999999", "-1", "e300", ".5", "1e-300", ""))
            + text[place + 1 :]
        )
    place = dice.randint(0, len(text))
    return dice.choice(
        (text[:place], text * 2, text[:place] + dice.choice(TEXTS) + text[place:], text.upper())
    )


def spoiled_document(dice: random.Random, document: Any) -> Any:
    """A copy of nested lists and mappings with one or a few things changed."""
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        document = _spoiled_once(dice, document)
    return document


def _spoiled_once(dice: random.Random, document: Any) -> Any:
    if isinstance(document, dict) and document and dice.random() < 0.93:
        key = dice.choice(list(document))
        changed = dict(document)
        roll = dice.random()
        if isinstance(document[key], dict | list) and roll < 0.8:
            changed[key] = _spoiled_once(dice, document[key])
        elif roll < 0.08:
            del changed[key]
        elif roll < 0.12:
            changed[dice.choice(TEXTS[:20])] = changed.pop(key)
        elif roll < 0.15:
            changed[dice.choice(list(document))] = document[key]
        else:
            changed[key] = other_value(dice, document[key])
        return changed
    if isinstance(document, list) and document and dice.random() < 0.93:
        place = dice.randrange(len(document))
        changed_list = list(document)
        roll = dice.random()
        if roll < 0.1:
            del changed_list[place]
        elif roll < 0.2:
            changed_list *= dice.choice((2, 100))
        else:
            changed_list[place] = _spoiled_once(dice, document[place])
        return changed_list
    return other_value(dice, document)


def spoiled_bytes(dice: random.Random, content: bytes) -> bytes:
    """A copy with bits turned, a piece lost, doubled or put in."""
    data = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 8))):
        place = dice.randrange(len(data) + 1)
        roll = dice.random()
        if roll < 0.5 and place < len(data):
            data[place] ^= 1 << dice.randrange(8)
        elif roll < 0.65:
            del data[place : place + dice.choice((1, 4, 100, 10**6))]
        elif roll < 0.8:
            piece = data[place : place + dice.choice((1, 30, 1000))]
            data[place:place] = piece * dice.choice((1, 1, 50))
        else:
            data[place:place] = dice.choice(
                (b"\0", b"\xff\xfe", b"\r\n", b",", b'"', b"9" * 40, b"[" * 2000, b"\x1b[2J")
            )
    return bytes(data)
