"""Names of kernels that torch.compile generated: which operators they fuse, and their work.

Inductor names a kernel ``triton_<kind>_fused_<operators>_<number>`` (on the CPU
``cpp_fused_…``), the operators sorted and joined by underscores, which they may hold
themselves.
"""

from __future__ import annotations

import re
from functools import cache

FUSED = re.compile(
    r"(?:^|[^a-z])(?:triton_(?P<kind>[a-z]{3})|cpp)_fused_(?P<operators>\w*?)_?\d+(?=\W|$)"
)
OPERATOR = re.compile(
    r"""
    (?: ^ | (?<=.)_ )                                # the underscore that joins
    (
        _(?: efficient | flash )_attention_(?: forward | backward )
      | _?scaled_dot_product_(?: \w*?_ )?? attention (?: _backward | _for_cpu )*
      | flex_attention (?: _backward )?
      | _?(?: log_ )?softmax (?: _backward_data | _backward )?
      | prepare_softmax_online | cross_entropy_loss
      | nll_loss (?: 2d )?_(?: forward | backward )
      | (?: mse | smooth_l1 )_loss (?: _backward )?
      | _native_batch_norm_legit (?: _functional )?
      | (?: native_ )?(?: layer | group | batch | rms )_norm (?: _backward )?
      | embedding (?: _dense_backward )?
      | (?: _unsafe_ )?index_put | index_select | _unsafe_(?: index | view )
      | (?: native_dropout | convolution | cumsum ) (?: _backward )?
      | (?: gelu | silu | elu | tanh | sigmoid | threshold | hardswish | leaky_relu )_backward
      | leaky_relu | hardswish
      | (?: select | slice | as_strided )_(?: scatter | backward ) | as_strided
      | inductor_(?: random | randint | seeds | lookup_seed )
      | (?: all_reduce | all_gather_into_tensor | reduce_scatter_tensor | wait_tensor )
      | (?: bitwise | logical )_(?: and | or | not | xor )
      | (?: ones | zeros | empty | full | randn? | randint )_like | new_(?: zeros | ones | full )
      | (?: avg | max )_pool2d (?: _with_indices )? (?: _backward )? | _adaptive_avg_pool2d
      | clamp_(?: min | max ) | constant_pad_nd | floor_divide | masked_fill | split_with_sizes
      | scalar_tensor | tril_indices | upsample_nearest2d | var_mean | _to_copy | _scaled_mm
      | _?[^_]+ (?: _$ )?
    )
    (?= _ | $ )
    """,
    re.VERBOSE,
)

SOFTMAX = re.compile(r"softmax|nll_loss|cross_entropy|logsumexp")
NORM = re.compile(r"(layer|rms|group|batch)_norm|^rsqrt$")
EMBEDDING = re.compile(r"embedding|index_(put|select)$|^_unsafe_index$")
RANDOM = re.compile(r"^(rand|bernoulli|native_dropout$|inductor_)")
REDUCTION = re.compile(r"^(sum|mean|amax|amin|max|min|prod|var|var_mean|argmax|argmin|any|all)$")


@cache
def fused_operators(name: str) -> tuple[str, ...]:
    """The operators of a generated kernel, as its name tells; empty for any other kernel."""
    match = FUSED.search(name)
    return tuple(OPERATOR.findall(match["operators"])) if match else ()


def fused_category(name: str) -> str | None:
    """The category of a generated kernel's work, None for any other kernel."""
    match = FUSED.search(name)
    if not match:
        return None
    kind, operators = match["kind"] or "cpp", fused_operators(name)
    if kind == "tem":
        if any("attention" in one for one in operators):
            return "attention"
        return "convolution" if any("conv" in one for one in operators) else "gemm"
    if kind == "for" or any("foreach" in one for one in operators):
        return "optimizer"
    for category, pattern in (("softmax", SOFTMAX), ("norm", NORM), ("embedding", EMBEDDING)):
        if any(pattern.search(one) for one in operators):
            return category
    if operators and all(RANDOM.search(one) for one in operators):
        return "random"
    reduces = kind in ("per", "red", "mix", "spl") or (
        kind == "cpp" and any(REDUCTION.search(one) for one in operators)
    )
    return "reduce" if reduces else "elementwise"
