"""Arguments of events in a Perfetto trace: annotations by key, texts inline or by number."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.perfetto_stream import Buffer, Integers
from sysbench.core.trace.protobuf_scan import BYTES, FIXED64, VARINT, tag_of
from sysbench.core.trace.trace_events import NONE, Numbers
from sysbench.core.trace.trace_json import Args

MAX_DEPTH = 16
MAX_DENSE = 2**16

KEY_IID, KEY = tag_of(1, VARINT), tag_of(10, BYTES)
BOOL, UINT, INT, POINTER, TEXT_IID = (tag_of(n, VARINT) for n in (2, 3, 4, 7, 17))
DOUBLE = tag_of(5, FIXED64)
TEXT, NESTED, JSON, ENTRY, ELEMENT = (tag_of(n, BYTES) for n in (6, 8, 9, 11, 12))
WHOLE = (BOOL, UINT, INT, POINTER)

ATTRIBUTES = {field.encode_name: field.name for field in msgspec.structs.fields(Args)} | {
    "correlation_id": "correlation",
    "device id": "device",
    "stream id": "stream",
}
"""Attribute of `Args` by the key of an annotation."""
INTEGERS = (
    *("correlation", "cbid", "device", "stream", "sequence", "copied", "position"),
    *("external", "waits_for"),
    *("bytes", "address", "device_type", "device_id", "allocated", "reserved"),
)
"""Attributes that are columns; the others are in ``args``."""
OF_REQUESTS = INTEGERS[9:]
"""Attributes that instant events of memory have."""
NO_ARGS = Args()
COUNTS = ("in_elements", "out_elements", "group_size")


ARGUMENTS = (
    *INTEGERS,
    *sorted(set(ATTRIBUTES.values()) - set(INTEGERS)),
)
"""Attributes by number, those that are columns first."""
NUMBER_OF_KEY = {key: ARGUMENTS.index(name) for key, name in ATTRIBUTES.items()}
NUMBER_OF_BYTES = {key.encode(): number for key, number in NUMBER_OF_KEY.items()}


def _spans(buffer: Buffer, at: Integers, length: Integers) -> Iterator[bytes]:
    return map(buffer.data.__getitem__, map(slice, at.tolist(), (at + length).tolist()))


def _keys(buffer: Buffer, at: Integers, length: Integers) -> Integers:
    """Return the number of the key at each offset, or -1."""
    numbers = (NUMBER_OF_BYTES.get(key, NONE) for key in _spans(buffer, at, length))
    return np.fromiter(numbers, np.int64, len(at))


class Interned:
    """Numbers of `Numbers` by scope and iid."""

    def __init__(self) -> None:
        self._scopes: dict[int, dict[int, int]] = {}
        self._dense: dict[int, Integers] = {}

    def add(self, scope: int, iid: int, number: int) -> None:
        self._scopes.setdefault(scope, {})[iid] = number
        self._dense.pop(scope, None)

    def get(self, scope: int, iid: int) -> int:
        return self._scopes.get(scope, {}).get(iid, NONE)

    def find(self, scope: Integers, iid: Integers) -> Integers:
        """Return the numbers, -1 for an unknown iid."""
        if not len(iid):
            return iid
        first, least, most = int(scope[0]), int(iid.min()), int(iid.max())
        if least >= 0 and most < MAX_DENSE and (scope == first).all():
            return self._table(first, most)[iid]
        pairs = zip(scope.tolist(), iid.tolist(), strict=True)
        return np.fromiter((self.get(*pair) for pair in pairs), np.int64, len(iid))

    def _table(self, scope: int, most: int) -> Integers:
        table = self._dense.get(scope)
        if table is None or len(table) <= most:
            entries = {
                iid: number
                for iid, number in self._scopes.get(scope, {}).items()
                if iid < MAX_DENSE
            }
            table = np.full(max([most, *entries]) + 1, NONE)
            table[list(entries)] = list(entries.values())
            self._dense = {scope: table}
        return table


class Texts:
    """Names and categories, numbered as they appear, from text or bytes."""

    def __init__(self, is_wanted: Callable[[str], bool]) -> None:
        self.names: list[str] = []
        self.numbers = Numbers()
        self.of_bytes = _Encoded(self.number)
        self._is_wanted, self._flags = is_wanted, bytearray()

    def number(self, name: str) -> int:
        number = self.numbers[name]
        if number == len(self.names):
            self.names.append(name)
            self._flags.append(self._is_wanted(name))
        return number

    def find(self, buffer: Buffer, at: Integers, length: Integers) -> Integers:
        numbers = map(self.of_bytes.__getitem__, _spans(buffer, at, length))
        return np.fromiter(numbers, np.int64, len(at))

    def are_wanted(self, categories: Integers) -> NDArray[np.bool_]:
        if not self._flags:
            return np.zeros(len(categories), dtype=np.bool_)
        flags = np.frombuffer(self._flags, np.bool_)[categories]
        return np.asarray(flags & (categories != NONE))


class _Encoded(dict[bytes, int]):
    def __init__(self, number: Callable[[str], int]) -> None:
        self._number = number

    def __missing__(self, text: bytes) -> int:
        number = self[text] = self._number(text.decode("utf-8", "replace"))
        return number


class Annotations:
    """Reads the arguments of events; ``args`` has those that are no numbers, as columns number
    them."""

    def __init__(self, texts: Texts) -> None:
        self.args: list[Args] = []
        self.keys, self.values = Interned(), Interned()
        self._texts = texts
        self._number_of: dict[tuple[int, bytes], int] = {}

    def read(
        self,
        buffer: Buffer,
        at: Integers,
        length: Integers,
        owner: Integers,
        scope: Integers,
    ) -> dict[str, Integers]:
        """Return the columns of `INTEGERS`, and ``args``; ``owner`` is the row of each."""
        kept = self._may_be_read(buffer, at, length, scope[owner])
        at, length, owner = at[kept], length[kept], owner[kept]
        fields = buffer.fields(at, at + length)
        key = np.full(len(at), NONE)
        by_iid = fields.at(KEY_IID)
        if len(by_iid):
            of = fields.owner[by_iid]
            key[of] = self.keys.find(scope[owner[of]], fields.value[by_iid])
        inline = fields.at(KEY)
        key[fields.owner[inline]] = _keys(buffer, *fields.spans(inline))
        table = np.empty((len(INTEGERS), len(scope)), dtype=np.int64)
        table.T[:] = [getattr(NO_ARGS, name) for name in INTEGERS]
        is_number = (key != NONE) & (key < len(INTEGERS))
        whole = np.isin(fields.tag, WHOLE)
        whole &= is_number[fields.owner]
        of = fields.owner[whole]
        table[key[of], owner[of]] = fields.value[whole]
        is_number[of] = False
        for each in np.flatnonzero(is_number).tolist():  # text or a float
            begin = int(at[each])
            row = int(owner[each])
            value = self.value(buffer, begin, begin + int(length[each]), int(scope[row]))
            table[key[each], row] = whole_number(value)
        values = dict(zip(INTEGERS, table, strict=True))
        others = np.flatnonzero(key >= len(INTEGERS))
        values["args"] = np.full(len(scope), NONE)
        raw: dict[int, list[tuple[int, int, int]]] = {}
        columns = (owner[others], key[others], at[others], length[others])
        for row, number, begin, size in zip(*map(np.ndarray.tolist, columns), strict=True):
            raw.setdefault(row, []).append((number, begin, begin + size))
        for row, parts in raw.items():
            values["args"][row] = self._args_number(buffer, parts, int(scope[row]))
        return values

    def _may_be_read(
        self, buffer: Buffer, at: Integers, length: Integers, scope: Integers
    ) -> NDArray[np.bool_]:
        """Flag annotations but those that begin with the key of no attribute.

        Most of the arguments of a kernel are not read: finding their keys is all they cost.
        """
        word = buffer.words(at)
        tag, size = word & np.uint64(0xFF), (word >> np.uint64(8) & np.uint64(0xFF)).view(np.int64)
        short = (size < 0x80) & (length >= 2)
        flags = np.ones(len(at), dtype=np.bool_)
        by_iid = np.flatnonzero(short & (tag == KEY_IID))
        flags[by_iid] = self.keys.find(scope[by_iid], size[by_iid]) != NONE
        inline = np.flatnonzero(short & (tag == KEY) & (size + 2 <= length))
        flags[inline] = _keys(buffer, at[inline] + 2, size[inline]) != NONE
        return flags

    def _args_number(self, buffer: Buffer, parts: list[tuple[int, int, int]], scope: int) -> int:
        text = b"".join(buffer.data[at:end] for _, at, end in parts)

        def parse() -> Args:
            return Args(
                **{ARGUMENTS[key]: self.value(buffer, at, end, scope) for key, at, end in parts}
            )

        return self._number((scope, text), parse)

    def add(self, values: dict[str, object]) -> int:
        """Return the number of arguments by attribute."""
        return self._number((NONE, repr(values).encode()), lambda: Args(**values))

    def _number(self, key: tuple[int, bytes], parse: Callable[[], Args]) -> int:
        number = self._number_of.get(key)
        if number is None:
            number = self._number_of[key] = len(self.args)
            self.args.append(parse())
            self._texts.numbers.characters += len(key[1])
        return number

    def value(self, buffer: Buffer, at: int, end: int, scope: int, depth: int = 0) -> Any:
        """Decode the value of one annotation; one without a value is an empty list."""
        if depth > MAX_DEPTH:
            raise buffer.error("annotations are nested too deep", at)
        result: Any = None
        for field in buffer.scan(at, end):
            inner = (buffer, field.value, field.value + field.length, scope, depth + 1)
            match field.tag:
                case tag if tag == BOOL:
                    result = bool(field.value)
                case tag if tag in (UINT, POINTER):
                    result = field.value
                case tag if tag == INT:
                    result = field.value - (field.value >> 63 << 64)
                case tag if tag == DOUBLE:
                    result = struct.unpack("<d", struct.pack("<Q", field.value))[0]
                case tag if tag == TEXT:
                    result = buffer.data[field.value : inner[2]].decode("utf-8", "replace")
                case tag if tag == TEXT_IID:
                    number = self.values.get(scope, field.value)
                    result = "" if number == NONE else self._texts.names[number]
                case tag if tag == ELEMENT:
                    result = result if isinstance(result, list) else []
                    result.append(self.value(*inner))
                case tag if tag == ENTRY:
                    result = result if isinstance(result, dict) else {}
                    result[self.key(buffer, field.value, inner[2])] = self.value(*inner)
                case tag if tag == NESTED:
                    result = _nested(*inner[:3], depth + 1)
                case tag if tag == JSON:
                    result = _json(buffer.data[field.value : inner[2]])
        return [] if result is None else result

    def key(self, buffer: Buffer, at: int, end: int) -> str:
        for field in buffer.scan(at, end):
            if field.tag == KEY:
                text = buffer.data[field.value : field.value + field.length]
                return text.decode("utf-8", "replace")
        return ""


def whole_number(value: object) -> int:
    """Return a whole number of 64 bits, also from text; else -1."""
    if isinstance(value, str):
        text = value.removeprefix("-")
        value = int(value) if len(text) < 20 and text.isascii() and text.isdigit() else NONE
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and abs(value) < 2**63 else NONE


def pair_of_texts(buffer: Buffer, at: int, end: int) -> tuple[str, str]:
    texts = {
        field.tag: buffer.data[field.value : field.value + field.length]
        for field in buffer.scan(at, end)
    }
    name, value = (texts.get(tag_of(n, BYTES), b"").decode("utf-8", "replace") for n in (1, 2))
    return name, value


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text.decode("utf-8", "replace")


def _nested(buffer: Buffer, at: int, end: int, depth: int) -> Any:
    """Decode a value in the older form of nesting."""
    if depth > MAX_DEPTH:
        raise buffer.error("annotations are nested too deep", at)
    keys: list[str] = []
    values: list[Any] = []
    result: Any = []
    for field in buffer.scan(at, end):
        stop = field.value + field.length
        match field.tag:
            case tag if tag == tag_of(2, BYTES):
                keys.append(buffer.data[field.value : stop].decode("utf-8", "replace"))
            case tag if tag in (tag_of(3, BYTES), tag_of(4, BYTES)):
                values.append(_nested(buffer, field.value, stop, depth + 1))
            case tag if tag == tag_of(5, VARINT):
                result = field.value - (field.value >> 63 << 64)
            case tag if tag == tag_of(6, FIXED64):
                result = struct.unpack("<d", struct.pack("<Q", field.value))[0]
            case tag if tag == tag_of(7, VARINT):
                result = bool(field.value)
            case tag if tag == tag_of(8, BYTES):
                result = buffer.data[field.value : stop].decode("utf-8", "replace")
    if keys:
        return dict(zip(keys, values, strict=False))
    return values or result
