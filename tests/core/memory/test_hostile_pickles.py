"""Pickles made to hurt: every one is refused with a typed error, none runs or fills memory."""

from __future__ import annotations

import pickle
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.memory.snapshot_reading import read_snapshot

PROTOCOL = b"\x80\x04"
STOP = b"."
LARGE = 2**40

OPCODES = {
    "a global by name": b"cos\nsystem\n(S'touch proof'\ntR.",
    "a global from the stack": PROTOCOL + b"\x8c\x02os\x8c\x06system\x93\x8c\x0btouch proof\x85R.",
    "a class by INST": b"(S'touch proof'\nios\nsystem\n.",
    "a class by OBJ": b"(cos\nsystem\nS'touch proof'\no.",
    "an object by NEWOBJ": PROTOCOL + b"\x8c\x07pathlib\x8c\x04Path\x93)\x81.",
    "an extension code": PROTOCOL + b"\x82\x01.",
    "a persistent id": b"Pproof\n.",
    "state for a number": PROTOCOL + b"K\x01}b.",
    "the builtin eval": PROTOCOL + b"\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
    "a dotted name": PROTOCOL + b"\x8c\x08builtins\x8c\x0dstr.__class__\x93.",
    "a buffer that is elsewhere": b"\x80\x05\x97.",
    "a call of a string": PROTOCOL + b"\x8c\x01x)R.",
    "bytes longer than the file": PROTOCOL + b"\x8e" + struct.pack("<Q", LARGE) + b"x" + STOP,
    "text longer than the file": PROTOCOL + b"\x8d" + struct.pack("<Q", LARGE) + b"x" + STOP,
    "a bytearray longer than the file": b"\x80\x05\x96" + struct.pack("<Q", LARGE) + b"x" + STOP,
    "a frame longer than the file": PROTOCOL + b"\x95" + struct.pack("<Q", LARGE) + b"N" + STOP,
    "a number with no end": PROTOCOL + b"\x8b" + struct.pack("<i", 2**31 - 1) + b"\x01" + STOP,
    "a memo that is not there": PROTOCOL + b"j" + struct.pack("<I", 2**31) + STOP,
    "a memo far away": PROTOCOL + b"Nr" + struct.pack("<I", 2**31 - 1) + STOP,
    "an empty stack": PROTOCOL + b"0" + STOP,
    "marks without end": PROTOCOL + b"(" * 100_000 + STOP,
    "a list in itself": PROTOCOL + b"]\x94h\x00a.",
}


@pytest.mark.parametrize("data", OPCODES.values(), ids=OPCODES)
def test_it_is_refused_and_nothing_runs(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hostile.pickle"
    path.write_bytes(data)
    with pytest.raises(DamagedFileError):
        read_snapshot(path)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("where", ["as the whole", "as a stack"])
def test_deep_nesting_is_refused(tmp_path: Path, where: str) -> None:
    deep = b"]" * 200_000 + b"a" * 199_999
    if where == "as a stack":
        event = b"}(\x8c\x06action\x8c\x05alloc\x8c\x04sizeK\x01\x8c\x06frames" + deep + b"u"
        body = b"}(\x8c\x08segments]\x8c\x0ddevice_traces]](" + event + event + b"eau"
    else:
        body = deep
    path = tmp_path / "deep.pickle"
    path.write_bytes(PROTOCOL + body + STOP)
    with pytest.raises(DamagedFileError):
        read_snapshot(path)


READ_UNDER_LIMIT = f"""
import resource, sys
from pathlib import Path
from sysbench.core.memory.snapshot_reading import read_snapshot
from sysbench.core.errors import DamagedFileError
resource.setrlimit(resource.RLIMIT_AS, ({2**30}, {2**30}))
try:
    read_snapshot(Path(sys.argv[1]))
except DamagedFileError as error:
    print(error)
    sys.exit(3)
"""


def test_a_memory_bomb_ends_in_a_typed_error_under_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pickle"
    # Bytes of the file become many times as many of memory.
    path.write_bytes(PROTOCOL + b"](" + b"}" * 40_000_000 + b"e" + STOP)
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != 2**30
    command = [sys.executable, "-P", "-c", READ_UNDER_LIMIT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "bomb.pickle is not a memory snapshot" in done.stdout


def test_a_harmless_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fine.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    assert read_snapshot(path).stacks == []
