"""Kernels of other programs, as published profiles of them name them; long arguments are cut.

Each stands for a family that a rule knows: serving engines, AMD's libraries, ggml, XLA, cuDNN.
"""

from __future__ import annotations

import pytest

from sysbench.core.trace.classify import classify

NAMES = {
    "gemm": """
        void mul_mat_q<(ggml_type)14, (int)32, (bool)0>(const char *, const int *, const int *)
        void mul_mat_vec_q<(ggml_type)8, 4, false, false>(void const*, void const*)
        mfma_moe2_afp8_wfp4_bf16_cshuffle_t32x256x256
        void opus_moe::stage1_a8w4::pipeline_group_split::opus_moe_stage1_a8w4_kernel<...>
        void w4a16_sm90_kernel<Trait<2112, 7168>, true>(CUtensorMap, Params)
        gluon_bf16_moe_stage1_kernel
        _ZN5aiter24bf16gemm_bf16_tn_256x256E.kd
        _wmma_tdm_dense_m16_kernel
        void cutlass_kernels::computeStridesTmaWarpSpecializedKernel<__nv_bfloat16>(...)
    """,
    "attention": """
        bwd_preprocess
        bwd_kernel_dk_dv
        attn_fwd.kd
        void deep_gemm::sm90_fp8_paged_mqa_logits<1u, 64u>
        _ZN5aiter45mla_a8w8_qh32_qseqlen4_gqaratio32_lse_cprr_psE.kd
        void gqa_d192_v128_kernel<opus_gqa_d192_traits<32, 64, 8, true, true> >
        _paged_decode_split_kernel
        _dsa_dense_mfma_kv_kernel
        merge_state_kernel
        void flash::prepare_varlen_num_blocks_kernel<1, true>
    """,
    "softmax": """
        void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*, float*, float*)
        void topkGatingSoftmax<__nv_bfloat16, 8, 128, 4, 16>
    """,
    "norm": """
        _gemma_fused_add_rmsnorm_kernel
        _q_kv_norm_rope_cache_bf16_kernel
        void norm_quant<false, 512>(unsigned short const*, unsigned short const*)
        void welford_kernel_c_last<float, float, float, 4>(...)
        void (anonymous namespace)::fused_qknorm_warp<128l, true, __nv_bfloat16>
        kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_0
    """,
    "elementwise": """
        void tensorTransformGeneric<__nv_bfloat16, float, true>(cudnnTensorTransformStruct, int)
        void cudnn::ops::scalePackedTensor_kernel<float, float>(cudnnTensor4dStruct, float*, float)
        void Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<Eigen::TensorAssignOp<...>>>
        void vllm::situ_and_mul_kernel<c10::BFloat16>
        void vllm::apply_repetition_penalties_kernel<float>(float*, bool const*, bool const*)
        void marlin::gptq_marlin_repack_kernel<(int)256, (int)4, (bool)0, (bool)0>(...)
        fused_add_reciprocal_mul_sin_pow_mul_add
        loop_multiply_fusion_1
        _indexed_scale_shift_kernel
        fused_gdn_gating_kernel
    """,
    "reduce": """
        void vllm::moe::moe_align_block_size_kernel<int>(...)
        void rocprim::ROCPRIM_400200_NS::detail::trampoline_kernel<...>
        void at_cuda_detail::cub::detail::rle::DeviceRleSweepKernel<...>(...)
        moe_weighted_reduction_f32_v4(float const*, float const*, float const*, float*)
        input_reduce_fusion_92
        triton_spl_fused_cumsum_1
        triton_mix_fused_add_mul_sum_4
    """,
    "embedding": """
        void k_get_rows_float<float, float>(...)
        void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<__nv_bfloat16>(...)
        void tensorrt_llm::kernels::lookup_kernel<__half, int>(...)
        void fbgemm_gpu::split_embedding_nobag_codegen_forward_unweighted_small_kernel<...>(...)
        _sort_chunks_by_map_kernel
        _unpermute_kernel
    """,
    "copy": """
        void kernelPointwiseApply1<TensorFillOp<float>, float, unsigned int, 1>(...)
        void at::native::(anonymous namespace)::CatArrayBatc...
        <unnamed>::concat_mla_absorb_q_kernel(__nv_bfloat16 *, __nv_bfloat16 *)
    """,
    "communication": """
        mscclKernel_Sum_hip_bfloat16_Simple_false
        flashinfer::comm::ulysses_pcie::UlyssesPcieBarrier(unsigned long *, int, int)
        _dcp_a2a_pack_send_kernel.kd
        oneshot_ar
    """,
    "convolution": """
        void flip_filter<float, float>(float *, const float *, int, int, int, int)
        void cask_cudnn_infer::computeOffsetsKernel<(bool)0, (bool)0>(...)
        void cudnn::cnn::kern_precompute_indices<false>(int*, int, int, int, int, int, int)
        turing_h1688cudnn_256x128_ldg8_relu_exp_interior_nhwc_tn_v1
    """,
    "random": """
        triton_poi_fused_randn_like_1
    """,
    "other": """
        stock_gdn_scan_kernel.kd
        void RNN_blockPersist_fp_LSTM<float, float, float, 128>(...)
        solve_tril_16x16_kernel
        _chunk_state_fwd_kernel
    """,
}


@pytest.mark.parametrize("category", NAMES)
def test_a_family_of_other_programs(category: str) -> None:
    names = [line.strip() for line in NAMES[category].strip().splitlines()]
    assert {name: classify(name) for name in names} == dict.fromkeys(names, category)
