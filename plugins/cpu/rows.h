// Rows in memory that are read as they are where vectors fit them, else as a copy in fp32.
#pragma once

#include "cpu/elements.h"

namespace minicache {
namespace MINICACHE_ISA {

struct Vectors {
  const char* data;
  int64_t stride;  // bytes
  int64_t width;   // a multiple of kLanes
  Dtype dtype;
};

static inline int64_t RoundToLanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Padding enters products as a factor: what is there must be zero, not what was left behind.
static inline void ClearTails(float* rows, int64_t stride, int64_t begin, int64_t end,
                              int64_t width, int64_t padded) {
  if (width == padded) return;
  for (int64_t i = begin; i < end; i++) {
    for (int64_t c = width; c < padded; c++) rows[i * stride + c] = 0.f;
  }
}

// Rows [first, first + count) of a table whose rows are `row` elements apart; `copy` holds
// count * (width rounded to lanes).
static inline Vectors ViewTable(const char* table, Dtype dtype, int64_t row, int64_t width,
                                int64_t first, int64_t count, float* copy) {
  const int64_t stride = row * ElementBytes(dtype), padded = RoundToLanes(width);
  const char* rows = table + first * stride;
  if (width == padded) return {rows, stride, width, dtype};
  for (int64_t i = 0; i < count; i++) ToFloat(dtype, rows + i * stride, width, copy + i * padded);
  ClearTails(copy, padded, 0, count, width, padded);
  return {(const char*)copy, padded * 4, padded, Dtype::kFloat32};
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
