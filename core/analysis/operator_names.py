"""The category of a host operator by its name: aten operators and autograd nodes.

For the tables of a CPU, where operators stand in for kernels. Views, allocations and other
bookkeeping that touches no element are ``other``.
"""

from __future__ import annotations

import re
from functools import cache

from .fused_names import fused_category

WORDS = {
    "elementwise": re.compile(
        r"""
        abs | add | addcdiv | addcmul | bitwise_(and|not|or|xor) | cast | ceil | celu
        | clamp(_max|_min)? | cos | div | elu | eq | erf | exp | exp2 | expm1 | flip
        | float_power | floor | floor_divide | fmod | ge | gelu | glu | gt | hardsigmoid
        | hardswish | hardtanh | isfinite | isinf | isnan | le | leaky_relu | lerp
        | log | log10 | log1p | log2 | log_sigmoid | logical_(and|not|or|xor) | lt
        | masked_fill | maximum | minimum | mish | mse_loss | mul | ne | neg | pow | prelu
        | reciprocal | relu | relu6 | remainder | roll | round | rsqrt | rsub | sigmoid
        | sign | silu | sin | smooth_l1_loss | softplus | sqrt | square | sub | tan | tanh
        | threshold | tril | triu | trunc | where | xlogy
        """,
        re.VERBOSE,
    ),
    "reduce": re.compile(
        r"""
        all | amax | amin | any | argmax | argmin | argsort | count_nonzero | cummax | cummin
        | cumprod | cumsum | histc | linalg_vector_norm | max | mean | median | min | nonzero
        | norm | prod | sort | std | std_mean | sum | topk | unique | unique2 | var | var_mean
        """,
        re.VERBOSE,
    ),
    "copy": re.compile(
        r"""
        cat | clone | concat | contiguous | copy | fill | full | full_like | hstack | item
        | local_scalar_dense | new_(full|ones|zeros) | ones | ones_like | pin_memory | repeat
        | repeat_interleave | stack | to | to_copy | type_as | vstack | zero | zeros | zeros_like
        """,
        re.VERBOSE,
    ),
}
FAMILIES = (
    ("communication", r"^c10d::|^(gloo|nccl|mpi|ucc):|^fsdp::|record_param_comms|_c10d_functional"),
    ("optimizer", r"^aten::_?foreach|fused_(adam|sgd|adagrad)|^aten::_amp_"),
    ("attention", r"attention"),
    ("softmax", r"softmax|nll_loss|cross_entropy|logsumexp"),
    ("norm", r"(layer|rms|batch|group|instance|weight)_norm"),
    ("convolution", r"conv(?!ert)"),
    ("gemm", r"(^|_)(b?mm|addb?mm|baddbmm|addmv|mv|v?dot|matmul|linear|bilinear|einsum)(_|$)"),
    ("gemm", r"_(scaled|int|grouped|sparse)_(grouped_)?mm"),
    ("embedding", r"embedding|(^|_)index($|_(select|put|add|copy|fill))|gather|scatter|take_along"),
    ("random", r"dropout|bernoulli|multinomial|^rand|^uniform$|^normal$|exponential|^random$"),
)
_COMPILED = [(category, re.compile(rule)) for category, rule in FAMILIES]
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
SUFFIXES = re.compile(r"(_backward(_data)?\d*|_?\d*)$")


@cache
def classify_operator(name: str) -> str:
    """One of the kernel categories for an operator; remembered per name."""
    fused = fused_category(name)
    if fused:
        return fused
    plain = _plain(name)
    for category, rule in _COMPILED:
        if rule.search(name if "::" in rule.pattern else plain):
            return category
    return next((category for category, word in WORDS.items() if word.fullmatch(plain)), "other")


def _plain(name: str) -> str:
    """``aten::_softmax_backward_data``, ``SoftmaxBackward0`` and ``aten::softmax`` to softmax."""
    _, _, last = name.rpartition("::")
    snake = CAMEL.sub("_", last).lower().strip("_")
    while (shorter := SUFFIXES.sub("", snake).strip("_")) != snake:
        snake = shorter
    return snake
