"""Compile the libraries that stand in for CUDA beside an installed torch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.null_gpu.needs import DRIVER, Unfit, driver_names, needs_of, output_of, versions_of
from tests.null_gpu.place import MARK, ROOT, Place
from tests.null_gpu.tables import cards_source, installed_source, names_source

HERE = Path(__file__).parent
SOURCE = HERE / "src"
NVML_STUB = ROOT / "tests" / "nvml_stub" / "stub.c"
FLAGS = (
    *("-O2", "-g", "-fPIC", "-Wall", "-Wextra"),
    *("-Wno-unused-parameter", "-Wno-missing-field-initializers"),
)
TOOLS = ("gcc", "readelf", "nm")

# Sources behind a library. Of what torch imports also, the builder makes stubs.
BODIES = {
    "libcudart": (
        *("runtime/device.c", "runtime/memory.c", "runtime/streams.c"),
        *("runtime/kernels.c", "runtime/graphs.c"),
    ),
    "libcuda": ("libraries/driver.c",),
    "libcublas": ("libraries/cublas.c",),
    "libcublasLt": ("libraries/cublaslt.c",),
    "libcudnn": ("libraries/cudnn.c",),
    "libcupti": ("libraries/cupti.c",),
    "libnvrtc": ("libraries/nvrtc.c",),
    "libnccl": ("libraries/nccl.c", "libraries/post.c"),
}
# What a stub returns: "not supported" where torch takes that for an answer, success elsewhere.
REFUSALS = {"libcuda": 801, "libcudnn": 3000, "libnccl": 5}


def missing_tools() -> list[str]:
    """Programs that are needed and not there."""
    return [name for name in TOOLS if shutil.which(name) is None]


def build(place: Place) -> list[str]:
    """Compile everything into ``place.libraries``; returns a line for each library.

    Raises:
        Unfit: The installed torch cannot be served, or the compiler refuses.
    """
    versions = versions_of(place.site)
    libraries, work = place.libraries, place.folder / "null" / "work"
    shutil.rmtree(libraries, ignore_errors=True)
    for folder in (libraries, work):
        folder.mkdir(parents=True, exist_ok=True)
    (work / "cards.c").write_text(cards_source(HERE / "cards.toml", MARK))
    (work / "installed.h").write_text(installed_source(place.headers, versions))
    (work / "names.h").write_text(names_source(place.headers))
    flags = (*FLAGS, f"-I{place.headers}", f"-I{work}", f"-I{SOURCE / 'core'}")
    core = libraries / "libnullgpu.so"
    sources = [*sorted(map(str, (SOURCE / "core").glob("*.c"))), str(work / "cards.c")]
    _link(flags, core, sources, "-lpthread", "-lrt")
    needs = needs_of(place.site / "torch" / "lib")
    needs.symbols[DRIVER] |= driver_names(place.headers)
    lines = [f"torch {versions.torch}, CUDA {versions.cuda}"]
    # libcublas comes before libcublasLt, which links it.
    for soname in sorted(needs.symbols, key=lambda name: (name.split(".so")[0], name)):
        version = needs.versions.get(soname)
        lines.append(_library(soname, needs.symbols[soname], version, flags, libraries, work))
    nvml = (str(SOURCE / "libraries" / "nvml.c"), str(NVML_STUB))
    _link(flags, libraries / "libnvidia-ml.so.1", nvml, "-Wl,-z,muldefs", str(core), "-w")
    (libraries / "libcuda.so").symlink_to(DRIVER)
    (libraries / "done").write_text(versions.torch + "\n")
    return lines


def _library(
    soname: str,
    symbols: set[str],
    version: str | None,
    flags: tuple[str, ...],
    libraries: Path,
    work: Path,
) -> str:
    stem = soname.split(".so")[0]
    sources = [SOURCE / name for name in BODIES.get(stem, ())]
    objects = [_compiled(source, stem, flags, work) for source in sources]
    missing = sorted(symbols - {name for path in objects for name in _defined(path)})
    stubs = work / f"{stem}_stubs.c"
    stubs.write_text(_stubs(missing, REFUSALS.get(stem, 0)))
    objects.append(_compiled(stubs, stem, (*flags, "-fno-builtin", "-w"), work))
    options = [str(libraries / "libnullgpu.so"), "-ldl", "-lrt"]
    if version is not None:
        script = work / f"{stem}.map"
        script.write_text(f"{version} {{ global: *; }};\n")
        options.append(f"-Wl,--version-script={script}")
    if stem == "libcublasLt":
        options += [str(path) for path in libraries.glob("libcublas.so.*")]
    _link((), libraries / soname, [str(path) for path in objects], *options)
    return f"{soname}: {len(symbols)} symbols wanted, {len(missing)} of them stubs"


def _compiled(source: Path, stem: str, flags: tuple[str, ...], work: Path) -> Path:
    target = work / f"{stem}_{source.stem}.o"
    output_of("gcc", *flags, "-c", str(source), "-o", str(target))
    return target


def _link(
    flags: tuple[str, ...], target: Path, sources: list[str] | tuple[str, ...], *options: str
) -> None:
    name = f"-Wl,-soname,{target.name}"
    output_of(
        "gcc", "-shared", name, "-Wl,-rpath,$ORIGIN", *flags, "-o", str(target), *sources, *options
    )


def _defined(path: Path) -> set[str]:
    text = output_of("nm", "--defined-only", "-g", str(path))
    return {line.split()[-1] for line in text.splitlines()}


def _stubs(names: list[str], result: int) -> str:
    """Functions without a body: each says in the log that it was asked."""
    lines = ["extern void ng_note(const char *, ...);"]
    for name in names:
        if not re.fullmatch(r"\w+", name):
            raise Unfit(f"torch imports {name!r}, which is no name of C")
        lines.append(f'long {name}(void) {{ ng_note("stub {name}"); return {result}; }}')
    return "\n".join(lines) + "\n"
