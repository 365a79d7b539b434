// Products with decoders and encoders, and the rotation into the frame of
// a segment.
#pragma once

#include "cpu/products.h"
#include "cpu/rows.h"

namespace minicache {
namespace MINICACHE_ISA {

// Rows of a table that are multiplied together: they stay in the cache for all rows of x.
constexpr int64_t kTableRows = 16;

// A step reads each table once, from memory: so many bytes ahead of its products it is fetched,
// into the first cache from the second, and into that one, which waits for more lines at a time,
// from memory. The tables of the next head follow, so that fetching beyond the end of one is no
// waste.
constexpr int64_t kTableAhead = 2048, kTableFarAhead = 12288;

static inline void FetchTable(const char* at) {
  __builtin_prefetch(at + kTableAhead);
  __builtin_prefetch(at + kTableFarAhead, 0, 2);
}

// out[c] = table[c] . x for a single x: eight rows of the table hide the latency of additions.
template <class E>
static inline void ProjectRow(const float* x, const Vectors& v, int64_t count, float* out) {
  constexpr int kRows = 8, kBytes = kRows * kLanes * E::kBytes;
  int64_t c = 0;
  for (; c + kRows <= count; c += kRows) {
    const char* rows = v.data + c * v.stride;
    const char* line = rows;
    Floats sums[kRows];
    MINICACHE_UNROLL
    for (int i = 0; i < kRows; i++) sums[i] = Floats{};
    for (int64_t d = 0; d < v.width; d += kLanes, line += kBytes) {
      const Floats w = Load(x + d);
      MINICACHE_UNROLL
      for (int i = 0; i < kBytes; i += 64) FetchTable(line + i);
      MINICACHE_UNROLL
      for (int i = 0; i < kRows; i++) {
        sums[i] += w * E::Lanes(rows + i * v.stride + d * E::kBytes);
      }
    }
    StoreSums(sums[0], sums[1], sums[2], sums[3], out + c);
    StoreSums(sums[4], sums[5], sums[6], sums[7], out + c + 4);
  }
  for (; c < count; c++) DotTile<E, 1, 1>(x, 0, v.data + c * v.stride, 0, v.width, out + c, 0);
}

// out[r, c] = table[c] . x[r] for a few rows of the table; what follows them in memory is fetched
// meanwhile.
template <class E>
static inline void ProjectTableRows(const float* x, int64_t x_stride, int64_t rows,
                                    const Vectors& v, int64_t count, float* out,
                                    int64_t out_stride) {
  constexpr int64_t kTokens = 4;  // what Dots takes at once
  if (rows == 1) return ProjectRow<E>(x, v, count, out);
  const char* line = v.data;
  const int64_t lines = kTokens * v.stride / 64 + 1;
  for (int64_t c = 0; c < count; c += kTokens) {
    for (int64_t i = 0; i < lines; i++, line += 64) FetchTable(line);
    const int64_t n = count - c < kTokens ? count - c : kTokens;
    Dots<E>(x, x_stride, v.data + c * v.stride, v.stride, rows, n, v.width, out + c, out_stride,
            nullptr);
  }
}

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
      ProjectTableRows<Float16>(x, x_stride, rows, v, n, out + c, out_stride);
    } else {
      ProjectTableRows<Float32>(x, x_stride, rows, v, n, out + c, out_stride);
    }
  }
}

// AddProduct of a few rows of the table; what follows them in memory is fetched meanwhile.
template <class E>
static inline void AddTableRows(const float* x, int64_t x_stride, int64_t rows, const Vectors& v,
                                int64_t count, float* out, int64_t out_stride) {
  constexpr int64_t kStrip = kTileVectors * kLanes;
  const char* line = v.data;
  const int64_t lines = count * kStrip * E::kBytes / 64 + 1;
  for (int64_t n = 0; n < v.width; n += kStrip) {
    for (int64_t i = 0; i < lines; i++, line += 64) FetchTable(line);
    const int64_t width = v.width - n < kStrip ? v.width - n : kStrip;
    AddProduct<E>(x, x_stride, v.data + n * E::kBytes, v.stride, rows, count, width, out + n,
                  out_stride);
  }
}

// out[r] += sum_c x[r, c] * table[c] over `depth` rows of the table, read as they lie in memory:
// columns of the whole table would jump from line to line.
static inline void MapRows(const float* x, int64_t x_stride, int64_t rows, const char* table,
                           Dtype dtype, int64_t width, int64_t depth, float* copy, float* out,
                           int64_t out_stride) {
  for (int64_t c = 0; c < depth; c += kTableRows) {
    const int64_t n = depth - c < kTableRows ? depth - c : kTableRows;
    const Vectors v = ViewTable(table, dtype, width, width, c, n, copy);
    if (v.dtype == Dtype::kFloat16) {
      AddTableRows<Float16>(x + c, x_stride, rows, v, n, out, out_stride);
    } else {
      AddTableRows<Float32>(x + c, x_stride, rows, v, n, out, out_stride);
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
