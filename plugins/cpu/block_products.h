// Products of few queries and weights with one block of tokens: vectors as they lie in memory, or
// codes that were read into fp32 scratch.
#pragma once

#include "cpu/products.h"
#include "cpu/rows.h"
#include "cpu/workspace.h"

namespace minicache {
namespace MINICACHE_ISA {

static inline Vectors ViewVectors(const AttendTask& task, const BlockView& block, const char* data,
                                  float* copy) {
  const TokenRun& run = *block.run;
  if (!run.slots && task.head_size % kLanes == 0) {
    return {data + block.first * run.stride, run.stride, task.head_size, run.dtype};
  }
  const int64_t width = task.widths.vector;
  for (int t = block.begin; t < block.end; t++) {
    const int64_t slot = run.slots ? run.slots[block.first + t] : block.first + t;
    ToFloat(run.dtype, data + slot * run.stride, task.head_size, copy + t * width);
  }
  ClearTails(copy, width, block.begin, block.end, task.head_size, width);
  return {(const char*)copy, width * 4, width, Dtype::kFloat32};
}

// `stride` in floats.
static inline Vectors ViewCodes(const CodeFormat& format, bool values, const CodeBlock& block,
                                int64_t stride, float* copy) {
  const int64_t width = RoundToLanes(format.components);
  ReadCodes(format, values, block, copy, stride);
  ClearTails(copy, stride, block.begin, block.end, format.components, width);
  return {(const char*)copy, stride * 4, width, Dtype::kFloat32};
}

template <class E>
static inline void ScoreVectors(const Queries& query, const BlockView& block, const Vectors& keys,
                                const char* ahead, int64_t rows, const Workspace& w) {
  Dots<E>(query.data, query.stride, keys.data + block.begin * keys.stride, keys.stride, rows,
          block.end - block.begin, keys.width, w.softmax.scores + block.begin, kBlockTokens, ahead);
}

static inline void Score(const Queries& query, const BlockView& block, const Vectors& keys,
                         const char* ahead, int64_t rows, const Workspace& w) {
  if (keys.dtype == Dtype::kFloat32) {
    return ScoreVectors<Float32>(query, block, keys, ahead, rows, w);
  }
  if (keys.dtype == Dtype::kFloat16) {
    return ScoreVectors<Float16>(query, block, keys, ahead, rows, w);
  }
  return ScoreVectors<Bfloat16>(query, block, keys, ahead, rows, w);
}

template <class E>
static inline void AddVectors(const AttendTask& task, const BlockView& block, const Vectors& values,
                              const char* ahead, int64_t rows, const Workspace& w, float* output) {
  AddProduct<E>(w.softmax.scores + block.begin, kBlockTokens,
                values.data + block.begin * values.stride, values.stride, rows,
                block.end - block.begin, values.width, output, task.widths.output, ahead);
}

static inline void AddValues(const AttendTask& task, const BlockView& block, const Vectors& values,
                             const char* ahead, int64_t rows, const Workspace& w, float* output) {
  if (values.dtype == Dtype::kFloat32) {
    return AddVectors<Float32>(task, block, values, ahead, rows, w, output);
  }
  if (values.dtype == Dtype::kFloat16) {
    return AddVectors<Float16>(task, block, values, ahead, rows, w, output);
  }
  return AddVectors<Bfloat16>(task, block, values, ahead, rows, w, output);
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
