"""Categories of work from names of kernels and operators, and causes of idle time.

A rule covers a family: the naming scheme of a library, or a word for the work. The first match
wins, so a rule can be broad if earlier rules handle its exceptions.

Inductor names a kernel ``triton_<kind>_fused_<operators>_<number>`` (on the CPU ``cpp_fused_…``).
The operators are sorted and joined by underscores, which their names may also contain.

Host operators are classified for tables of a CPU. Views, allocations and other bookkeeping that
touches no element are ``other``.
"""

from __future__ import annotations

import re
from functools import cache

WHOLE_MODEL = "model"
GRAD_ACCUMULATE = "grad accumulate"
LOSS = "loss"
MODEL_PHASES = ("forward", LOSS, "backward")


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
    """Return the operators in the name of a generated kernel; empty for other kernels."""
    match = FUSED.search(name)
    return tuple(OPERATOR.findall(match["operators"])) if match else ()


def fused_category(name: str) -> str | None:
    match = FUSED.search(name)
    if not match:
        return None
    kind, operators = match["kind"] or "cpp", fused_operators(name)
    if kind == "tem":
        if any("attention" in operator for operator in operators):
            return "attention"
        return "convolution" if any("conv" in operator for operator in operators) else "gemm"
    if kind == "for" or any("foreach" in operator for operator in operators):
        return "optimizer"
    for category, pattern in (("softmax", SOFTMAX), ("norm", NORM), ("embedding", EMBEDDING)):
        if any(pattern.search(operator) for operator in operators):
            return category
    if operators and all(RANDOM.search(operator) for operator in operators):
        return "random"
    reduces = kind in ("per", "red", "mix", "spl") or (
        kind == "cpp" and any(REDUCTION.search(operator) for operator in operators)
    )
    return "reduce" if reduces else "elementwise"


CATEGORIES = (
    "gemm",
    "attention",
    "softmax",
    "norm",
    "elementwise",
    "reduce",
    "embedding",
    "optimizer",
    "copy",
    "communication",
    "convolution",
    "random",
    "other",
)

RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "copy",
        (
            r"^\[?(cuda |hip )?mem(cpy|set)|^__amd_rocclr_(copy|fill)",
            r"^copy(device|host)to(device|host)|^fillbuffer|_and_cache|concat_mla",
        ),
    ),
    (
        "communication",
        (
            r"nccl|rccl|nvshmem|symm(etric)?_?mem|deep_ep::|msccl|(?<![a-z])comm::",
            r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce",
            r"multimem_|send_?recv|user_?buffers|(one|two)_?shot|(?<![a-z])a2a(?![a-z])",
        ),
    ),
    (
        "attention",
        (
            r"flash_?(fwd|bwd|attn|attention|mla|decode)|flash::|fmha|sdpa",
            r"attention|attn|(prefill|decode)_?with|paged_(decode|prefill|logits)",
            # NSA_ before a capital is of a mangled name: a substitution and its arguments.
            r"(?<![a-z])((m?mha|[gm]qa|mla|xqa)(?![a-z])|(?-i:[dn]sa_|[DN]SA_(?![A-Z]))(?!\w*topk)"
            r"|fna_|sage_?fwd)|natten",
            r"dot_do_o|do_o_dot|convert_dq|merge_?state|lse_correct|softmax_reducev",
            r"^_?(fwd|bwd)_(preprocess|(grouped_)?kernel)(_stage\d|_d[kqv].*|_fuse)?(\.kd)?$",
        ),
    ),
    (
        "optimizer",
        (
            r"multi_?tensor|foreach|lpnorm|optimizer|percentile_?clipping",
            r"fused_?(sgd|adagrad|lamb|lion)|adamw?(?![a-z])|adam_?(math|func)",
            r"(?<![a-z])(lamb|lion)_|muon|newton_?schulz|_amp_|amp_(non_finite|update_scale)",
        ),
    ),
    (
        "convolution",
        (
            r"conv(?!ert)|fprop|dgrad|wgrad|im2col|col2im|vol2col|winograd",
            r"(s|[his]\d+)cudnn|cudnn::(cnn|gemm)|cask\w*cudnn|fft[12]d_[rc]2[rc]_|flip_filter",
            r"miopen.*(conv|sp3)|igemm_(fwd|bwd|wrw)",
        ),
    ),
    # Names that contain a product's word: Gemma's norms, and weights repacked for a product.
    ("norm", (r"splitk.*norm|gemma\w*norm",)),
    ("elementwise", (r"_repack",)),
    (
        "gemm",
        (
            r"(?<!fb)gemm|gemv|gemt|nvjet|xmma|wg?mma|mfma|magma_|cijk_|tensile",
            r"(?<![a-z])(mat_?mul|[bgvs]?mm|sp?mm|trmm|trsm|syrk|ffma)(?![a-z])|matmul|mul_mat",
            r"cublas|rocblas|hipblas|^(void )?(dot|scal|axpy|nrm2|asum|swap|rot|ger)_kernel",
            r"^(void )?(cutlass|ck::)|cutlass.*(kernel2|tensorop|simt|device_kernel)|cutlass_?\d",
            r"split_?k.*reduce|reduce_1block|fused_moe|moe_kernel|moe_stage\d(?!_reduce)",
            r"(?<![a-z\d])(w\d+a|a\d+w)\d|marlin|wvsplitk|tmawarpspecialized",
            r"bgmv|sgmv|tinygemm|lora_(shrink|expand)",
        ),
    ),
    ("softmax", (r"soft_?max|nll_?(loss|criterion)|cross_?entropy|log_?sum_?exp",)),
    (
        "norm",
        (
            r"(layer|rms|group|batch|instance|weight|l2|qk|kv|add)_?norm(?!al)|\bln_(fwd|bwd)",
            r"gamma_?beta|rowwisemoments|computeinternalgradients|fusedparams|\bbn_(fw|bw)",
            r"welford_(kernel|parallel)|(?<![a-z])norm_(quant|rope)",
            r"norm(?=_?(fwd|bwd|forward|backward))|cuapplylayer|cucomputegradinput",
            r"fused_(\w+_)?ln\b",
        ),
    ),
    # State space models and linear attention: neither a scan nor a product alone.
    ("other", (r"(selective|chunk|state)_scan|chunk_state|state_passing|delta_rule|gdn\w*scan",)),
    (
        "random",
        (
            r"distribution_|philox.*(uniform|normal)|curand|dropout|bernoulli|multinomial",
            r"(?<!ope)rand(perm|int|om|n)?_|random|uniform_kernel|normal_kernel|exponential_kernel",
        ),
    ),
    (
        "copy",
        (
            r"(?:direct|float\d\w*)_copy_kernel_cuda",
            r"catarray|chunk_cat|split_with_sizes_copy|(?<!masked)fill(functor|op)",
            r"copy_blocks|swap_blocks",
        ),
    ),
    # Tokens moved to their experts and back: rows by an index, even if a sort made the index.
    ("embedding", (r"unpermute|moe_?permute|^_permute_kernel|sort_chunks|(input|shuffle)_?rows",)),
    (
        "reduce",
        (
            r"topk|(?<!ten)sort(?!ed)|radix|bitonic|unique|histogram|median|kthvalue|moe_align",
            r"mode_kernel|compute_mode|segment_?reduce|rocprim",
            r"device_?(reduce|scan|select|segmented|compact|run|rle)",
        ),
    ),
    ("elementwise", (r"rotary|(?<![a-z])rope(?![a-z])",)),
    (
        "embedding",
        (
            r"embedding|index_?(select|elementwise|put|copy|add|fill|func)|indexing_backward",
            r"gather|scatter|gpu_index|sum_and_scatter|krn_partial",
            r"compute_(grad_weight|num_of_partial)|take_put|get_rows|lookup",
        ),
    ),
    (
        "reduce",
        (
            r"reduce_?(single|kernel|op|tile|fusion)|reduce_\w*kernel|cub::.*reduce|moe_sum",
            r"(?<![a-z])reduction|reductionkernel|norm_kernel|argm(ax|in)",
            r"cumsum|cumprod|prefix_?sum|scan_|scan_?kernel|_scan\b",
        ),
    ),
    (
        "elementwise",
        (
            r"element_?wise|element_mul|pointwise|copy|(?<!pre)fill|where|cast|convert|masked",
            r"[gs]elu|silu|relu|(swi|ge)glu|glu(?![a-z])|sigmoid|tanh|activation|gated_act|gating",
            r"bias|quant|penalt|scale_shift|lerp|addc(mul|div)|(?<![a-z])(add|mul)_|_and_mul|cvt_",
            r"(?<!solve_)tril|triu|arange|linspace|transpose|permute|roll_|flip|pad\dd_|addpadding",
            r"nchwtonhwc|nhwctonchw|(tensor|unary|binary)_?transform|op_(generic_)?tensor",
            r"packedtensor|opmath|eigenmetakernel|loop_\w*fusion|_vectorized\d+_kernel$",
        ),
    ),
)
_KERNEL_RULES = [
    (category, re.compile("|".join(patterns), re.IGNORECASE)) for category, patterns in RULES
]


@cache
def classify(name: str) -> str:
    fused = fused_category(name)
    if fused:
        return fused
    return next((category for category, rule in _KERNEL_RULES if rule.search(name)), "other")


def is_communication(name: str) -> bool:
    return classify(name) == "communication"


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
_OPERATOR_RULES = [(category, re.compile(rule)) for category, rule in FAMILIES]
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
SUFFIXES = re.compile(r"(_backward(_data)?\d*|_?\d*)$")


@cache
def classify_operator(name: str) -> str:
    fused = fused_category(name)
    if fused:
        return fused
    plain = plain_operator(name)
    for category, rule in _OPERATOR_RULES:
        if rule.search(name if "::" in rule.pattern else plain):
            return category
    return next((category for category, word in WORDS.items() if word.fullmatch(plain)), "other")


def plain_operator(name: str) -> str:
    """Return ``softmax`` for ``aten::_softmax_backward_data``, ``SoftmaxBackward0``,
    ``aten::softmax``."""
    _, _, last = name.rpartition("::")
    snake = CAMEL.sub("_", last).lower().strip("_")
    while (shorter := SUFFIXES.sub("", snake).strip("_")) != snake:
        snake = shorter
    return snake


HOST_LATE = "host had not launched yet"
ON_SYNC = "waiting on a sync"
LAUNCHING = "host inside the launch call"
BETWEEN = "between launched kernels"
UNKNOWN = "launch of the next kernel not recorded"
OUTSIDE_OPERATORS = "host outside operators (Python, dispatch)"

# Records and exports contain the names above; people read these.
LABELS = {
    HOST_LATE: "waiting for the CPU to launch",
    ON_SYNC: "CPU inside a synchronization",
    LAUNCHING: "CPU inside the launch call",
    UNKNOWN: "cause unknown",
    OUTSIDE_OPERATORS: "Python / framework overhead (incl. DataLoader)",
}

LAUNCH = re.compile(r"Launch(?!HostFunc)|Memcpy|Memset|Enqueue")
"""Names of calls that launch work on a device."""

SYNC = re.compile(r"(Device|Stream|Event|Ctx)Synchronize|^(cuda|hip)Memcpy$")
"""Names of calls that return when the device has finished."""


def idle_label(cause: str) -> str:
    """Return the text to show for a cause."""
    return LABELS.get(cause, cause)
