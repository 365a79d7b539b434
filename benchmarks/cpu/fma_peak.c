/* Fused multiply-adds on registers alone: twelve chains, enough to hide the latency of each. */
#include <stdint.h>

#if defined(__AVX512F__)
#define REGISTER "zmm"
#else
#define REGISTER "ymm"
#endif
#define CHAIN(i) "vfmadd231ps %%" REGISTER "15, %%" REGISTER "14, %%" REGISTER #i "\n"

void fma_loop(int64_t rounds) {
  __asm__ volatile("vxorps %%xmm14, %%xmm14, %%xmm14\nvxorps %%xmm15, %%xmm15, %%xmm15\n" ::
                       : "xmm14", "xmm15");
  for (int64_t i = 0; i < rounds; i++) {
    __asm__ volatile(CHAIN(0) CHAIN(1) CHAIN(2) CHAIN(3) CHAIN(4) CHAIN(5) CHAIN(6) CHAIN(7)
                         CHAIN(8) CHAIN(9) CHAIN(10) CHAIN(11)::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                               "xmm8", "xmm9", "xmm10", "xmm11");
  }
}
