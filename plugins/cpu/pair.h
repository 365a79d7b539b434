// What the direction of a pair of layers lacks: docs/operator.md, "Deltas of a pair".
#pragma once

#include "cpu/merge.h"

namespace minicache {
namespace MINICACHE_ISA {

// The magnitudes of layers that oppose each other stay above the least half.
constexpr double kSmallestCosine = 1.0 / 64.0;
// A shorter delta is rounding.
constexpr double kShortestDelta = 1.0 / 65536.0;

// Of a merged pair: magnitudes take the cosine in, and the first vector becomes the delta, as a
// unit vector. Returns the delta's length relative to the cosine.
static inline double SplitPair(const EncodeTask& task, const Merged& m) {
  const int64_t n = task.padded_size;
  double* delta = m.vectors;
  const double* other = delta + n;
  const bool both = Dot(delta, delta, n) > 0.0 && Dot(other, other, n) > 0.0;
  Doubles together = {};
  for (int64_t i = 0; i < n; i += kWideLanes) {
    const Doubles sum = Load(delta + i) + Load(other + i);
    together += sum * sum;
    Store(delta + i, both ? 0.5 * (Load(delta + i) - Load(other + i)) : Doubles{});
  }
  double cosine = both ? 0.5 * __builtin_sqrt(Sum(together)) : 1.0;
  cosine = cosine > kSmallestCosine ? cosine : kSmallestCosine;
  for (int i = 0; i < task.magnitude_count; i++) m.magnitudes[i] *= cosine;
  const double length = Normalise(delta, n);
  if (length >= kShortestDelta) return length / cosine;
  memset(delta, 0, (size_t)n * sizeof(double));
  return 0.0;
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
