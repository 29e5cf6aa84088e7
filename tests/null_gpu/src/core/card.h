/* One card, as build.py makes it of its table in cards.toml. */
#pragma once
#include <stddef.h>
#include "installed.h" /* written by build.py: versions and records of the installed CUDA */

typedef struct {
    const char *name;
    const char *aliases[8];   /* ends with NULL */
    int major, minor, code, multiprocessors;
    size_t memory_bytes, board_bytes, context_bytes;
    int l2_bytes, bus_bits, clock_mhz, memory_clock_mhz;
    int shared_block_optin, shared_multiprocessor, threads_multiprocessor, blocks_multiprocessor;
    int has_ecc, has_peer;
    double bytes_per_second, link_per_second, fp32_per_second, tf32_per_second, bf16_per_second;
    const char *gemm_fp32[4], *gemm_tf32[4], *gemm_bf16[4], *gemm_fp16[4]; /* nn nt tn tt */
    const char *attention;
} ng_card;

extern const ng_card ng_cards[];
extern const size_t ng_card_count;
