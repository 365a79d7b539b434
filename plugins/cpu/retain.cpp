// The side buffer of tokens whose layers disagree (paper 3.3): a function of the tokens of it that
// were coded before the call (L) and the tokens that it encodes (E); docs/operator.md, "Retention".
#include <limits>
#include <utility>

#include "cpu/side_buffer.h"

namespace minicache {
namespace {

struct Buffer {
  int32_t* positions;
  float* similarities;
  int64_t slots;
};

bool ByPosition(const Candidate& a, const Candidate& b) { return a.position < b.position; }

// Says whether the code is skipped, as the token is read from the buffer.
void Mark(const Call& call, int64_t row, int64_t position, bool active) {
  const Attributes& a = call.attributes;
  if (IsMarked(call, row, position) == active) return;
  const int64_t slot = call.SlotOf(row, position);
  for (const TensorId id : {TensorId::kKeyMagnitude, TensorId::kValueMagnitude}) {
    auto* magnitudes = reinterpret_cast<uint16_t*>(call.tensor(id).data);
    for (int64_t h = 0; h < a.kv_heads; h++) {
      const int64_t at = (row * a.kv_heads + h) * call.shape.capacity + slot;
      for (int64_t i = 0; i < a.magnitude_count; i++) {
        uint16_t& m = magnitudes[at * a.magnitude_count + i];
        m = static_cast<uint16_t>(active ? m | 0x8000 : m & 0x7fff);
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

// Takes the similarities of E into `similarity_range`. Entry (c - N) mod (X + 1) is of the
// positions [N, c), so that a later call which starts at an earlier c finds what it had. Returns
// that of c1.
std::pair<float, float> UpdateRange(const Call& call, int64_t row, const float* similarities) {
  const Attributes& a = call.attributes;
  const Span& span = call.spans[static_cast<size_t>(row)];
  const int64_t slots = a.slack() + 1;
  auto* ranges = reinterpret_cast<float*>(call.tensor(TensorId::kSimilarityRange).data);
  const auto entry = [&](int64_t c) { return ranges + 2 * (row * slots + (c - a.sinks) % slots); };
  const float infinity = std::numeric_limits<float>::infinity();
  std::pair<float, float> range = {infinity, -infinity};
  if (span.encode_begin > a.sinks)
    range = {entry(span.encode_begin)[0], entry(span.encode_begin)[1]};
  for (int64_t p = span.encode_begin; p < span.encode_end; p++) {
    const float similarity = similarities[p - span.encode_begin];
    range = {std::min(range.first, similarity), std::max(range.second, similarity)};
    if (p + 1 < span.encode_end - a.slack()) continue;  // the last X + 1 can be gone back to
    entry(p + 1)[0] = range.first;
    entry(p + 1)[1] = range.second;
  }
  return range;
}

// Leaves the tokens of L that stay in `kept` and those of E that are chosen in `arrived`.
void Select(const Attributes& a, const std::pair<float, float>& range, int64_t slots,
            std::vector<Candidate>* kept, std::vector<Candidate>* arrived) {
  if (a.retention == Retention::kBudget) {
    std::vector<Candidate> all = *kept;
    all.insert(all.end(), arrived->begin(), arrived->end());
    if (static_cast<int64_t>(all.size()) <= slots) return;
    LeastSimilarFirst(slots, &all);
    const Candidate first_out = all[static_cast<size_t>(slots)];
    const auto out = [&](const Candidate& c) { return !LessSimilar(c, first_out); };
    kept->erase(std::remove_if(kept->begin(), kept->end(), out), kept->end());
    arrived->erase(std::remove_if(arrived->begin(), arrived->end(), out), arrived->end());
    return;
  }
  const double low = range.first, high = range.second;
  const double bound =
      a.retention == Retention::kThreshold ? a.threshold : low + (high - low) * a.gamma;
  const auto agrees = [&](const Candidate& c) { return !(c.similarity < bound); };
  arrived->erase(std::remove_if(arrived->begin(), arrived->end(), agrees), arrived->end());
  const int64_t room = std::max<int64_t>(0, slots - static_cast<int64_t>(kept->size()));
  if (static_cast<int64_t>(arrived->size()) > room) arrived->resize(static_cast<size_t>(room));
}

// Gives the tokens that arrived a slot, and stores them.
void Place(const Call& call, int64_t row, const Buffer& buffer, const std::vector<Candidate>& kept,
           std::vector<Candidate>* arrived) {
  std::fill(buffer.positions, buffer.positions + buffer.slots, kFree);
  for (const Candidate& c : kept) buffer.positions[c.slot] = static_cast<int32_t>(c.position);
  for (const Candidate& c : *arrived) {
    if (c.slot != kFree) buffer.positions[c.slot] = static_cast<int32_t>(c.position);
  }
  int64_t free = 0;
  for (Candidate& c : *arrived) {
    if (c.slot == kFree) {
      while (buffer.positions[free] != kFree) free++;
      c.slot = free;
      buffer.positions[free] = static_cast<int32_t>(c.position);
    }
    buffer.similarities[c.slot] = c.similarity;
    StoreVectors(call, row, c.position, c.slot);
  }
}

}  // namespace

void RetainRow(const Call& call, int64_t row, const float* similarities) {
  const Attributes& a = call.attributes;
  const Span& span = call.spans[static_cast<size_t>(row)];
  const int64_t slots = call.shape.retained;
  const Buffer buffer = {
      reinterpret_cast<int32_t*>(call.tensor(TensorId::kRetainedPosition).data) + row * slots,
      reinterpret_cast<float*>(call.tensor(TensorId::kRetainedSimilarity).data) + row * slots,
      slots};

  std::vector<Candidate> kept, arrived;
  for (int64_t p = span.encode_begin; p < span.encode_end; p++) {
    arrived.push_back({similarities[p - span.encode_begin], p, kFree});
  }
  for (int64_t slot = 0; slot < slots; slot++) {
    const int64_t p = buffer.positions[slot];
    if (p >= a.sinks && p < span.coded_end) kept.push_back({buffer.similarities[slot], p, slot});
    if (p >= span.encode_begin && p < span.encode_end) {
      arrived[static_cast<size_t>(p - span.encode_begin)].slot = slot;  // the call was run before
    }
  }
  const std::vector<Candidate> before = kept;
  Select(a, UpdateRange(call, row, similarities), slots, &kept, &arrived);
  Place(call, row, buffer, kept, &arrived);

  if (kept.size() < before.size()) {
    std::sort(kept.begin(), kept.end(), ByPosition);
    for (const Candidate& c : before) {
      if (!std::binary_search(kept.begin(), kept.end(), c, ByPosition)) {
        Mark(call, row, c.position, false);
      }
    }
  }
  kept.insert(kept.end(), arrived.begin(), arrived.end());
  const int64_t most = MostActive(call);
  LeastSimilarFirst(most, &kept);
  for (size_t i = 0; i < kept.size(); i++) {
    Mark(call, row, kept[i].position, static_cast<int64_t>(i) < most);
  }
}

}  // namespace minicache
