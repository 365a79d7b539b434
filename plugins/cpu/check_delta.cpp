#include <cstdio>

#include "minicache/attributes.h"

namespace minicache {

std::string CheckDelta(const RawAttributes& raw, Layout layout, Attributes* checked) {
  const auto text = [](int64_t value) { return std::to_string(value); };
  const int64_t bits = raw.delta_bits, rank = raw.delta_rank, size = raw.head_size;
  checked->delta_format = {};
  checked->delta_rank = rank;
  if (bits != 0 && bits != 16 && bits != 4 && bits != 2) {
    return "delta_bits is " + text(bits) + ", not 0 (none), 16, 4 or 2";
  }
  if (rank < 0 || rank > size) {
    return "delta_rank is " + text(rank) + ", not within 0..head_size " + text(size);
  }
  if (bits != 0 && rank != 0) {
    return "delta_bits is " + text(bits) + " and delta_rank " + text(rank) +
           "; a pair has one or the other";
  }
  if (bits == 0 && rank == 0) return "";
  if (checked->mode != Mode::kSlerp || raw.group_size != 2) {
    return "deltas are those of a pair in mode 'slerp', not of group_size " + text(raw.group_size) +
           " in mode '" + raw.mode + "'; set delta_bits and delta_rank to 0";
  }
  if (raw.slerp_t != 0.5f) {
    char found[32];
    std::snprintf(found, sizeof found, "%g", static_cast<double>(raw.slerp_t));
    return std::string("one delta serves both layers at slerp_t 0.5, not at ") + found +
           "; set slerp_t to 0.5, or delta_bits and delta_rank to 0";
  }
  if (bits != 0 && bits * size % 8 != 0) {
    return "delta_bits " + text(bits) + " do not fill bytes with head_size " + text(size) +
           "; take delta_rank, or delta_bits 16";
  }
  CodeFormat& format = checked->delta_format;
  const auto width = static_cast<int32_t>(rank > 0 ? 16 : bits);
  const auto count = static_cast<int32_t>(rank > 0 ? rank : size);
  format.segments[0] = {width, count, 0, 0};
  format.segment_count = 1;
  format.components = count;
  format.bytes = PaddedBytes(width * count / 8);
  format.layout = layout;
  return "";
}

}  // namespace minicache
