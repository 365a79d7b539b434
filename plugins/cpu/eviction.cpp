// Tables of evicted tokens, and the attributes that go with them.
#include <algorithm>

#include "cpu/call.h"
#include "minicache/slot_map.h"

namespace minicache {

int64_t SlotMap::SlotOf(int64_t position) const {
  if (!evicted || position < sinks) return position;
  return position - evicted[(length > 0 ? position / length : 0) + 1];
}

std::string CheckSlotMap(const SlotMap& map, int64_t coded_end) {
  if (!map.evicted) return "";
  bool fits = map.evicted[0] == 0;
  for (int64_t i = 0; fits && i < map.segments; i++) {
    const int64_t gone = int64_t{map.evicted[i + 1]} - map.evicted[i];
    const int64_t begin = std::max(i * map.length, map.sinks);
    const int64_t end = map.length > 0 ? std::min((i + 1) * map.length, coded_end) : coded_end;
    fits = gone >= 0 && gone <= std::max<int64_t>(end - begin, 0);
  }
  if (fits) return "";
  std::string text;
  for (int64_t i = 0; i <= map.segments; i++) {
    text += (i > 0 ? ", " : "") + std::to_string(map.evicted[i]);
  }
  return "evicted is [" + text + "], which is more than the segments of " +
         std::to_string(map.length) + " tokens have, or less than before";
}

std::string CheckRetained(const Attributes& a, const Tensors& tensors, const SlotMap& map,
                          int64_t row, int64_t coded_end) {
  if (!map.evicted || a.retention == Retention::kNone) return "";
  const Tensor& retained = tensors[TensorId::kRetainedPosition];
  const auto* positions = reinterpret_cast<const int32_t*>(retained.data) + row * retained.shape[1];
  for (int64_t i = 0; i < retained.shape[1]; i++) {
    const int64_t position = positions[i];
    if (position < a.sinks || position >= coded_end) continue;
    const int64_t segment = map.length > 0 ? position / map.length : 0;
    const int64_t gone = map.evicted[segment + 1] - map.evicted[segment];
    if (position < std::max(segment * map.length, map.sinks) + gone) {
      return "retained_position " + std::to_string(i) + " is " + std::to_string(position) +
             ", a token that was evicted";
    }
  }
  return "";
}

SlotMap MakeSlotMap(const Attributes& a, const Tensors& tensors, int64_t row) {
  SlotMap map = {nullptr, 1, a.has_decoder ? a.segment_length : 0, a.coded() ? a.sinks : 0};
  if (!a.evicts) return map;
  const Tensor& evicted = tensors[TensorId::kEvicted];
  map.segments = evicted.shape[1] - 1;
  map.evicted = reinterpret_cast<const int32_t*>(evicted.data) + row * evicted.shape[1];
  return map;
}

}  // namespace minicache
