// The tokens that are kept in full, and which of them are read: docs/operator.md, "Retention".
#pragma once

#include <cmath>
#include <vector>

#include "cpu/call.h"

namespace minicache {

constexpr int32_t kFree = -1;

struct Candidate {
  float similarity;
  int64_t position;
  int64_t slot;  // that it holds, or kFree
};

// NaN comes last: a token that holds infinities has no cosine.
inline bool LessSimilar(const Candidate& a, const Candidate& b) {
  const bool known = !std::isnan(a.similarity);
  if (known == std::isnan(b.similarity)) return known;
  if (known && a.similarity != b.similarity) return a.similarity < b.similarity;
  return a.position < b.position;
}

// Brings the `count` least similar ones to the front.
inline void LeastSimilarFirst(int64_t count, std::vector<Candidate>* all) {
  if (count >= static_cast<int64_t>(all->size())) return;
  std::nth_element(all->begin(), all->begin() + count, all->end(), LessSimilar);
}

// How many tokens of a row's buffer are read at most: M. `budget` has X slots more.
inline int64_t MostActive(const Call& call) {
  const Attributes& a = call.attributes;
  const int64_t extra = a.retention == Retention::kBudget ? a.slack() : 0;
  return std::max<int64_t>(0, call.shape.retained - extra);
}

// Whether the last call that wrote left the code to be skipped. All heads and layers agree.
inline bool IsMarked(const Call& call, int64_t row, int64_t position) {
  const Attributes& a = call.attributes;
  const int64_t at = row * a.kv_heads * call.shape.capacity + call.SlotOf(row, position);
  const char* data = call.tensor(TensorId::kKeyMagnitude).data;
  return (reinterpret_cast<const uint16_t*>(data)[at * a.magnitude_count] & 0x8000) != 0;
}

}  // namespace minicache
