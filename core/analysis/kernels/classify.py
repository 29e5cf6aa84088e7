"""The category of a kernel by its name.

Every rule is about a family: a library's way of naming, or a word for the work. The first
that matches wins, so a rule may be broad where the rules before it took the exceptions.
"""

from __future__ import annotations

import re
from functools import cache

from ..fused_names import fused_category

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
            r"(?<![a-z])((m?mha|[gm]qa|mla|xqa)(?![a-z])|[dn]sa_(?!\w*topk)|fna_)|natten",
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
    # What sounds like a product: Gemma's norms, and weights laid out anew for one.
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
            r"catarray|chunk_cat|split_with_sizes_copy|(?<!masked)fill(functor|op)",
            r"copy_blocks|swap_blocks",
        ),
    ),
    # Tokens moved to their experts and back: rows by an index, though it was found by sorting.
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
            r"packedtensor|opmath|eigenmetakernel|loop_\w*fusion",
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
