from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sysbench.core.trace.classify import (
    CATEGORIES,
    classify,
    classify_operator,
    fused_operators,
)

# Names as profilers print them; long template arguments are cut.
KERNELS = {
    "gemm": """
        ampere_sgemm_128x64_tn
        volta_sgemm_32x32_sliced1x4_nt
        nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN
        sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_kernel__5x_cublas
        void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>(...)
        void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<...>>(...)
        cutlass3x_sm100_s128x256_bgrada
        void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(...)
        void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float>(...)
        void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>>>(...)
        void epilogue::impl::globalKernel<float, float, float>(cublasLtEpilogue_t, ...)
        Cijk_Alik_Bljk_HB_MT128x128x32_MI32x32x8x1_SN
        fused_moe_kernel
        _w8a8_block_fp8_matmul
        void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 2112u, 7168u, 1u, 128u>(...)
        bmm_E2m1_E2m1E2m1_Fp32_t128x8x512_s6_et64x8_TN_transOut_schS_swiGlu_dynBatch_sm100f
        void marlin::Marlin<__nv_bfloat16, 256, 4, 16, 4, true, 4, 8, false>(...)
        void ck_tile::kentry<256, 1, ck_tile::GemmKernel<...>>
        wvSplitK_hf_sml_
        _lora_expand_kernel
        void internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, float, false>(...)
        triton_mm
        triton_tem_fused__to_copy_mm_t_7
    """,
    "attention": """
        void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128>>(...)
        void pytorch_flash::flash_bwd_convert_dq_kernel<Flash_bwd_kernel_traits<64>>(...)
        fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>)
        cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x
        void cudnn::fusion::compute_dot_do_o<false, 128, 128>(...)
        void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...>>>
        void flashinfer::SinglePrefillWithKVCacheKernel<...>(...)
        _attn_bwd_dkdv
        _fwd_grouped_kernel_stage1
        kernel_mha
        void flashinfer::MergeStatesKernel<...>(...)
        void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<...>>(...)
        fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKvCausalP32VarSeqQ128Kv128
        kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100
        void vllm::merge_attn_states_kernel<...>(...)
        triton_tem_fused_flex_attention_backward_2
    """,
    "softmax": """
        void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false>(...)
        void at::native::(anonymous namespace)::cunn_SoftMaxBackward<4, float, float>(...)
        void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>(...)
        liger_cross_entropy_kernel
        triton_red_fused__log_softmax_nll_loss_forward_5
    """,
    "norm": """
        void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(...)
        void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float>(...)
        void at::native::(anonymous namespace)::cuComputeGradInput<float, float>(...)
        void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct)
        void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(...)
        void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(...)
        void flashinfer::norm::GemmaRMSNormKernel<8u, __nv_bfloat16>(...)
        void transformer_engine::normalization::ln_fwd_tuned_kernel<...>(...)
        void fused_residual_ln<__half, 1, 2, 256, 4>(...)
        triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_1
    """,
    "elementwise": """
        void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(...)
        exp2_kernel_vectorized4_kernel
        void at::native::triu_tril_kernel<bool, int, false, 1, false>(...)
        void vllm::rotary_embedding_kernel<c10::BFloat16, true>(...)
        void vllm::act_and_mul_kernel<c10::BFloat16>(...)
        void cudnn::ops::nchwToNhwcKernel<__half, __half, float>(...)
        void transformer_engine::(anonymous namespace)::gated_act_kernel<...>(...)
        void transformer_engine::cast_transpose_kernel<...>(...)
        kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 1>
        _swiglu_forward_kernel
        void at::native::(anonymous namespace)::glu_backward_kernel<float>(...)
        triton_poi_fused_mul_silu_2
        triton_poi_fused_convolution_0
    """,
    "reduce": """
        void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps<float>>>(...)
        void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, NormTwoOps<float>>>(...)
        void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<...>(...)
        void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(...)
        triton_per_fused_add_sum_4
        triton_red_fused_mm_2
    """,
    "embedding": """
        void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long>(...)
        void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)
        void at::native::_scatter_gather_elementwise_kernel<128, 8, ...>(...)
        void at::native::(anonymous namespace)::compute_grad_weight<float, long>(...)
        triton_poi_fused_embedding_dense_backward_0
    """,
    "optimizer": """
        void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>(...)
        void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float, float>(...)
        kOptimizer32bit1State
        void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>>(...)
        void adam_kernel<float>(...)
        kPercentileClipping<float, 2048, 4>
        triton_for_fused_0
    """,
    "copy": """
        Memcpy HtoD (Pageable -> Device)
        void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(...)>
        void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda>
        void at::native::elementwise_kernel<128, 4, at::native::float8_copy_kernel_cuda(...)>
        [CUDA memset]
        CopyDeviceToHost
        __amd_rocclr_fillBufferAligned
        void vllm::concat_and_cache_mla_kernel<...>(...)
        void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(...)
        void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<...>(...)
    """,
    "communication": """
        ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)
        ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)
        void multimem_all_reduce_kernel<...>(...)
        void c10d::symmetric_memory::one_shot_all_reduce_kernel<...>(...)
        void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(...)
        ncclSymkDevKernel_AllGather_STMC
        ncclAllReduceRingLLKernel_sum_f32(ncclColl)
        ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)
        multimem_one_shot_all_reduce_kernel<__nv_bfloat16>
        ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)
        void deep_ep::intranode::dispatch<8, 768, 8192>(...)
        userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_stride
    """,
    "convolution": """
        void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1>(...)
        void fft2d_r2c_32x32<float, false, 0u, false>(...)
        void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<...>>(...)
        volta_scudnn_128x64_relu_interior_nn_v1
        sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_kernel__5x_cudnn
        void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_optimized_align8>(...)
        void at::native::im2col_kernel<float>(long, float const*, long, long)
    """,
    "random": """
        void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float>
        void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float>(...)
        triton_poi_fused_randn_0
    """,
    "other": """
        spin_kernel(long)
        void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<...>>(...)
        void (anonymous namespace)::lambda_holder<2>(...)
        void at::native::(anonymous namespace)::max_pool_forward_nhwc<float>(...)
        void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float, float>(...)
    """,
}
OPERATORS = {
    "gemm": "aten::mm aten::addmm aten::linear aten::_scaled_mm MmBackward0 BmmBackward0",
    "attention": "aten::_scaled_dot_product_flash_attention_for_cpu "
    "ScaledDotProductFlashAttentionForCpuBackward0 aten::_flash_attention_forward",
    "softmax": "aten::_log_softmax aten::_softmax_backward_data NllLossBackward0",
    "norm": "aten::_fused_rms_norm aten::native_layer_norm NativeLayerNormBackward0",
    "elementwise": "aten::add_ aten::mul MulBackward0 aten::silu_backward aten::rsqrt aten::where",
    "reduce": "aten::sum SumBackward1 aten::linalg_vector_norm aten::argmax",
    "embedding": "aten::embedding aten::index_select EmbeddingBackward0 aten::index_put_",
    "optimizer": "aten::_fused_adamw_ aten::_foreach_addcdiv_",
    "copy": "aten::copy_ aten::_to_copy aten::cat aten::zero_ CloneBackward0",
    "communication": "c10d::allreduce_ gloo:all_reduce record_param_comms",
    "convolution": "aten::conv2d ConvolutionBackward0",
    "random": "aten::normal_ aten::bernoulli_ aten::dropout",
    "other": "aten::view aten::t aten::empty TBackward0 torch::autograd::AccumulateGrad",
}


@pytest.mark.parametrize("category", CATEGORIES)
def test_kernels_of_each_family(category: str) -> None:
    names = [line.strip() for line in KERNELS[category].strip().splitlines()]
    assert {name: classify(name) for name in names} == dict.fromkeys(names, category)


@pytest.mark.parametrize("category", CATEGORIES)
def test_operators_of_each_family(category: str) -> None:
    names = OPERATORS[category].split()
    assert {name: classify_operator(name) for name in names} == dict.fromkeys(names, category)


def test_a_word_inside_a_mangled_name_is_none() -> None:
    """``NSA_I`` is a nested name, a substitution and the begin of its arguments."""
    assert classify("_ZN7library3fooIL_NSA_IfEEE") == "other"
    assert classify("nsa_fwd_kernel") == classify("NSA_fwd") == "attention"
    assert classify("void sage_fwd<128>(unsigned char*)") == "attention"


def test_listed_real_names(shared_data: Path) -> None:
    with (shared_data / "kernel_names.tsv").open() as file:
        listed = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    wrong = [one["name"] for one in listed if classify(one["name"]) != one["category"]]
    assert len(listed) > 70
    assert not wrong


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("triton_poi_fused__to_copy_add_mul_silu_2", "_to_copy add mul silu"),
        (
            "triton_red_fused_add_native_layer_norm_native_layer_norm_backward_0",
            "add native_layer_norm native_layer_norm_backward",
        ),
        ("triton_per_fused__softmax__to_copy_where_12", "_softmax _to_copy where"),
        ("triton_poi_fused_copy__3", "copy_"),
        (
            "graph_0_cpp_fused__log_softmax_backward_data_nll_loss_backward_7",
            "_log_softmax_backward_data nll_loss_backward",
        ),
        ("triton_poi_fused_0", ""),
        ("void vllm::rms_norm_kernel<float>", ""),
        ("triton_mm", ""),
    ],
)
def test_operators_of_fused_kernels(name: str, operators: str) -> None:
    assert fused_operators(name) == tuple(operators.split())
