// Chooses the instruction set once, when the first node is created.
#include <cstdlib>
#include <cstring>

#include "minicache/kernels.h"

namespace minicache {

namespace baseline {
extern const KernelTable kKernels;
}
#if defined(MINICACHE_X86)
namespace avx2 {
extern const KernelTable kKernels;
}
namespace avx512 {
extern const KernelTable kKernels;
}
#endif

namespace {

const KernelTable& Choose() {
#if defined(MINICACHE_X86)
  const char* wanted = std::getenv("MINICACHE_ISA");
  const auto allows = [wanted](const char* isa) {
    // Wanting AVX-512 allows AVX2; an unknown name allows everything.
    if (wanted == nullptr || std::strcmp(wanted, isa) == 0) return true;
    if (std::strcmp(wanted, "baseline") == 0) return false;
    return !(std::strcmp(wanted, "avx2") == 0 && std::strcmp(isa, "avx512") == 0);
  };
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (has_avx512 && allows("avx512")) return avx512::kKernels;
  if (has_avx2 && allows("avx2")) return avx2::kKernels;
#endif
  return baseline::kKernels;
}

}  // namespace

const KernelTable& Kernels() {
  static const KernelTable& chosen = Choose();
  return chosen;
}

}  // namespace minicache
