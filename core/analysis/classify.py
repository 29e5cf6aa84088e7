"""The category of a kernel by its name.

Every rule is about a family: a library's way of naming, or a word for the work. The first
that matches wins, so a rule may be broad where the rules before it took the exceptions.
"""

from __future__ import annotations

import re
from functools import cache

from .fused_names import fused_category

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
            r"^copy(device|host)to(device|host)|^fillbuffer|(reshape|concat)_and_cache",
        ),
    ),
    (
        "communication",
        (
            r"nccl|rccl|nvshmem|symm(etric)?_?mem|deep_ep::|mscclpp",
            r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce",
            r"multimem_|send_?recv|user_?buffers",
        ),
    ),
    (
        "attention",
        (
            r"flash_?(fwd|bwd|attn|attention|mla|decode)|flash::|fmha|sdpa",
            r"attention|attn|_mla_|(prefill|decode)_?with|xqa_|dot_do_o|do_o_dot|convert_dq",
            r"(?<![a-z])m?mha(?![a-z])|merge_?states|lse_correct|softmax_reducev|natten|(?<![a-z])fna_",
            r"^_(fwd|bwd)_(grouped_)?kernel(_stage\d|_d[kqv].*)?$",
        ),
    ),
    (
        "optimizer",
        (
            r"multi_?tensor|foreach|lpnorm|optimizer",
            r"fused_?(sgd|adagrad|lamb|lion)|adamw?(?![a-z])|adam_?(math|func)|(?<![a-z])(lamb|lion)_",
            r"muon|newton_?schulz|percentile_?clipping",
            r"_amp_|amp_(non_finite|update_scale)",
        ),
    ),
    (
        "convolution",
        (
            r"conv(?!ert)|fprop|dgrad|wgrad|im2col|col2im|vol2col|winograd|scudnn|h884cudnn",
            r"miopen.*(conv|sp3)|igemm_(fwd|bwd|wrw)|fft[12]d_[rc]2[rc]_",
        ),
    ),
    ("norm", (r"splitk.*norm|gemma_?(rms)?_?norm",)),
    (
        "gemm",
        (
            r"gemm|gemv|gemt|nvjet|xmma|wgmma|cublas|rocblas|hipblas|magma_|cijk_|tensile",
            r"(?<![a-z])(mat_?mul|[bgvs]?mm|sp?mm|trmm|trsm|syrk|ffma)(?![a-z])|matmul",
            r"^(void )?(cutlass|ck::)|cutlass.*(kernel2|tensorop|simt|device_kernel)|cutlass_?\d",
            r"split_?k.*reduce|reduce_1block|fused_moe|marlin|bgmv|sgmv|tinygemm|wvsplitk",
            r"lora_(shrink|expand)",
            r"^(void )?(dot|scal|axpy|nrm2|asum|swap|rot|ger)_kernel",
        ),
    ),
    ("softmax", (r"soft_?max|nll_?loss|cross_?entropy|log_?sum_?exp",)),
    (
        "norm",
        (
            r"(layer|rms|group|batch|instance|weight|l2|qk|add)_?norm(?!al)|\bln_(fwd|bwd)",
            r"gamma_?beta|rowwisemoments|computeinternalgradients|fusedparams|\bbn_(fw|bw)",
            r"norm(?=_?(fwd|bwd|forward|backward))|cuapplylayer|cucomputegradinput|fused_(\w+_)?ln\b",
        ),
    ),
    # State space models and linear attention: neither a scan nor a product alone.
    ("other", (r"selective_scan|chunk_(scan|state)|state_passing|delta_rule",)),
    (
        "random",
        (
            r"distribution_|philox.*(uniform|normal)|curand|dropout|bernoulli|multinomial",
            r"rand(perm|int|om|n)?_|random|uniform_kernel|normal_kernel|exponential_kernel",
        ),
    ),
    (
        "copy",
        (
            r"catarraybatchedcopy|chunk_cat|split_with_sizes_copy|fillfunctor",
            r"copy_blocks|swap_blocks",
        ),
    ),
    (
        "reduce",
        (
            r"topk|sort(?!ed)|radix|unique|histogram|median|kthvalue|bitonic|mode_kernel",
            r"device_?(reduce|scan|select|segmented|compact|run)|segment_?reduce",
        ),
    ),
    ("elementwise", (r"rotary|(?<![a-z])rope(?![a-z])",)),
    (
        "embedding",
        (
            r"embedding|index_?(select|elementwise|put|copy|add|fill|func)|indexing_backward",
            r"gather|scatter|gpu_index|sum_and_scatter|krn_partial",
            r"compute_(grad_weight|num_of_partial)|take_put",
        ),
    ),
    (
        "reduce",
        (
            r"reduce_?(single|kernel|op|tile)|reduce_\w*kernel|\breduction|norm_kernel|argm(ax|in)",
            r"cumsum|cumprod|prefix_?sum|scan_|scan_?kernel|_scan\b|cub::.*reduce|moe_sum",
        ),
    ),
    (
        "elementwise",
        (
            r"element_?wise|element_mul|pointwise|copy|(?<!pre)fill|where|cast|convert|opmath|masked",
            r"[gs]elu|silu|relu|(swi|ge)glu|glu(?![a-z])|sigmoid|tanh|act_and_mul|gated_act|activation|bias|quant",
            r"tril|triu|arange|linspace|transpose|permute|catarray|roll_|flip|pad\dd_|addpadding",
            r"nchwtonhwc|nhwctonchw|op_(generic_)?tensor|(unary|binary)_transform|lerp|\b(add|mul)_|cvt_|addc(mul|div)",
        ),
    ),
)
_COMPILED = [
    (category, re.compile("|".join(patterns), re.IGNORECASE)) for category, patterns in RULES
]


@cache
def classify(name: str) -> str:
    """One of `CATEGORIES` for a kernel, a copy or a fill; remembered per name."""
    fused = fused_category(name)
    if fused:
        return fused
    return next((category for category, rule in _COMPILED if rule.search(name)), "other")
