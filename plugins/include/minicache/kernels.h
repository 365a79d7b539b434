// The kernels of one instruction set, and the choice between them.
#pragma once

#include <cstdint>

#include "minicache/attend.h"
#include "minicache/encode.h"

namespace minicache {

struct KernelTable {
  const char* isa;
  // Floats of scratch that a task of `rows` rows and padded head size needs.
  int64_t (*attend_scratch)(int64_t rows, int64_t padded_size);
  void (*attend)(const AttendTask& task);
  void (*finish)(const FinishTask& task);
  int64_t (*encode_scratch)(int64_t layers, int64_t padded_size);
  void (*encode)(const EncodeTask& task);
  void (*copy)(const CopyTask& task);
};

// The kernels of the best instruction set that the machine has; the environment variable
// MINICACHE_ISA (baseline, avx2, avx512) asks for one, and gets it or the best below it.
const KernelTable& Kernels();

}  // namespace minicache
