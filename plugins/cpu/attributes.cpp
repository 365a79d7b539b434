#include "minicache/attributes.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace minicache {
namespace {

std::string Text(int64_t value) { return std::to_string(value); }

template <class T>
std::string Choose(const char* name, const std::string& given,
                   const std::vector<std::pair<const char*, T>>& choices, T* chosen) {
  std::string known;
  for (const auto& [word, value] : choices) {
    if (given == word) {
      *chosen = value;
      return "";
    }
    known += known.empty() ? word : std::string(", ") + word;
  }
  return std::string(name) + " is '" + given + "', not one of " + known;
}

std::string CheckBits(const char* name, const std::vector<int64_t>& bits, int64_t head_size,
                      Layout layout, CodeFormat* format) {
  *format = {};
  if (bits.size() != 2 || bits[1] != head_size) {
    return std::string(name) + " of mode 'slerp' is [bits, head_size = " + Text(head_size) + "]";
  }
  if (bits[0] != 16 && bits[0] != 8 && bits[0] != 4) {
    return std::string(name) + " of mode 'slerp' has " + Text(bits[0]) + " bits, not 16, 8 or 4";
  }
  if (bits[0] == 4 && head_size % 2 != 0) {
    return std::string(name) + ": 4 bits need an even head_size, not " + Text(head_size);
  }
  const auto width = static_cast<int32_t>(bits[0]), count = static_cast<int32_t>(bits[1]);
  format->segments[0] = {width, count, 0, 0};
  format->segment_count = 1;
  format->components = count;
  format->bytes = PaddedBytes(width * count / 8);
  format->layout = layout;
  return "";
}

std::string CheckSubspaceBits(const char* name, const std::vector<int64_t>& bits, Layout layout,
                              CodeFormat* format) {
  *format = {};
  format->layout = layout;
  format->room = 16;
  bool fits = !bits.empty() && bits.size() % 2 == 0;
  int64_t widest = 9;
  for (size_t i = 0; fits && i < bits.size(); i += 2) {
    const int64_t width = bits[i], count = bits[i + 1];
    fits = (width == 8 || width == 4 || width == 2) && width < widest && count > 0 &&
           count % 8 == 0 && count < (1 << 20);
    if (!fits) break;
    widest = width;
    CodeSegment& segment = format->segments[format->segment_count++];
    segment = {static_cast<int32_t>(width), static_cast<int32_t>(count), format->components,
               format->bytes};
    format->components += segment.count;
    format->bytes += PaddedBytes(segment.bits * segment.count / 8);
  }
  if (fits) return "";
  std::string given;
  for (const int64_t value : bits) given += (given.empty() ? "" : ", ") + Text(value);
  return std::string(name) + " is [" + given + "]; mode 'subspace' takes [bits, count, ...] of " +
         "8, then 4, then 2 bits, each count a multiple of 8";
}

std::string CheckSubspace(const RawAttributes& raw) {
  if (raw.has_decoder == 0) return "mode 'subspace' needs has_decoder = 1";
  if (raw.retention != "none") {
    return "mode 'subspace' retains no tokens: retention is '" + raw.retention + "', not none";
  }
  if (raw.code_heads < 0 || (raw.code_heads > 0 && raw.kv_num_heads % raw.code_heads != 0)) {
    return "code_heads " + Text(raw.code_heads) + " is no divisor of kv_num_heads " +
           Text(raw.kv_num_heads);
  }
  return "";
}

std::string CheckSlerp(const RawAttributes& raw) {
  if (raw.code_heads != 0 && raw.code_heads != raw.kv_num_heads) {
    return "code_heads of mode 'slerp' is kv_num_heads " + Text(raw.kv_num_heads) + ", not " +
           Text(raw.code_heads);
  }
  return "";
}

std::string CheckPermutation(const char* name, const std::vector<int64_t>& given,
                             int64_t group_size, int64_t heads, std::vector<int64_t>* result) {
  result->resize(group_size * heads);
  for (int64_t i = 0; i < group_size * heads; i++) (*result)[i] = i % heads;
  if (given.empty()) return "";
  if (static_cast<int64_t>(given.size()) != group_size * heads) {
    return std::string(name) + " has " + Text(given.size()) + " entries, not group_size * " +
           "kv_num_heads = " + Text(group_size * heads);
  }
  *result = given;
  for (int64_t layer = 0; layer < group_size; layer++) {
    std::vector<int64_t> sorted(given.begin() + layer * heads, given.begin() + (layer + 1) * heads);
    std::sort(sorted.begin(), sorted.end());
    for (int64_t h = 0; h < heads; h++) {
      if (sorted[h] != h) {
        return std::string(name) + " is no permutation of the " + Text(heads) +
               " kv heads for layer " + Text(layer) + " of the group";
      }
    }
  }
  return "";
}

std::string CheckSizes(const RawAttributes& raw) {
  const auto positive = [](const char* name, int64_t value) {
    return value > 0 ? std::string() : std::string(name) + " is " + Text(value) + ", not positive";
  };
  std::string error = positive("num_heads", raw.num_heads);
  if (error.empty()) error = positive("kv_num_heads", raw.kv_num_heads);
  if (error.empty()) error = positive("head_size", raw.head_size);
  if (error.empty()) error = positive("group_size", raw.group_size);
  if (error.empty()) error = positive("ring_slots", raw.ring_slots);
  if (!error.empty()) return error;
  if (raw.num_heads % raw.kv_num_heads != 0) {
    return "num_heads " + Text(raw.num_heads) + " is no multiple of kv_num_heads " +
           Text(raw.kv_num_heads);
  }
  if (raw.group_slot < 0 || raw.group_slot >= raw.group_size) {
    return "group_slot " + Text(raw.group_slot) + " is not in a group of " + Text(raw.group_size);
  }
  if (raw.window < 0 || raw.sinks < 0 || raw.local_window_size < 0) {
    return "window, sinks and local_window_size are not negative";
  }
  if (raw.mode != "exact" && raw.ring_slots < raw.window) {
    return "ring_slots " + Text(raw.ring_slots) + " is less than window " + Text(raw.window);
  }
  if (raw.segment_length < 0) {
    return "segment_length is " + Text(raw.segment_length) + ", which is negative";
  }
  return "";
}

}  // namespace

Widths Attributes::widths() const {
  const auto padded = [](const CodeFormat& format) -> int64_t {
    return (format.components + format.room + 15) / 16 * 16;
  };
  const int64_t vector = padded_size();
  const int64_t delta = has_delta() ? padded(delta_format) : 0;
  if (!has_decoder) return {vector, vector, vector, vector, delta};
  return {vector, padded(key_format), padded(value_format), vector + padded(value_format), delta};
}

std::string CheckAttributes(const RawAttributes& raw, Attributes* a) {
  std::string error = CheckSizes(raw);
  if (error.empty()) error = CheckEviction(raw, a);
  if (!error.empty()) return error;
  Layout layout = Layout::kRow;
  error = Choose<Mode>(
      "mode", raw.mode,
      {{"exact", Mode::kExact}, {"slerp", Mode::kSlerp}, {"subspace", Mode::kSubspace}}, &a->mode);
  if (error.empty()) {
    error = Choose<Layout>("code_layout", raw.code_layout,
                           {{"row", Layout::kRow}, {"tile", Layout::kTile}}, &layout);
  }
  if (error.empty()) {
    error = Choose<MagnitudeRule>("magnitude", raw.magnitude,
                                  {{"own", MagnitudeRule::kOwn},
                                   {"upper", MagnitudeRule::kUpper},
                                   {"blended", MagnitudeRule::kBlended}},
                                  &a->magnitude_rule);
  }
  if (error.empty()) {
    error = Choose<Retention>("retention", raw.retention,
                              {{"none", Retention::kNone},
                               {"threshold", Retention::kThreshold},
                               {"minmax", Retention::kMinmax},
                               {"budget", Retention::kBudget}},
                              &a->retention);
  }
  if (error.empty()) {
    error = Choose<bool>("retention_scope", raw.retention_scope,
                         {{"mean", false}, {"any-head", true}}, &a->any_head);
  }
  if (error.empty()) error = CheckDelta(raw, layout, a);
  if (!error.empty()) return error;
  if (a->mode == Mode::kExact && raw.group_size != 1) {
    return "mode 'exact' has group_size 1, not " + Text(raw.group_size);
  }
  if (a->mode == Mode::kExact && raw.has_decoder != 0) {
    return "mode 'exact' has no codes to restore: has_decoder is 1, not 0";
  }
  if (a->mode == Mode::kSubspace) {
    error = CheckSubspace(raw);
    if (error.empty()) {
      error = CheckSubspaceBits("key_bits", raw.key_bits, layout, &a->key_format);
    }
    if (error.empty()) {
      error = CheckSubspaceBits("value_bits", raw.value_bits, layout, &a->value_format);
    }
    if (!error.empty()) return error;
  }
  if (a->mode == Mode::kSlerp) {
    error = CheckSlerp(raw);
    if (!error.empty()) return error;
    error = CheckBits("key_bits", raw.key_bits, raw.head_size, layout, &a->key_format);
    if (error.empty()) {
      error = CheckBits("value_bits", raw.value_bits, raw.head_size, layout, &a->value_format);
    }
    if (!error.empty()) return error;
  }
  error = CheckPermutation("key_head_permutation", raw.key_head_permutation, raw.group_size,
                           raw.kv_num_heads, &a->key_permutation);
  if (error.empty()) {
    error = CheckPermutation("value_head_permutation", raw.value_head_permutation, raw.group_size,
                             raw.kv_num_heads, &a->value_permutation);
  }
  if (!error.empty()) return error;
  a->heads = raw.num_heads;
  a->kv_heads = raw.kv_num_heads;
  a->code_heads = raw.code_heads > 0 ? raw.code_heads : raw.kv_num_heads;
  a->head_size = raw.head_size;
  a->slot = raw.group_slot;
  a->group_size = raw.group_size;
  a->threshold = static_cast<double>(raw.retention_threshold);
  a->gamma = static_cast<double>(raw.retention_gamma);
  a->window = raw.window;
  a->sinks = raw.sinks;
  a->ring_slots = raw.ring_slots;
  a->local_window = raw.local_window_size;
  a->segment_length = raw.segment_length;
  a->rotary_interleaved = raw.rotary_interleaved != 0;
  a->slerp_t = raw.slerp_t;
  const auto size = static_cast<double>(raw.head_size);
  a->scale = raw.scale != 0.f ? raw.scale : static_cast<float>(1.0 / std::sqrt(size));
  a->softcap = raw.softcap;
  const bool own = a->mode == Mode::kSlerp && a->magnitude_rule == MagnitudeRule::kOwn;
  a->magnitude_count = own ? raw.group_size : 1;
  a->has_bias = raw.has_bias != 0;
  a->has_sink = raw.has_sink != 0;
  a->has_decoder = raw.has_decoder != 0;
  return "";
}

}  // namespace minicache
