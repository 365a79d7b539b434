// The kernels of one instruction set, and the choice between them.
#pragma once

#include <cstdint>

#include "minicache/attend.h"
#include "minicache/encode.h"
#include "minicache/observe.h"

namespace minicache {

struct KernelTable {
  const char* isa;
  bool has_integers;  // products with codes in Maths::kInt16 and kInt8
  // Floats of scratch that a task of `rows` rows needs.
  int64_t (*attend_scratch)(int64_t rows, const Widths& widths);
  void (*attend)(const AttendTask& task);
  // With a decoder: the task's queries as they meet a segment's key codes: [rows, widths.key].
  void (*project)(const AttendTask& task, int64_t segment, float* target);
  int64_t (*finish_scratch)(int64_t rows, const Widths& widths);
  void (*finish)(const FinishTask& task);
  int64_t (*observe_scratch)(int64_t rows, const Widths& widths);
  void (*observe)(const ObserveTask& task);
  int64_t (*encode_scratch)(int64_t layers, int64_t padded_size);
  void (*encode)(const EncodeTask& task);
  // `subspace`: from vectors to components, then, with all of them at hand, to codes.
  int64_t (*joint_scratch)(int64_t tokens, int64_t joint);
  void (*project_joint)(const JointTask& task);
  void (*quantise_joint)(const JointTask& task);
  void (*copy)(const CopyTask& task);
};

// The kernels of the best instruction set that the machine has; the environment variable
// MINICACHE_ISA (baseline, avx2, avx512, avx512vnni) asks for one, and gets it or the best below
// it.
const KernelTable& Kernels();

}  // namespace minicache
