"""Short names of kernels: what a kernel computes, without namespaces, wrappers and arguments.

Names follow schemes, not a list: a C++ template that applies a functor is named by the functor and
its type, a matrix product by its tile and layout, a generated kernel by its operators. Names that
no scheme fits lose their return type, namespaces and arguments.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from sysbench.core.trace.classify import CAMEL, FUSED, classify
from sysbench.core.trace.module_tree import group_by

WRAPPERS = re.compile(
    r"\w*elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel|kentry|device_kernel"
    r"|Kernel2?|\w*gpu_kernel_impl\w*|\w*(unary|binary|opaque)\w*functor|func_wrapper_t|ReduceOp"
    r"|\w*ListMetadata|OpMathType|array|operator|pair|tuple|lambda|const|void|unsigned",
    re.IGNORECASE,
)
"""Templates that apply another function, and words that say nothing about it."""
APPLIED = re.compile(r"(?<![\w:])(?:\w+::|\(anonymous namespace\)::)*(\w*[A-Za-z_]\w*)")
SUFFIX = re.compile(
    r"_?(functor|kernel_?impl|kernel_?cuda(_?impl)?|_?cuda_?kernel\w*|cudakernel\w*|_kernel|kernel"
    r"|ops|_?cuda|_?gpu)$",
    re.IGNORECASE,
)
PREFIX = re.compile(r"^(CUDAFunctor[a-zA-Z]*_|direct_(?=copy)|ncclDevKernel_|ncclKernel_|cunn_)")
CODE = re.compile(r"[^\s(<]+([<(]|$)")
"""A name of code and no sentence."""
CASTS = re.compile(
    r"\((?:int|bool|unsigned int|unsigned long)\)(?=\d)|\(anonymous namespace\)::|<unnamed>::"
)
"""Parts that demanglers write in front of numbers and of names without a namespace."""
TYPES = {
    **{"float": "fp32", "double": "fp64", "c10::BFloat16": "bf16", "__nv_bfloat16": "bf16"},
    **{"c10::Half": "fp16", "__half": "fp16", "half": "fp16", "bool": "bool", "long": "int64"},
    **{"int": "int32", "cutlass::bfloat16_t": "bf16", "cutlass::half_t": "fp16"},
    **{"__hip_bfloat16": "bf16", "signed char": "int8", "unsigned char": "uint8"},
}
TYPE = re.compile(r"(?<![\w:])(" + "|".join(map(re.escape, TYPES)) + r")(?![\w:])")
TILE = re.compile(r"(?:(?<=[_\W])|(?<=MT)|(?<=tilesize))(\d{1,3}x\d{1,3})(?:x\d+)*(?=[_\W]|$)")
LAYOUT = re.compile(r"_([nt]{2})(?=_|$)|_([NT]{2})[NT]?(?=_|$)")
TENSILE = re.compile(r"Cijk_A(il|li)k_B(jl|lj)k")
"""AMD's matrix products: the order of the indices of A and B says what is transposed."""
MAX_WORD = 16
"""Characters of a word that tells names apart; longer ones are mangled."""
MANGLED = re.compile(r"^_ZN?K?")
COPY = re.compile(
    r"^\[?(?:cuda |hip )?mem(cpy|set)\]? ?(?:(unified) )?(host|device|peer|[hdp])?"
    r"(?:to|-to-)?(host|device|peer|[hdp])?"
    r"(?:.*?(pageable|pinned))?",
    re.IGNORECASE,
)
UNIFIED = "unified"


def short_kernel_names(names: Iterable[str]) -> dict[str, str]:
    """Return a short name for each; different names stay different."""
    alike = group_by(dict.fromkeys(names), short_kernel_name)
    return {
        name: distinct
        for short, group in alike.items()
        for name, distinct in zip(group, _distinguish(short, group), strict=True)
    }


@cache
def short_kernel_name(name: str) -> str:
    """Return ``add fp32`` for an elementwise kernel of PyTorch, ``gemm 128x128 tn`` for a product.

    Names of host operators stay.
    """
    if match := FUSED.search(name):
        number = name[match.end("operators") :].lstrip("_")
        number = re.split(r"\W", number)[0]
        kind = "triton" if match["kind"] else "cpp"
        return f"{kind} {match['operators'].strip('_')} {number}".strip()
    if name[:1] == "[" or name[:6].lower() in ("memcpy", "memset"):
        return _copy(name)
    plain = MANGLED.sub("", name)
    if plain != name:
        return _mangled(plain)
    code = CASTS.sub("", name.removeprefix("void "))
    if not CODE.match(code) or code.startswith("aten::"):
        return name
    head, arguments = _template(code)
    tile = TILE.search(name)
    if tile and (category := classify(name)) in ("gemm", "convolution") and "::" not in head:
        return " ".join(filter(None, (category, tile[1], _layout(name))))
    if head == name:
        return name
    base = _base(head)
    if WRAPPERS.fullmatch(base) and arguments:
        applied = _applied(arguments)
        if TILE.search(arguments) and classify(name) in ("gemm", "convolution"):
            return short_kernel_name(applied)
        base = applied or base
    plain_base = _without_affixes(base)
    of_type = TYPE.search(arguments)
    return f"{plain_base} {TYPES[of_type[1]]}" if of_type else plain_base


class CopyKind(NamedTuple):
    """``HtoD`` and ``pageable``, ``pinned`` or `UNIFIED`; empty if the name does not have them."""

    direction: str
    memory: str


def copy_kind(name: str) -> CopyKind | None:
    """Return what the name of a memcpy says; None for other names."""
    match = COPY.match(name)
    if match is None or match[1].lower() != "cpy":
        return None
    ends = [end[0].upper() for end in match.group(3, 4) if end]
    return CopyKind("to".join(ends), (match[2] or match[5] or "").lower())


def is_migration(name: str) -> bool:
    """Return whether a copy moves pages of unified memory: no call launches it."""
    kind = copy_kind(name)
    return kind is not None and kind.memory == UNIFIED


def _copy(name: str) -> str:
    kind = copy_kind(name)
    if kind is None:
        return "memset" if COPY.match(name) else name
    return " ".join(filter(None, ("memcpy", *kind)))


def _template(name: str) -> tuple[str, str]:
    """Split at the template's brackets: the name before, and the arguments inside."""
    opening = name.find("<")
    bracket = name.find("(")
    if opening < 0 or 0 <= bracket < opening:
        return name[:bracket] if bracket >= 0 else name, ""
    depth = 0
    for place in range(opening, len(name)):
        depth += (name[place] == "<") - (name[place] == ">" and name[place - 1] != "-")
        if not depth:
            return name[:opening], name[opening + 1 : place]
    return name[:opening], name[opening + 1 :]


def _base(head: str) -> str:
    return head.rpartition("::")[2].strip() or head


def _applied(arguments: str) -> str:
    """Return the function that a wrapper applies: its first argument that is no wrapper or type."""
    for match in APPLIED.finditer(TYPE.sub(" ", arguments)):
        word = match[1]
        if not word.isdigit() and not WRAPPERS.fullmatch(word) and len(word) > 2:
            return word
    return ""


def _without_affixes(base: str) -> str:
    shorter = PREFIX.sub("", base)
    if base.startswith("nccl"):
        return f"nccl {shorter}"
    shorter = SUFFIX.sub("", shorter).strip("_") or base
    return shorter if shorter == base else _snake(shorter)


def _snake(name: str) -> str:
    """Return ``mul`` for ``Mul`` and ``fused_adam_math`` for ``FusedAdamMath``; names with
    underscores stay."""
    return name if "_" in name else CAMEL.sub("_", name).lower()


def _layout(name: str) -> str:
    if match := TENSILE.search(name):
        return ("t" if match[1] == "li" else "n") + ("n" if match[2] == "lj" else "t")
    layouts = [(match[1] or match[2]).lower() for match in LAYOUT.finditer(name)]
    return layouts[0] if layouts else ""


def _mangled(name: str) -> str:
    """Return the last name before a template's arguments, unless it only wraps the next."""
    words: list[str] = []
    while part := re.match(r"[A-Z]*?(\d+)", name):
        length = int(part[1])
        words.append(name[part.end() : part.end() + length])
        name = name[part.end() + length :]
        if name.startswith("I") and not WRAPPERS.fullmatch(words[-1]):
            break
        if name.startswith("I"):
            name = re.sub(r"^I(L?[a-z]\w*?E|[a-z])*(NS_|NS\d?_)?", "", name)
    return _without_affixes(words[-1]) if words else name


def _distinguish(short: str, group: list[str]) -> list[str]:
    """Append to each name's short form the word that fewest of the others have, or a number."""
    words = {name: re.findall(r"\w+", name.replace("_", " ")) for name in group}
    count = Counter(word for name in group for word in set(words[name]))
    texts: list[str] = []
    for name in group:
        own = [word for word in words[name] if count[word] < len(group) and len(word) <= MAX_WORD]
        text = f"{short} {min(own, key=count.__getitem__)}" if own else short
        taken = sum(re.fullmatch(rf"{re.escape(text)}( #\d+)?", each) is not None for each in texts)
        texts.append(f"{text} #{taken + 1}" if taken else text)
    return texts
