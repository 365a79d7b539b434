// The register tile of many rows: kManyTileRows rows of A times a panel of B, with accumulators
// that fill the register file. Operands lie as the tile reads them: loads of B follow each other,
// and every number of A is a constant away from one pointer.
#pragma once

#include "cpu/simd.h"
#include "minicache/attend.h"

namespace minicache {
namespace MINICACHE_ISA {

// Accumulators, vectors of B and one number of A: 31 of 32 registers with AVX-512, 15 of 16 else.
constexpr int kManyTileRows = kLanes == 16 ? 14 : 6;
constexpr int kPanelVectors = 2;
constexpr int kPanel = kPanelVectors * kLanes;  // columns of B that lie together: [depth][kPanel]

// How A lies: number k of row r is at r * kRow + k * kStep.
template <int kRows>
struct Interleaved {  // [depth][kRows]
  static constexpr int kRow = 1, kStep = kRows;
};
struct Weights {  // [rows][kBlockTokens]
  static constexpr int kRow = kBlockTokens, kStep = 1;
};

// C[r, n] = sum_k A[r, k] * B[k, n], added to what C holds with kAdd; strides in floats.
template <class A, int kRows, int kVectors, bool kAdd>
static inline void MultiplyTile(const float* a, const float* b, int64_t depth, float* c,
                                int64_t c_stride) {
  Floats sums[kRows][kVectors];
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    MINICACHE_UNROLL
    for (int v = 0; v < kVectors; v++) {
      sums[r][v] = kAdd ? Load(c + r * c_stride + v * kLanes) : Floats{};
    }
  }
  for (int64_t k = 0; k < depth; k++) {
    Floats x[kVectors];
    MINICACHE_UNROLL
    for (int v = 0; v < kVectors; v++) x[v] = Load(b + v * kLanes);
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) {
      const Floats w = Set(a[r * A::kRow]);
      MINICACHE_UNROLL
      for (int v = 0; v < kVectors; v++) sums[r][v] += w * x[v];
    }
    a += A::kStep;
    b += kVectors * kLanes;
  }
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    MINICACHE_UNROLL
    for (int v = 0; v < kVectors; v++) Store(c + r * c_stride + v * kLanes, sums[r][v]);
  }
}

// Scores of `rows` <= kRows rows with one panel of keys.
template <int kRows = kManyTileRows>
static inline void ScoreTile(int64_t rows, const float* queries, const float* panel, int64_t depth,
                             float* scores) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return ScoreTile<kRows - 1>(rows, queries, panel, depth, scores);
  }
  MultiplyTile<Interleaved<kRows>, kRows, kPanelVectors, false>(queries, panel, depth, scores,
                                                                kBlockTokens);
}

// Adds the weighted sums of one panel of values, `vectors` wide.
template <int kRows = kManyTileRows>
static inline void ValueTile(int64_t rows, int vectors, const float* weights, const float* panel,
                             int64_t depth, float* output, int64_t stride) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return ValueTile<kRows - 1>(rows, vectors, weights, panel, depth, output, stride);
    }
  }
  if (vectors == kPanelVectors) {
    MultiplyTile<Weights, kRows, kPanelVectors, true>(weights, panel, depth, output, stride);
  } else {
    MultiplyTile<Weights, kRows, 1, true>(weights, panel, depth, output, stride);
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
