// The side buffer of tokens whose layers disagree (paper 3.3): a function of the retained tokens
// that were coded before the call (L) and the tokens that it encodes (E); docs/operator.md,
// "Retention".
#include <cmath>
#include <utility>

#include "cpu/call.h"

namespace minicache {
namespace {

constexpr int32_t kFree = -1;

struct Candidate {
  float similarity;
  int64_t position;
  int64_t slot;  // that it holds already, or -1
};

struct Buffer {
  int32_t* positions;
  float* similarities;
  int64_t capacity;  // M
};

bool LessSimilar(const Candidate& a, const Candidate& b) {
  if (a.similarity != b.similarity) return a.similarity < b.similarity;
  return a.position < b.position;
}

bool ByPosition(const Candidate& a, const Candidate& b) { return a.position < b.position; }

void SetSign(const Call& call, int64_t row, int64_t position, bool retained) {
  const Attributes& a = call.attributes;
  for (const TensorId id : {TensorId::kKeyMagnitude, TensorId::kValueMagnitude}) {
    auto* magnitudes = reinterpret_cast<uint16_t*>(call.tensor(id).data);
    for (int64_t h = 0; h < a.kv_heads; h++) {
      const int64_t at = (row * a.kv_heads + h) * call.shape.capacity + position;
      for (int64_t i = 0; i < a.magnitude_count; i++) {
        uint16_t& m = magnitudes[at * a.magnitude_count + i];
        m = static_cast<uint16_t>(retained ? m | 0x8000 : m & 0x7fff);
      }
    }
  }
}

void StoreVectors(const Call& call, int64_t row, int64_t position, int64_t slot) {
  const Attributes& a = call.attributes;
  const int64_t size = a.head_size * ElementSize(call.retained_dtype);
  for (int64_t i = 0; i < a.group_size * a.kv_heads; i++) {
    const int64_t layer = i / a.kv_heads, head = i % a.kv_heads;
    const int64_t at = ((row * a.group_size * a.kv_heads + i) * call.shape.retained + slot) * size;
    CopyVector(call, false, row, layer, head, position, call.retained_dtype,
               call.tensor(TensorId::kRetainedKey).data + at);
    CopyVector(call, true, row, layer, head, position, call.retained_dtype,
               call.tensor(TensorId::kRetainedValue).data + at);
  }
}

// Leaves the tokens of L that stay in `kept` and those of E that are chosen in `arrived`.
void Select(const Attributes& a, const float* range, int64_t capacity, std::vector<Candidate>* kept,
            std::vector<Candidate>* arrived) {
  if (a.retention == Retention::kBudget) {
    std::vector<Candidate> all = *kept;
    all.insert(all.end(), arrived->begin(), arrived->end());
    if (static_cast<int64_t>(all.size()) <= capacity) return;
    std::nth_element(all.begin(), all.begin() + capacity, all.end(), LessSimilar);
    const Candidate first_out = all[static_cast<size_t>(capacity)];
    const auto out = [&](const Candidate& c) { return !LessSimilar(c, first_out); };
    kept->erase(std::remove_if(kept->begin(), kept->end(), out), kept->end());
    arrived->erase(std::remove_if(arrived->begin(), arrived->end(), out), arrived->end());
    return;
  }
  const double low = range[0], high = range[1];
  const double bound =
      a.retention == Retention::kThreshold ? a.threshold : low + (high - low) * a.gamma;
  const auto agrees = [&](const Candidate& c) { return !(c.similarity < bound); };
  arrived->erase(std::remove_if(arrived->begin(), arrived->end(), agrees), arrived->end());
  const int64_t room = std::max<int64_t>(0, capacity - static_cast<int64_t>(kept->size()));
  if (static_cast<int64_t>(arrived->size()) > room) arrived->resize(static_cast<size_t>(room));
}

}  // namespace

void RetainRow(const Call& call, int64_t row, const float* similarities) {
  const Attributes& a = call.attributes;
  const Span& span = call.spans[static_cast<size_t>(row)];
  const int64_t m = call.shape.retained;
  const Buffer buffer = {
      reinterpret_cast<int32_t*>(call.tensor(TensorId::kRetainedPosition).data) + row * m,
      reinterpret_cast<float*>(call.tensor(TensorId::kRetainedSimilarity).data) + row * m, m};
  float* range = reinterpret_cast<float*>(call.tensor(TensorId::kSimilarityRange).data) + 2 * row;

  std::vector<Candidate> kept, arrived;
  for (int64_t p = span.encode_begin; p < span.encode_end; p++) {
    const float similarity = similarities[p - span.encode_begin];
    range[0] = std::min(range[0], similarity);
    range[1] = std::max(range[1], similarity);
    arrived.push_back({similarity, p, kFree});
  }
  for (int64_t slot = 0; slot < m; slot++) {
    const int64_t p = buffer.positions[slot];
    if (p >= a.sinks && p < span.coded_end) kept.push_back({buffer.similarities[slot], p, slot});
    if (p >= span.encode_begin && p < span.encode_end) {
      arrived[static_cast<size_t>(p - span.encode_begin)].slot = slot;  // the call was run before
    }
  }
  const std::vector<Candidate> before = kept;
  Select(a, range, m, &kept, &arrived);

  std::fill(buffer.positions, buffer.positions + m, kFree);
  for (const Candidate& c : kept) buffer.positions[c.slot] = static_cast<int32_t>(c.position);
  for (const Candidate& c : arrived) {
    if (c.slot != kFree) buffer.positions[c.slot] = static_cast<int32_t>(c.position);
  }
  int64_t free = 0;
  for (Candidate& c : arrived) {
    if (c.slot == kFree) {
      while (buffer.positions[free] != kFree) free++;
      c.slot = free;
      buffer.positions[free] = static_cast<int32_t>(c.position);
    }
    buffer.similarities[c.slot] = c.similarity;
    StoreVectors(call, row, c.position, c.slot);
    SetSign(call, row, c.position, true);
  }
  if (kept.size() < before.size()) {
    std::sort(kept.begin(), kept.end(), ByPosition);
    for (const Candidate& c : before) {
      if (!std::binary_search(kept.begin(), kept.end(), c, ByPosition)) {
        SetSign(call, row, c.position, false);
      }
    }
  }
}

}  // namespace minicache
