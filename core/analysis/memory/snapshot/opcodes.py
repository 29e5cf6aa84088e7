"""The opcodes of a pickle's dictionaries that are alike, by numpy: their form, and their values.

Every function looks at all of them at once. For the opcodes see ``pickletools``.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..history import Integers

Words = NDArray[np.uint64]

MAX_KEYS = 32
MEMOIZE, POP, STOP = pickle.MEMOIZE, pickle.POP, pickle.STOP
RECALL, RECALL_FAR = pickle.BINGET, pickle.LONG_BINGET
BYTE, SHORT, INT, LONG = pickle.BININT1, pickle.BININT2, pickle.BININT, pickle.LONG1
TEXT, PAIR, LIST, END = pickle.SHORT_BINUNICODE, pickle.TUPLE2, pickle.EMPTY_LIST, pickle.SETITEMS
DICTIONARY = pickle.EMPTY_DICT + MEMOIZE + pickle.MARK
FIRST_EVENT = DICTIONARY + TEXT + b"\x06action" + MEMOIZE
"""The first event spells its first key; the later ones recall it."""

WORD = 8
MASKS = np.array([2 ** (8 * width) - 1 for width in range(WORD + 1)], dtype=np.uint64)
"""Of so many bytes at the beginning of a word."""
PAIR_BYTES = 6
PAIR_MASK, PAIR_WORD = (
    np.uint64(int.from_bytes(code, "little"))
    for code in (b"\xff\0\xff\0\xff\xff", BYTE + b"\0" + BYTE + b"\0" + PAIR + MEMOIZE)
)


def _by_opcode(sizes: dict[bytes, int]) -> Words:
    table = np.zeros(256, dtype=np.uint64)
    for opcode, size in sizes.items():
        table[opcode[0]] = size
    return table


WHOLE_BYTES = _by_opcode({BYTE: 1, SHORT: 2, INT: 4})
"""Bytes of a whole number behind its opcode; LONG has their count there."""
RECALL_BYTES = _by_opcode({RECALL: 2, RECALL_FAR: 5})


@dataclass(frozen=True, slots=True)
class Form:
    """Keys of an event, as the bytes that recall them; and of each value but the last, whether it
    is a whole number."""

    keys: tuple[bytes, ...]
    is_whole: tuple[bool, ...]

    @property
    def start(self) -> bytes:
        return DICTIONARY + self.keys[0]

    @property
    def is_event(self) -> bool:
        """Whether it can have an action, an address and a size."""
        return len(self.is_whole) > 2 and not self.is_whole[0] and sum(self.is_whole) > 1


def words_of(content: bytes) -> Words:
    """The 8 bytes from each byte on as a number; zeros lie beyond the end."""
    return np.ndarray((len(content) + 1,), "<u8", content + bytes(WORD), strides=(1,))


def places_of(content: bytes, words: Words, code: bytes) -> Integers:
    """Where these bytes are, at most 8."""
    starts = np.flatnonzero(np.frombuffer(content, dtype=np.uint8) == code[0])
    is_there = words[starts] & MASKS[len(code)] == int.from_bytes(code, "little")
    return np.compress(is_there, starts)


def form_at(content: bytes, words: Words, start: int) -> Form | None:
    """The form of the dictionary there, if it can be an event's."""
    at = start + len(DICTIONARY)
    keys: list[bytes] = []
    is_whole: list[bool] = []
    while at < len(content) and len(keys) < MAX_KEYS and (width := int(RECALL_BYTES[content[at]])):
        keys.append(content[at : at + width])
        at = min(at + width, len(content))
        text, whole = (int(read(words, np.array([at]))[1][0]) for read in (_text, _whole))
        behind = at + (text or whole)
        if content[at : at + 1] == LIST or (behind > at and content[behind : behind + 1] == END):
            form = Form(tuple(keys), tuple(is_whole))
            return form if form.is_event else None
        if behind == at:
            return None
        is_whole.append(not text)
        at = behind
    return None


def values_of(
    words: Words, starts: Integers, form: Form
) -> tuple[NDArray[np.bool_], Integers, list[Integers]]:
    """Which dictionaries have that form, where the last value of each begins, and the others."""
    end = len(words) - 1
    at = starts + len(DICTIONARY)
    is_alike = np.ones(len(starts), dtype=np.bool_)
    values = []
    for number, key in enumerate(form.keys):
        word = words[np.minimum(at, end)]
        is_alike &= word & MASKS[len(key)] == int.from_bytes(key, "little")
        at += len(key)
        if number < len(form.is_whole):
            read = _whole if form.is_whole[number] else _text
            value, length = read(words, np.minimum(at, end))
            is_alike &= length > 0
            values.append(value)
            at += length
    return is_alike, at, values


def _whole(words: Words, at: Integers) -> tuple[Integers, Integers]:
    """The whole numbers there, and the bytes that they take; 0 where there is none."""
    word = words[at]
    opcode, count = word & MASKS[1], word >> 8 & MASKS[1]
    is_long = (opcode == LONG[0]) & (count <= WORD)
    size = np.where(is_long, count, WHOLE_BYTES[opcode])
    first = np.minimum(at + 1 + is_long, len(words) - 1)
    # To the top of the word and down again: an arithmetic shift repeats the sign.
    shift = 8 * (WORD - size)
    high = words[first] << shift
    is_signed = is_long | (opcode == INT[0])
    value = np.where(
        is_signed, high.view(np.int64) >> shift.view(np.int64), (high >> shift).view(np.int64)
    )
    return value, np.where(size > 0, size + 1 + is_long, 0).astype(np.int64)


def _text(words: Words, at: Integers) -> tuple[Integers, Integers]:
    """The bytes, as a number, of what is recalled, a short string or a pair; and their count, 0
    where there is none of these."""
    word = words[at]
    opcode, count = word & MASKS[1], word >> 8 & MASKS[1]
    size = np.where(word & PAIR_MASK == PAIR_WORD, PAIR_BYTES, RECALL_BYTES[opcode])
    is_text = (opcode == TEXT[0]) & (count <= WORD - 3)
    size = np.where(is_text, count + 3, size)
    is_memoized = word >> 8 * (size - is_text) & MASKS[1] == MEMOIZE[0]
    size = np.where(is_text & ~is_memoized, 0, size)
    return (word & MASKS[size]).view(np.int64), size.astype(np.int64)


def code_of(word: int) -> bytes:
    """The bytes of one that ``_text`` found."""
    words = np.array([word], dtype=np.uint64)
    return word.to_bytes(WORD, "little")[: int(_text(words, np.array([0]))[1][0])]


def memoizing(words: Words) -> NDArray[np.uint8] | None:
    """For each of these, a row of bytes that memoizes the same; None if none of them does."""
    is_same = bool((words == words[0]).all())
    distinct = words[:1] if is_same else np.unique(words)
    width = WORD + len(POP) + 2
    table = b""
    for code in map(code_of, distinct.tolist()):
        is_recalled = RECALL_BYTES[code[0]] > 0
        table += nothing(width) if is_recalled else code + POP + nothing(width - len(code) - 1)
    if table == nothing(width) * len(distinct):
        return None
    if is_same:
        return repeated(table, len(words))
    rows = np.frombuffer(table, dtype=np.uint8).reshape(-1, width)
    return rows[np.searchsorted(distinct, words)]


def nothing(count: int) -> bytes:
    """So many bytes, but not 1, that leave stack and memo as they are."""
    odd = count % 2
    return (BYTE + b"\0" + POP) * odd + (pickle.NONE + POP) * (count // 2 - odd)


def repeated(code: bytes, count: int) -> NDArray[np.uint8]:
    return np.broadcast_to(np.frombuffer(code, dtype=np.uint8), (count, len(code)))
