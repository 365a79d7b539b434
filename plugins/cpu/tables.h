// Products with decoders and encoders, and the rotation into the frame of
// a segment.
#pragma once

#include "cpu/products.h"
#include "cpu/rows.h"

namespace minicache {
namespace MINICACHE_ISA {

// Rows of a table that are multiplied together: they stay in the cache for all rows of x.
constexpr int64_t kTableRows = 16;

// out[r, c] = table[c] . x[r] for the rows [begin, end) of the table, `table_stride` elements
// apart. Behind its `width` a row of x is zero up to a multiple of kLanes; `copy` holds kTableRows
// rows of the table.
static inline void ProjectRows(const float* x, int64_t x_stride, int64_t rows, const char* table,
                               Dtype dtype, int64_t table_stride, int64_t width, int64_t begin,
                               int64_t end, float* copy, float* out, int64_t out_stride) {
  for (int64_t c = begin; c < end; c += kTableRows) {
    const int64_t n = end - c < kTableRows ? end - c : kTableRows;
    const Vectors v = ViewTable(table, dtype, table_stride, width, c, n, copy);
    if (v.dtype == Dtype::kFloat16) {
      Dots<Float16>(x, x_stride, v.data, v.stride, rows, n, v.width, out + c, out_stride, nullptr);
    } else {
      Dots<Float32>(x, x_stride, v.data, v.stride, rows, n, v.width, out + c, out_stride, nullptr);
    }
  }
}

// out[r] += sum_c x[r, c] * table[c] over `depth` rows of the table.
static inline void MapRows(const float* x, int64_t x_stride, int64_t rows, const char* table,
                           Dtype dtype, int64_t width, int64_t depth, float* copy, float* out,
                           int64_t out_stride) {
  const int64_t step = width % kLanes == 0 ? depth : kTableRows;
  for (int64_t c = 0; c < depth; c += step) {
    const int64_t n = depth - c < step ? depth - c : step;
    const Vectors v = ViewTable(table, dtype, width, width, c, n, copy);
    if (v.dtype == Dtype::kFloat16) {
      AddProduct<Float16>(x + c, x_stride, v.data, v.stride, rows, n, v.width, out, out_stride);
    } else {
      AddProduct<Float32>(x + c, x_stride, v.data, v.stride, rows, n, v.width, out, out_stride);
    }
  }
}

// Turns one vector into the frame of a segment, in place.
static inline void Turn(const Rotation& rotation, int64_t segment, float* x) {
  if (segment == 0) return;
  const int64_t n = rotation.pairs;
  const float* cosine = rotation.cosine + segment * n;
  const float* sine = rotation.sine + segment * n;
  const int64_t step = rotation.interleaved ? 2 : 1, apart = rotation.interleaved ? 1 : n;
  for (int64_t i = 0; i < n; i++) {
    const float a = x[i * step], b = x[i * step + apart];
    x[i * step] = a * cosine[i] - b * sine[i];
    x[i * step + apart] = a * sine[i] + b * cosine[i];
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
