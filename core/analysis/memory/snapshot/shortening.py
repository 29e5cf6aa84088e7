"""Takes the events out of a pickled snapshot before the unpickler sees them.

A snapshot has up to millions of events of one form: the same keys, whole numbers, short strings,
and a list of frames that were pickled before. As dictionaries they cost most of a reading. A
``ShortenedFile`` reads them as columns, and hands the unpickler ``()`` for each, among bytes that
leave its memo as the event would have. All else passes as it is: an event unlike the others, and
what the file holds besides. For the opcodes see ``pickletools``; torch writes protocol 4.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import RawIOBase
from itertools import count as counter
from itertools import islice, pairwise
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ....errors import DamagedFileError
from ..history import Integers
from .opcodes import (
    DICTIONARY,
    END,
    FIRST_EVENT,
    INT,
    MEMOIZE,
    POP,
    STOP,
    WORD,
    Form,
    Words,
    code_of,
    form_at,
    memoizing,
    nothing,
    places_of,
    repeated,
    values_of,
    words_of,
)

CHUNK = 2**20
MAX_FRAME = 2**26
"""A frame of the pickler holds 64 KiB, and the end of what began in them."""
MAX_LAST = 2**16
"""Bytes of an event's last value; an event with a longer one passes as it is."""
SAMPLE, ALIKE = 48, 12
"""Dictionaries that are looked at for the form of the events, and how many must agree."""
LAST = re.compile(
    rb"(?:(?P<list>\]\x94(?:\((?:h.|j.{4})+e|(?:h.|j.{4})a)*)|(?P<pair>K.K.\x86\x94)|h.|j.{4})u",
    re.DOTALL,
)
"""An event's last value: a list of what was pickled before, one such thing, or a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortEvents:
    """The events that were taken out, in the order of the file; arrays have one element an event.

    Attributes:
        action: Index into ``actions``.
        numbers: Key to the whole numbers under it.
        last: Index into ``lasts``.
        actions: The distinct values under "action", the first key.
        lasts: The distinct values of the last key.
        keys: Of every event.
    """

    action: Integers
    numbers: dict[str, Integers]
    last: Integers
    actions: tuple[Any, ...]
    lasts: tuple[Any, ...]
    keys: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.action)


@dataclass(slots=True)
class _Lasts:
    """The distinct last values, each with what follows it.

    Attributes:
        numbers: Bytes to the number of a value.
        lengths: Bytes of the value and of the event's end; 0 if it is another kind of value.
        stand_ins: What keeps the memo right, ``WIDTH`` bytes each.
    """

    numbers: defaultdict[bytes, int] = field(
        default_factory=lambda: defaultdict(counter().__next__)
    )
    lengths: list[int] = field(default_factory=list)
    stand_ins: bytearray = field(default_factory=bytearray)

    WIDTH = 7

    def number(self, content: bytes, begins: Integers, ends: Integers) -> Integers:
        """The number of each value; it can end before ``ends``."""
        codes = map(content.__getitem__, map(slice, begins.tolist(), ends.tolist()))
        found = list(map(self.numbers.__getitem__, codes))
        for code in islice(self.numbers, len(self.lengths), None):
            number = len(self.lengths)
            match = LAST.match(code)
            self.lengths.append(match.end() if match else 0)
            if match and match["list"]:  # what recalls this list finds its number
                self.stand_ins += INT + (number + 1).to_bytes(4, "little") + MEMOIZE + POP
            elif match and match["pair"]:
                self.stand_ins += match["pair"] + POP
            else:
                self.stand_ins += nothing(self.WIDTH)
        return np.array(found, dtype=np.int64)

    def codes(self) -> Iterator[bytes]:
        """Bytes that make each value."""
        for code, length in zip(self.numbers, self.lengths, strict=True):
            yield code[: length - len(END)] if length else pickle.NONE


class ShortenedFile(RawIOBase):
    """The bytes of a pickle without most of its events; what they make goes to ``unpickled``.

    Args:
        file: At its beginning.

    Raises:
        DamagedFileError: While it is read: not of protocol 4 or 5, or cut off.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._parts = self._shortened(file)
        self._ready = memoryview(b"")
        self._form: Form | None = None
        self._has_begun = False
        self._actions: dict[int, int] = {}
        self._lasts = _Lasts()
        self._columns: list[list[Integers]] = []

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._ready = memoryview(part)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def unpickled(self, value: Any) -> tuple[Any, ShortEvents | None]:
        """What the file held, with ``()`` for each event that was taken out, and those events.

        In place of a list of frames there can be a number, an index into ``lasts`` plus 1.

        Raises:
            DamagedFileError: The keys of the events are no distinct strings.
        """
        raw, names, lasts = value
        if self._form is None or not self._columns:
            return raw, None
        count = len(self._form.keys)
        keys = names[:count]
        if keys[0] != "action" or set(map(type, keys)) != {str} or len(set(keys)) < count:
            raise DamagedFileError("its events have other keys")
        action, *numbers, last = map(np.concatenate, zip(*self._columns, strict=True))
        whole = [key for key, is_whole in zip(keys, self._form.is_whole, strict=False) if is_whole]
        return raw, ShortEvents(
            action=action,
            numbers=dict(zip(whole, numbers, strict=True)),
            last=last,
            actions=names[count:],
            lasts=lasts,
            keys=keys,
        )

    def _shortened(self, file: BinaryIO) -> Iterator[bytes]:
        rest = b""
        for part in _unframed(file):
            short, rest = self._shorten(rest + part, is_end=False)
            yield short
            if len(rest) > CHUNK:
                yield rest
                rest = b""
        short, rest = self._shorten(rest, is_end=True)
        if not short.endswith(STOP):
            raise DamagedFileError("it has no end")
        yield short[: -len(STOP)]
        # The memo alone knows what the events recalled.
        names = [*(self._form.keys if self._form else ()), *map(code_of, self._actions)]
        for codes in names, self._lasts.codes():
            yield pickle.MARK + b"".join(codes) + pickle.TUPLE
        yield pickle.TUPLE3 + STOP

    def _shorten(self, content: bytes, *, is_end: bool) -> tuple[bytes, bytes]:
        """The bytes without events, and the rest, in which an event can begin and not end."""
        words = words_of(content)
        self._form = self._form or self._form_in(content, words)
        starts = places_of(content, words, self._form.start if self._form else FIRST_EVENT[:WORD])
        if is_end:
            stop = len(content)
        else:
            stop = int(starts[-1]) if len(starts) else max(0, len(content) - len(FIRST_EVENT))
            starts = starts[:-1]
        if self._form and len(starts):
            return self._without_events(content, words, starts, stop, self._form), content[stop:]
        return content[:stop], content[stop:]

    def _form_in(self, content: bytes, words: Words) -> Form | None:
        """The form that most dictionaries have once the events began."""
        begin = 0
        if not self._has_begun:
            begin = content.find(FIRST_EVENT)
            self._has_begun = begin >= 0
        if not self._has_begun:
            return None
        starts = places_of(content, words, DICTIONARY)
        starts = starts[starts >= begin]
        sample = starts[:: max(1, len(starts) // SAMPLE)].tolist()
        forms = Counter(filter(None, (form_at(content, words, start) for start in sample)))
        return next((form for form, count in forms.most_common(1) if count >= ALIKE), None)

    def _without_events(
        self, content: bytes, words: Words, starts: Integers, stop: int, form: Form
    ) -> bytes:
        """The content up to ``stop``."""
        is_alike, at, values = values_of(words, starts, form)
        ends = np.minimum(np.append(starts[1:], stop), at + MAX_LAST)
        kept = np.flatnonzero(is_alike & (at < ends))
        lasts = self._lasts.number(content, at[kept], ends[kept])
        lengths = np.array(self._lasts.lengths, dtype=np.int64)[lasts]
        is_known = lengths > 0
        kept, lasts, lengths = kept[is_known], lasts[is_known], lengths[is_known]
        if not len(kept):
            return content[:stop]
        wholes = [value[kept] for value, whole in zip(values, form.is_whole, strict=True) if whole]
        texts = [
            value[kept].view(np.uint64)
            for value, whole in zip(values, form.is_whole, strict=True)
            if not whole
        ]
        distinct, action = np.unique(texts[0], return_inverse=True)
        codes = [self._actions.setdefault(word, len(self._actions)) for word in distinct.tolist()]
        self._columns.append([np.array(codes, dtype=np.int64)[action], *wholes, lasts])
        stand_ins = self._stand_ins(texts, lasts)
        return _replaced(content[:stop], starts[kept], at[kept] + lengths, stand_ins)

    def _stand_ins(self, texts: list[Words], lasts: Integers) -> NDArray[np.uint8]:
        """A row of bytes for each event: they memoize what it memoized, and push ``()``."""
        count = len(lasts)
        of_lasts = np.frombuffer(bytes(self._lasts.stand_ins), dtype=np.uint8)
        blocks = [
            repeated(pickle.NONE + MEMOIZE + POP, count),  # for the dictionary
            *(block for words in texts if (block := memoizing(words)) is not None),
            of_lasts.reshape(-1, _Lasts.WIDTH)[lasts],
            repeated(pickle.EMPTY_TUPLE, count),
        ]
        return np.concatenate(blocks, axis=1)


def _unframed(file: BinaryIO) -> Iterator[bytes]:
    """The pickle without its frames, in large parts."""
    head = file.read(2)
    if head not in (pickle.PROTO + b"\x04", pickle.PROTO + b"\x05"):
        raise DamagedFileError("not a pickle of protocol 4 or 5")
    parts, count = [head], 0
    while header := file.read(9):
        size = int.from_bytes(header[1:], "little")
        if not header.startswith(pickle.FRAME) or size > MAX_FRAME:
            raise DamagedFileError("something lies outside of its frames")
        parts.append(file.read(size))
        count += size
        if len(parts[-1]) < size:
            raise DamagedFileError("it is cut off")
        if count > CHUNK:
            yield b"".join(parts)
            parts, count = [], 0
    yield b"".join(parts)


def _replaced(content: bytes, begins: Integers, ends: Integers, rows: NDArray[np.uint8]) -> bytes:
    """The content with a row in place of each part from ``begins`` to ``ends``."""
    # Parts that touch are replaced at once.
    breaks = np.flatnonzero(ends[:-1] != begins[1:]) + 1
    parts, position = [], 0
    for first, behind in pairwise([0, *breaks.tolist(), len(begins)]):
        parts += [content[position : begins[first]], rows[first:behind].tobytes()]
        position = int(ends[behind - 1])
    return b"".join([*parts, content[position:]])
