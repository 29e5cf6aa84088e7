"""The stand-ins by themselves, called as C without torch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.null_gpu.conftest import NullGpu

pytestmark = pytest.mark.null_gpu

NOT_READY, ILLEGAL_ADDRESS = 600, 700
MIB = 1 << 20

# Launches of a registered kernel; one of 80 million blocks takes a second of the card's time.
PRELUDE = """
import ctypes, glob, json, os
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
folder = os.environ["LD_LIBRARY_PATH"]
rt = ctypes.CDLL(glob.glob(folder + "/libcudart.so.*")[0])
class Dim3(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]
rt.cudaLaunchKernel.argtypes = [c_void_p, Dim3, Dim3, c_void_p, c_size_t, c_void_p]
rt.cudaFree.argtypes = [c_void_p]
register = rt["__cudaRegisterFunction"]
register.argtypes = [c_void_p, c_void_p, c_void_p, c_char_p, c_int, *[c_void_p] * 5]
names = []
def kernel(name):
    names.append(ctypes.create_string_buffer(name.encode()))
    host = ctypes.addressof(names[-1])
    register(0, host, 0, names[-1], -1, 0, 0, 0, 0, 0)
    return host
def launch(host, blocks=1, shared=0):
    return rt.cudaLaunchKernel(host, Dim3(blocks, 1, 1), Dim3(1024, 1, 1), None, shared, None)
def room():
    left, total = c_size_t(), c_size_t()
    code = rt.cudaMemGetInfo(byref(left), byref(total))
    return [left.value, total.value] if code == 0 else code
def malloc(size):
    at = c_void_p()
    return rt.cudaMalloc(byref(at), c_size_t(size)), at
def event():
    it = c_void_p()
    rt.cudaEventCreate(byref(it))
    return it
"""


@pytest.mark.parametrize(
    ("card", "memory_mib", "context_mib"),
    [("h100", 81008, 526), ("A100", 40339, 424), ("4090", 24082, 400)],
)
def test_each_card_has_its_memory_less_the_context(
    null_gpu: NullGpu, card: str, memory_mib: int, context_mib: int
) -> None:
    left, total = null_gpu.python(PRELUDE + "print(json.dumps(room()))", card=card)
    assert total == memory_mib * MIB
    assert left == total - context_mib * MIB


def test_memory_and_context_are_settings(null_gpu: NullGpu) -> None:
    left, total = null_gpu.python(
        PRELUDE + "print(json.dumps(room()))", memory_mib=1000, context_mib=100
    )
    assert (left, total) == (900 * MIB, 1000 * MIB)


def test_an_unknown_card_is_no_card(null_gpu: NullGpu) -> None:
    with pytest.raises(AssertionError, match="NULL_GPU_CARD=b300"):
        null_gpu.python(PRELUDE + "room()", card="b300")


def test_allocations_are_charged_in_grains_until_the_card_is_full(null_gpu: NullGpu) -> None:
    facts = null_gpu.python(
        PRELUDE
        + """
before = room()[0]
code, at = malloc(1)
one = room()[0]
rt.cudaFree(at)
print(json.dumps([code, before - one, before - room()[0], malloc(before)[0], malloc(1)[0]]))
""",
        memory_mib=1000,
    )
    assert facts == [0, 2 * MIB, 0, 0, 2]


def test_a_full_queue_holds_the_host_until_the_oldest_launch_is_over(null_gpu: NullGpu) -> None:
    facts = null_gpu.python(
        PRELUDE
        + """
k, first = kernel("k"), event()
launch(k, 80_000_000)  # a second
rt.cudaEventRecord(first, None)
for _ in range(1023):
    launch(k)
full = rt.cudaEventQuery(first)
launch(k)
print(json.dumps([full, rt.cudaEventQuery(first)]))
"""
    )
    assert facts == [NOT_READY, 0]


def test_the_depth_of_the_queue_is_a_setting(null_gpu: NullGpu) -> None:
    code = (
        PRELUDE
        + """
k, first = kernel("k"), event()
launch(k, 4_000_000)
rt.cudaEventRecord(first, None)
for _ in range(4):
    launch(k)
print(json.dumps(rt.cudaEventQuery(first)))
"""
    )
    assert null_gpu.python(code, queue=4) == 0
    assert null_gpu.python(code, queue=5, pace=200) == NOT_READY


def test_a_fault_shows_after_its_launch_and_stays(null_gpu: NullGpu) -> None:
    facts = null_gpu.python(
        PRELUDE
        + """
k = kernel("k")
codes = [launch(k) for _ in range(3)]
codes.append(rt.cudaDeviceSynchronize())
codes += [launch(k), malloc(1)[0], rt.cudaGetLastError(), rt.cudaGetLastError()]
print(json.dumps(codes))
""",
        fail_at_launch=3,
        pace=1000,
    )
    assert facts == [0, 0, 0, *[ILLEGAL_ADDRESS] * 5]


def test_modules_take_memory_when_their_kernels_are_first_launched(null_gpu: NullGpu) -> None:
    facts = null_gpu.python(
        PRELUDE
        + """
kernels = [kernel(name) for name in ("a", "b", "c")]
before, taken = room()[0], []
for host in (kernels[0], kernels[0], kernels[1], kernels[2]):
    launch(host)
    taken.append(before - room()[0])
print(json.dumps(taken))
""",
        kernel_kib=1024,
    )
    assert facts == [2 * MIB, 2 * MIB, 2 * MIB, 4 * MIB]


def test_an_impossible_launch_is_refused(null_gpu: NullGpu) -> None:
    facts = null_gpu.python(
        PRELUDE
        + """
k = kernel("k")
codes = [launch(k, 0), launch(k, 1, 1 << 20)]
print(json.dumps([*codes, rt.cudaGetLastError(), rt.cudaGetLastError()]))
"""
    )
    assert facts == [9, 1, 1, 0]


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 3), ("", 0), ("-1", 0), ("2,0", 2), ("0,7,1", 1), ("GPU-6e756c6c-2d67-7075", 1)],
)
def test_the_visible_devices_are_chosen_as_cuda_chooses(
    null_gpu: NullGpu, visible: str | None, count: int
) -> None:
    code = "n = c_int(); rt.cudaGetDeviceCount(byref(n)); print(json.dumps(n.value))"
    chosen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert null_gpu.python(PRELUDE + code, count=3, **chosen) == count


def test_nvml_tells_the_marked_name_and_who_holds_the_memory_of_which_card(
    null_gpu: NullGpu,
) -> None:
    facts = null_gpu.python(
        PRELUDE
        + """
import pynvml
malloc(100 << 20)
pynvml.nvmlInit()
seen = []
for index in range(pynvml.nvmlDeviceGetCount()):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    held = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2)
    seen.append([pynvml.nvmlDeviceGetName(gpu), memory.total, memory.used,
                 [[row.pid == os.getpid(), row.usedGpuMemory] for row in held]])
print(json.dumps(seen))
""",
        count=2,
        CUDA_VISIBLE_DEVICES="1",
    )
    name, held = "NVIDIA H100 80GB HBM3 (null GPU)", (100 + 526) * MIB
    assert facts == [[name, 81559 * MIB, 0, []], [name, 81559 * MIB, held, [[True, held]]]]


RANKS = (
    PRELUDE
    + """
nccl = ctypes.CDLL(glob.glob(folder + "/libnccl.so.*")[0])
class Id(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char * 128)]
nccl.ncclCommInitRank.argtypes = [POINTER(c_void_p), c_int, Id, c_int]
pointer = [c_void_p, c_void_p, c_size_t, c_int]
nccl.ncclAllGather.argtypes = [*pointer, c_void_p, c_void_p]
nccl.ncclAllReduce.argtypes = [*pointer, c_int, c_void_p, c_void_p]
between_two = [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]
nccl.ncclSend.argtypes = nccl.ncclRecv.argtypes = between_two
nccl.ncclCommGetAsyncError.argtypes = [c_void_p, POINTER(c_int)]
nccl.ncclCommDestroy.argtypes = nccl.ncclCommAbort.argtypes = [c_void_p]
nccl.ncclCommSplit.argtypes = [c_void_p, c_int, c_int, POINTER(c_void_p), c_void_p]
id = Id()
nccl.ncclGetUniqueId(byref(id))
reader, writer = os.pipe()
child = os.fork()
rank = 1 if child == 0 else 0
rt.cudaSetDevice(rank)
comm = c_void_p()
nccl.ncclCommInitRank(byref(comm), 2, id, rank)
def error():
    code = c_int()
    nccl.ncclCommGetAsyncError(comm, byref(code))
    return code.value
def buffer(value):
    at = malloc(64)[1]
    ctypes.cast(at, POINTER(c_int))[0] = value
    return at
def first(at, count=1):
    rt.cudaDeviceSynchronize()
    return list(ctypes.cast(at, POINTER(c_int))[:count])
def answer(mine):
    if rank:
        os.write(writer, json.dumps(mine).encode())
        os._exit(0)
    os.close(writer)
    theirs = json.loads(os.fdopen(reader).read())
    os.waitpid(child, 0)
    print(json.dumps([mine, theirs]))
INT = 2
"""
)


def ranks(null_gpu: NullGpu, code: str, **settings: object) -> Any:
    """What both ranks answer."""
    return null_gpu.python(RANKS + code, count=2, **settings)


def test_ranks_gather_small_values_and_send_them(null_gpu: NullGpu) -> None:
    facts = ranks(
        null_gpu,
        """
own, all_, got = buffer(10 + rank), buffer(0), buffer(0)
nccl.ncclAllGather(own, all_, 1, INT, comm, None)
gathered = first(all_, 2)
nccl.ncclGroupStart()
nccl.ncclSend(own, 1, INT, 1 - rank, comm, None)
nccl.ncclRecv(got, 1, INT, 1 - rank, comm, None)
nccl.ncclGroupEnd()
answer([gathered, first(got), error(), nccl.ncclCommDestroy(comm)])
""",
    )
    assert facts == [[[10, 11], [11], 0, 0], [[10, 11], [10], 0, 0]]


def test_many_sends_of_a_group_pass_a_short_ring(null_gpu: NullGpu) -> None:
    facts = ranks(
        null_gpu,
        """
boxes = [buffer(index if rank == 0 else -1) for index in range(500)]
nccl.ncclGroupStart()
for box in boxes:
    (nccl.ncclRecv if rank else nccl.ncclSend)(box, 1, INT, 1 - rank, comm, None)
nccl.ncclGroupEnd()
answer([first(box)[0] for box in boxes])
""",
    )
    # With 500 sends one rank often goes on between two looks of the other.
    assert facts == [list(range(500)), list(range(500))]


def test_an_operation_ends_on_no_rank_before_all_have_come(null_gpu: NullGpu) -> None:
    facts = ranks(
        null_gpu,
        """
done = event()
if rank == 1:
    os.read(reader, 1)  # until rank 0 has looked
nccl.ncclAllReduce(buffer(1), buffer(1), 1, INT, 0, comm, None)
rt.cudaEventRecord(done, None)
early = rt.cudaEventQuery(done)
if rank == 0:
    os.write(writer, b"!")
late = rt.cudaEventSynchronize(done)
answer([early if rank == 0 else None, late])
""",
    )
    assert facts == [[NOT_READY, 0], [None, 0]]


def test_operations_that_do_not_match_are_an_error_of_both(null_gpu: NullGpu) -> None:
    facts = ranks(
        null_gpu,
        """
nccl.ncclAllReduce(buffer(1), buffer(1), 1 + rank, INT, 0, comm, None)
rt.cudaDeviceSynchronize()
answer(error())
""",
    )
    assert facts == [5, 5]


def test_a_lost_peer_is_a_setting(null_gpu: NullGpu) -> None:
    facts = ranks(
        null_gpu,
        """
codes = []
for _ in range(2):
    nccl.ncclAllReduce(buffer(1), buffer(1), 1, INT, 0, comm, None)
    rt.cudaDeviceSynchronize()
    codes.append(error())
answer(codes)
""",
        nccl_fail_at=2,
    )
    assert facts == [[0, 6], [0, 6]]


def test_an_aborted_rank_waits_no_longer(null_gpu: NullGpu) -> None:
    facts = ranks(
        null_gpu,
        """
if rank == 0:
    nccl.ncclAllReduce(buffer(1), buffer(1), 1, INT, 0, comm, None)
nccl.ncclCommAbort(comm)
answer(rt.cudaDeviceSynchronize())
""",
    )
    assert facts == [0, 0]


def test_a_communicator_splits(null_gpu: NullGpu) -> None:
    facts = ranks(
        null_gpu,
        """
same, own = c_void_p(), c_void_p()
codes = [nccl.ncclCommSplit(comm, 7, 1 - rank, byref(same), None),
         nccl.ncclCommSplit(comm, rank, 0, byref(own), None)]
place = []
for part in (same, own):
    n, r = c_int(), c_int()
    nccl.ncclCommCount(part, byref(n))
    nccl.ncclCommUserRank(part, byref(r))
    place.append([n.value, r.value])
answer([codes, place])
""",
    )
    assert facts == [[[0, 0], [[2, 1], [1, 0]]], [[0, 0], [[2, 0], [1, 0]]]]


def test_ranks_leave_nothing_in_shared_memory(null_gpu: NullGpu) -> None:
    facts = ranks(
        null_gpu,
        """
nccl.ncclCommDestroy(comm)
answer(os.path.exists("/dev/shm" + id.text.decode()))
""",
    )
    assert facts == [False, False]
