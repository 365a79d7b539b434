// Chooses the instruction set once, when the first node is created.
#include <cstdlib>
#include <cstring>
#include <utility>

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
namespace avx512vnni {
extern const KernelTable kKernels;
}
#endif

namespace {

const KernelTable& Choose() {
#if defined(MINICACHE_X86)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool has_vnni = has_avx512 && __builtin_cpu_supports("avx512vnni");
  // The best one first; each allows those below it.
  const std::pair<const KernelTable*, bool> all[] = {{&avx512vnni::kKernels, has_vnni},
                                                     {&avx512::kKernels, has_avx512},
                                                     {&avx2::kKernels, has_avx2},
                                                     {&baseline::kKernels, true}};
  const char* wanted = std::getenv("MINICACHE_ISA");
  bool known = false;
  for (const auto& [table, here] : all) {
    known |= wanted != nullptr && std::strcmp(wanted, table->isa) == 0;
  }
  bool allowed = !known;  // an unknown name allows everything
  for (const auto& [table, here] : all) {
    allowed |= known && std::strcmp(wanted, table->isa) == 0;
    if (allowed && here) return *table;
  }
#endif
  return baseline::kKernels;
}

}  // namespace

const KernelTable& Kernels() {
  static const KernelTable& chosen = Choose();
  return chosen;
}

}  // namespace minicache
