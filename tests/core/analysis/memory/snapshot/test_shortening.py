"""A snapshot that is read past the unpickler is the one that the unpickler makes."""

from __future__ import annotations

import gzip
import io
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.analysis.memory.snapshot.contents import Snapshot
from sysbench.core.analysis.memory.snapshot.reading import read_snapshot, snapshot_from
from sysbench.core.analysis.memory.snapshot.shortening import ShortenedFile
from sysbench.core.errors import DamagedFileError

ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "snapshot")
BOUNDS = [2**bits + more for bits in (7, 8, 15, 16, 31, 32, 39, 47) for more in (-1, 0, 1)]
COLUMNS = ("move", "reserve", "address", "size", "time_us")
Raw = dict[str, Any]


def fresh(text: str) -> str:
    """An equal string that is another object, as C++ makes one for each event."""
    return "".join(list(text))


def torch_like(seed: int, events: int, devices: int = 1) -> Raw:
    """A snapshot with what torch shares and what it does not; one of three is without stacks.

    Keys, actions and frames are shared; a list of frames is, now and then; the other strings and
    the pool are not. A few events are of other forms.
    """
    rng = random.Random(seed)
    frames = [{"filename": f"m{n % 7}.py", "line": n, "name": f"f{n}"} for n in range(400)]
    stacks = [rng.choices(frames, k=rng.choice((1, 2, 3, 30))) for _ in range(60)]
    numbers = [0, 1, 255, *BOUNDS]

    def event() -> Raw:
        found = {
            "action": rng.choice(ACTIONS),
            "addr": rng.choice(numbers),
            "size": rng.choice(numbers),
            "stream": rng.choice((0, -1, 2**46)),
            "time_us": 1_700_000_000_000_000 + rng.randrange(2**32),
            "compile_context": fresh(rng.choice(("N/A", "0/1"))),
            "user_metadata": fresh("" if rng.randrange(20) else "step one"),
            "pool_id": (0, rng.choice((0, 3))),
        }
        stack = rng.choice(stacks)
        if not seed % 3:
            return found
        match rng.randrange(40):
            case 0:
                return {"action": "oom", "device_free": 5, "size": 7, "time_us": 3, "frames": stack}
            case 1:
                return found
            case 2:
                return found | {"frames": []}
            case 3:
                return found | {"frames": [{"filename": "new.py", "line": 1, "name": "new"}]}
            case number:
                return found | {"frames": stack if number % 2 else list(stack)}

    traces = [[event() for _ in range(events)] for _ in range(devices)]
    blocks = [
        {
            "address": one["addr"],
            "size": one["size"],
            "requested_size": one["size"],
            "state": rng.choice(("active_allocated", "inactive")),
            "frames": one.get("frames", []),
        }
        for one in traces[-1]
        if "addr" in one
    ][::9]
    segment = {"device": 0, "address": 1, "total_size": 2**40, "blocks": blocks}
    parts = [("segments", [segment]), ("device_traces", traces)]
    return dict(parts if seed % 2 else parts[::-1])


def told(snapshot: Snapshot) -> Raw:
    """All that it says, with each stack in place of its number."""
    stacks = [*snapshot.stacks, None]  # -1 is none
    return {
        "events": [
            {name: getattr(events, name).tolist() for name in COLUMNS}
            | {"stack": [stacks[number] for number in events.stack.tolist()]}
            for events in snapshot.events
        ],
        "in use": {
            device: [(one.address, one.size, one.requested, stacks[one.stack]) for one in blocks]
            for device, blocks in snapshot.in_use.items()
        },
        "reserved": [snapshot.peak_reserved_bytes(device) for device in snapshot.used_devices],
    }


def taken_out(path: Path) -> int:
    """Events that the unpickler did not see."""
    with path.open("rb") as file:
        short = ShortenedFile(file)
        _, events = short.unpickled(pickle.load(io.BufferedReader(short)))
    return len(events) if events else 0


def written(path: Path, raw: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(raw, protocol=protocol))
    return path


@given(seed=st.integers(0, 2**32), events=st.integers(0, 300), devices=st.integers(1, 3))
def test_it_says_what_the_unpickled_one_says(
    tmp_path_factory: pytest.TempPathFactory, seed: int, events: int, devices: int
) -> None:
    raw = torch_like(seed, events, devices)
    path = tmp_path_factory.mktemp("alike") / "snapshot.pickle"
    protocol = seed % 4 + 2
    assert told(read_snapshot(written(path, raw, protocol))) == told(snapshot_from(raw))
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert told(read_snapshot(path)) == told(snapshot_from(raw))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_many_events_few_are_unpickled(tmp_path: Path, seed: int) -> None:
    raw = torch_like(seed, 30_000)
    path = written(tmp_path / "large.pickle", raw)
    assert path.stat().st_size > 2 * 2**20  # it is read in parts
    # One of 20 has a long string, four of 40 have another form, and some end a part of the file.
    assert taken_out(path) > 0.8 * 30_000
    assert told(read_snapshot(path)) == told(snapshot_from(raw))


def test_actions_that_are_no_shared_strings_are_read_too(tmp_path: Path) -> None:
    raw = torch_like(3, 2_000)
    for event in raw["device_traces"][0]:
        event["action"] = fresh(event["action"])
    path = written(tmp_path / "fresh.pickle", raw)
    assert told(read_snapshot(path)) == told(snapshot_from(raw))


FIRST = {"filename": "a.py", "line": 1, "name": "f"}


def events(count: int, **more: Any) -> list[Raw]:
    return [
        {"action": "alloc", "addr": 512 * n, "size": 100, "time_us": n} | more for n in range(count)
    ]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"frames": [FIRST], "kind": 7}, id="frames that are not last"),
        pytest.param({"kind": None, "frames": [FIRST]}, id="a value that is nothing"),
        pytest.param({"kind": 2.5, "frames": [FIRST]}, id="a number with a point"),
        pytest.param({"size": -5}, id="a size that no allocator has"),
        pytest.param({"addr": "here"}, id="an address that is text"),
        pytest.param({"time_us": 2**60}, id="a time that no clock has"),
        pytest.param({"size": 2**70}, id="a size of more than eight bytes"),
        pytest.param({"action": 5}, id="an action that is a number"),
    ],
)
def test_what_is_unlike_torch_ends_as_it_ends_unpickled(tmp_path: Path, change: Raw) -> None:
    raw = {"segments": [], "device_traces": [events(200, **change)]}
    path = written(tmp_path / "odd.pickle", raw)
    try:
        expected = told(snapshot_from(pickle.loads(path.read_bytes())))
    except DamagedFileError:
        with pytest.raises(DamagedFileError):
            read_snapshot(path)
    else:
        assert told(read_snapshot(path)) == expected


def test_what_looks_like_an_event_elsewhere_is_not_lost(tmp_path: Path) -> None:
    trace = events(200, stream=0, frames=[FIRST])
    raw = {"segments": [], "device_traces": [trace], "others": events(50, stream=0, frames=[])}
    path = written(tmp_path / "elsewhere.pickle", raw)
    assert told(read_snapshot(path)) == told(snapshot_from(raw))


def test_an_event_that_is_in_a_trace_twice_counts_twice(tmp_path: Path) -> None:
    trace = events(200, stream=0, frames=[FIRST])
    raw = {"segments": [], "device_traces": [trace, [*trace[:3], trace[0]]]}
    path = written(tmp_path / "twice.pickle", raw)
    assert told(read_snapshot(path)) == told(snapshot_from(raw))


@pytest.mark.parametrize("cut", [2, 11, 5_000, -100, -1])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "cut.pickle", torch_like(5, 2_000))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DamagedFileError):
        read_snapshot(path)
