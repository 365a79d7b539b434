// Deltas of a pair, added to the directions of a block that were read into fp32 scratch.
#pragma once

#include "cpu/block_products.h"
#include "cpu/code_products.h"
#include "cpu/tables.h"

namespace minicache {
namespace MINICACHE_ISA {

static inline CodeBlock DeltaBlock(const CodeFormat& format, const DeltaRun& delta,
                                   const BlockView& block) {
  return {delta.code + block.first * format.bytes, block.begin, block.end};
}

// Times `sign`; zeros around the block's tokens: halves that were never written may be NaN.
static inline void ReadRatios(const DeltaRun& delta, const BlockView& block, float sign,
                              float* ratios) {
  alignas(64) uint16_t halves[kBlockTokens] = {};
  memcpy(halves + block.begin, delta.ratio + block.first + block.begin,
         (size_t)(block.end - block.begin) * sizeof(uint16_t));
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    Store(ratios + t, Set(sign) * Float16::Lanes((const char*)(halves + t)));
  }
}

// rows[t] += ratio * delta for the tokens of a block: [kBlockTokens, stride] stored directions.
// `scratch` holds kBlockTokens * widths.delta floats, `copy` kTableRows * widths.vector.
static inline void AddDeltaRows(const AttendTask& task, const BlockView& block, bool values,
                                float* rows, int64_t stride, float* scratch, float* copy) {
  const CodeFormat& format = *task.delta_format;
  const DeltaRun& delta = values ? block.run->value_delta : block.run->key_delta;
  const int64_t width = task.widths.delta;
  const Vectors vectors =
      ViewCodes(format, values, DeltaBlock(format, delta, block), width, scratch);
  alignas(64) float ratios[kBlockTokens];
  ReadRatios(delta, block, task.delta_sign, ratios);
  for (int64_t t = block.begin; t < block.end; t++) {
    float* x = scratch + t * width;
    Rescale(ratios[t], vectors.width, x);
    for (int64_t i = 0; i < vectors.width && !delta.basis; i += kLanes) {
      Store(rows + t * stride + i, Load(rows + t * stride + i) + Load(x + i));
    }
  }
  if (!delta.basis) return;
  MapRows(scratch + block.begin * width, width, block.end - block.begin, delta.basis,
          delta.basis_dtype, task.head_size, format.components, copy, rows + block.begin * stride,
          stride);
}

// Whether key deltas can be read with lanes along tokens, as they lie.
static inline bool HasTurnedDeltas(const AttendTask& task, const BlockView& block) {
  return !block.run->key_delta.basis && IsVectorisable(*task.delta_format);
}

// The same for keys with lanes along tokens: `turned` [D, kBlockTokens].
static inline void AddTurnedDeltas(const AttendTask& task, const BlockView& block, float* scratch,
                                   float* turned) {
  const CodeFormat& format = *task.delta_format;
  const DeltaRun& delta = block.run->key_delta;
  ReadKeysTransposed(format, DeltaBlock(format, delta, block), scratch);
  alignas(64) float ratios[kBlockTokens];
  ReadRatios(delta, block, task.delta_sign, ratios);
  for (int64_t c = 0; c < format.components; c++) {
    for (int t = block.begin / kLanes * kLanes; t < block.end; t += kLanes) {
      const int64_t at = c * kBlockTokens + t;
      Store(turned + at, Load(turned + at) + Load(ratios + t) * Load(scratch + at));
    }
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
