// Brings queries, keys and values into the order in which the register tile reads them.
#pragma once

#include "cpu/row_tile.h"
#include "cpu/transpose.h"

namespace minicache {
namespace MINICACHE_ISA {

// Panels of kPanel floats whose last one holds the rest: panel p starts at p * kPanel * length.
static inline int PanelVectors(int64_t width, int64_t first) {
  return width - first < kPanel ? (int)((width - first) / kLanes) : kPanelVectors;
}

// [rows, depth] -> groups of kManyTileRows rows, each [depth][rows of the group].
static inline void InterleaveRows(const float* in, int64_t stride, int64_t rows, int64_t depth,
                                  float* out) {
  for (int64_t r = 0; r < rows; r += kManyTileRows) {
    const int64_t n = rows - r < kManyTileRows ? rows - r : kManyTileRows;
    float* target = out + r * depth;
    for (int64_t k = 0; k < depth; k++) {
      for (int64_t i = 0; i < n; i++) target[k * n + i] = in[(r + i) * stride + k];
    }
  }
}

// Keys [tokens, depth] -> [kBlockTokens / kPanel][depth][kPanel]: the vectors of tokens around
// [begin, end) become zero. `depth` is a multiple of kLanes.
template <class E>
static inline void PackKeys(const char* rows, int64_t stride, int64_t begin, int64_t end,
                            int64_t depth, float* out) {
  for (int64_t t = begin / kPanel * kPanel; t < end; t += kLanes) {
    float* panel = out + t / kPanel * kPanel * depth + t % kPanel;
    for (int64_t d = 0; d < depth; d += kLanes) {
      Floats in[kLanes] = {};
      for (int64_t i = 0; i < kLanes; i++) {
        const int64_t from = t + i;
        if (from >= begin && from < end) in[i] = E::Lanes(rows + from * stride + d * E::kBytes);
      }
      TransposeTile(in, panel + d * kPanel, kPanel);
    }
  }
}

// Values [tokens, width] -> [width / kPanel][kBlockTokens][kPanel], only tokens [begin, end).
template <class E>
static inline void PackValues(const char* rows, int64_t stride, int64_t begin, int64_t end,
                              int64_t width, float* out) {
  for (int64_t t = begin; t < end; t++) {
    const char* row = rows + t * stride;
    for (int64_t n = 0; n < width; n += kPanel) {
      const int vectors = PanelVectors(width, n);
      float* target = out + n * kBlockTokens + t * vectors * kLanes;
      for (int v = 0; v < vectors; v++) {
        Store(target + v * kLanes, E::Lanes(row + (n + v * kLanes) * E::kBytes));
      }
    }
  }
}

// Keys whose lanes run along tokens already: [depth, kBlockTokens] -> panels.
static inline void PackTurnedKeys(const float* in, int64_t depth, float* out) {
  for (int64_t d = 0; d < depth; d++) {
    for (int64_t t = 0; t < kBlockTokens; t += kPanel) {
      float* target = out + t * depth + d * kPanel;
      for (int v = 0; v < kPanel; v += kLanes) {
        Store(target + v, Load(in + d * kBlockTokens + t + v));
      }
    }
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
