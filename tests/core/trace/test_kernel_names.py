"""Short names of kernels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.trace.kernel_names import short_kernel_name, short_kernel_names

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (ADD, "add fp32"),
        (ADD.replace("<4,", "<(int)4,").replace("float", "c10::BFloat16"), "add bf16"),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
            "at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
            "at::native::binary_internal::MulFunctor<float> > >(...)::{lambda(int)#1}>(int, ...)",
            "mul bf16",
        ),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
            "at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}>(int)",
            "copy fp32",
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
            "at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >(...)",
            "mean fp32",
        ),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_"
            "execute_segment_k_off_kernel__5x_cublas",
            "gemm 128x128 tn",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>"
            "(cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4::Params)",
            "gemm 128x128 nn",
        ),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32_MI16x16x1", "gemm 128x256 tn"),
        ("[CUDA memcpy Host-to-Device]", "memcpy HtoD"),
        ("Memcpy HtoD (Pageable -> Device)", "memcpy HtoD pageable"),
        ("Memset (Device)", "memset"),
        ("triton_poi_fused_mul_silu_2", "triton mul_silu 2"),
        (
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
            "nccl AllReduce_RING_LL_Sum_float",
        ),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8EEEvPT0_", "add_rmsnorm_quant"),
        ("gemm_kernel", "gemm_kernel"),
        ("aten::mm", "aten::mm"),
        ("cudaDeviceSynchronize", "cudaDeviceSynchronize"),
        ("idle: waiting for the CPU to launch", "idle: waiting for the CPU to launch"),
        ("(12 more)", "(12 more)"),
    ],
)
def test_name_says_what_a_kernel_computes(name: str, short: str) -> None:
    assert short_kernel_name(name) == short


CODE = st.text(alphabet="at:<>(){}_ ,*&#x0123456789MulFunctor", min_size=1, max_size=60)


@given(
    names=st.lists(CODE | st.sampled_from([ADD, ADD.replace("4", "8"), "memset", "gemm_1x1_nn"]))
)
def test_different_names_stay_different(names: list[str]) -> None:
    short = short_kernel_names(names)
    assert set(short) == set(names)
    assert len(set(short.values())) == len(set(names))


def test_a_word_of_their_names_distinguishes_similar_kernels() -> None:
    unrolled = ADD.replace("vectorized", "unrolled")
    short = short_kernel_names([ADD, unrolled])
    assert short[unrolled] == "add fp32 unrolled"
