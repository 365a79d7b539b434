// Blocks of tokens for many rows (prefill): keys and values are packed once, as fp32, for all rows
// of the task.
#pragma once

#include "cpu/block_products.h"
#include "cpu/block_tiles.h"
#include "cpu/code_products.h"
#include "cpu/delta_rows.h"

namespace minicache {
namespace MINICACHE_ISA {

static inline void PackKeys(const Vectors& v, const BlockView& block, int64_t width, float* out) {
  if (v.dtype == Dtype::kFloat32) {
    return PackKeys<Float32>(v.data, v.stride, block.begin, block.end, width, out);
  }
  if (v.dtype == Dtype::kFloat16) {
    return PackKeys<Float16>(v.data, v.stride, block.begin, block.end, width, out);
  }
  return PackKeys<Bfloat16>(v.data, v.stride, block.begin, block.end, width, out);
}

static inline void PackValues(const Vectors& v, const BlockView& block, int64_t width, float* out) {
  if (v.dtype == Dtype::kFloat32) {
    return PackValues<Float32>(v.data, v.stride, block.begin, block.end, width, out);
  }
  if (v.dtype == Dtype::kFloat16) {
    return PackValues<Float16>(v.data, v.stride, block.begin, block.end, width, out);
  }
  return PackValues<Bfloat16>(v.data, v.stride, block.begin, block.end, width, out);
}

static inline BlockAhead NextBlock(const AttendTask& task, const BlockView& block) {
  const TokenRun& run = *block.run;
  const int64_t first = block.first + kBlockTokens, left = run.end - first;
  if (run.slots || left <= 0) return {};
  return {run.key + first * run.stride, run.value + first * run.stride, run.stride,
          task.head_size * ElementBytes(run.dtype), left < kBlockTokens ? left : kBlockTokens};
}

static inline void AttendManyVectors(const AttendTask& task, const BlockView& block, int64_t rows,
                                     const Workspace& w) {
  const int64_t width = RoundToLanes(task.head_size);
  PackKeys(ViewVectors(task, block, block.run->key, w.vectors), block, width, w.key_panels);
  PackValues(ViewVectors(task, block, block.run->value, w.vectors), block, width, w.value_panels);
  const BlockOperands x = {w.interleaved,  width, w.key_panels,
                           w.value_panels, width, w.softmax.output};
  AttendTiles(task, block, nullptr, rows, x, NextBlock(task, block), w.softmax);
}

static inline void PackKeyCodes(const AttendTask& task, const BlockView& block, int64_t depth,
                                const Workspace& w) {
  const CodeFormat& format = *task.key_format;
  const CodeBlock codes = {block.run->key + block.first * format.bytes, block.begin, block.end};
  const bool turned = !task.delta_format || HasTurnedDeltas(task, block);
  if (turned && format.layout == Layout::kTile && IsVectorisable(format)) {
    ReadKeysTransposed(format, codes, w.vectors);
    if (task.delta_format) AddTurnedDeltas(task, block, w.delta_vectors, w.vectors);
    for (int64_t c = format.components; c < depth; c++) {
      memset(w.vectors + c * kBlockTokens, 0, kBlockTokens * sizeof(float));
    }
    PackTurnedKeys(w.vectors, depth, w.key_panels);
  } else {
    const Vectors keys = ViewCodes(format, false, codes, task.widths.key, w.vectors);
    if (task.delta_format) {
      AddDeltaRows(task, block, false, w.vectors, task.widths.key, w.delta_vectors, w.key_panels);
    }
    PackKeys(keys, block, depth, w.key_panels);
  }
}

static inline void AttendManyCodes(const AttendTask& task, const BlockView& block, int64_t rows,
                                   const Workspace& w) {
  const int64_t depth = RoundToLanes(task.key_format->components);
  PackKeyCodes(task, block, depth, w);
  const CodeFormat& format = *task.value_format;
  const CodeBlock codes = {block.run->value + block.first * format.bytes, block.begin, block.end};
  const Vectors values = ViewCodes(format, true, codes, task.widths.value, w.vectors);
  if (task.delta_format) {
    AddDeltaRows(task, block, true, w.vectors, task.widths.value, w.delta_vectors, w.value_panels);
  }
  PackValues(values, block, values.width, w.value_panels);
  TokenFactors factors;
  ReadMagnitudes(block, &factors);
  float* output = w.softmax.output + task.widths.output - task.widths.value;
  const BlockOperands x = {w.code_interleaved, depth,        w.key_panels,
                           w.value_panels,     values.width, output};
  AttendTiles(task, block, &factors, rows, x, {}, w.softmax);
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
