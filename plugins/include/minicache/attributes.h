// The attributes of com.minicache::MiniCacheAttention; names and defaults as in
// exporter/schemas.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "minicache/attend.h"
#include "minicache/encode.h"

namespace minicache {

enum class Mode { kExact, kSlerp, kSubspace };
enum class Retention { kNone, kThreshold, kMinmax, kBudget };

// As they stand on the node, before any check.
struct RawAttributes {
  int64_t num_heads = 0;
  int64_t kv_num_heads = 0;
  int64_t head_size = 0;
  int64_t code_heads = 0;
  std::string mode = "exact";
  int64_t group_slot = 0;
  int64_t group_size = 1;
  std::vector<int64_t> key_bits;
  std::vector<int64_t> value_bits;
  std::string code_layout = "row";
  float slerp_t = 0.6f;
  std::string magnitude = "own";
  int64_t delta_bits = 0;
  int64_t delta_rank = 0;
  std::string retention = "none";
  float retention_threshold = 0.9f;
  float retention_gamma = 0.05f;
  std::string retention_scope = "mean";
  int64_t window = 64;
  int64_t sinks = 4;
  int64_t ring_slots = 128;
  int64_t segment_length = 0;
  int64_t rotary_interleaved = 0;
  float scale = 0.f;
  float softcap = 0.f;
  int64_t local_window_size = 0;
  std::vector<int64_t> key_head_permutation;
  std::vector<int64_t> value_head_permutation;
  int64_t has_bias = 0;
  int64_t has_sink = 0;
  int64_t has_decoder = 0;
  int64_t evicts = 0;
  int64_t observes = 0;
};

// Checked, with defaults resolved.
struct Attributes {
  int64_t heads;       // H
  int64_t kv_heads;    // Hk
  int64_t code_heads;  // Hc
  int64_t head_size;   // D
  int64_t slot;        // of this layer in its group
  int64_t group_size;  // G
  Mode mode;
  Retention retention;
  bool any_head;  // retention_scope
  double threshold;
  double gamma;
  int64_t window;
  int64_t sinks;
  int64_t ring_slots;
  int64_t local_window;
  int64_t segment_length;
  bool rotary_interleaved;
  float slerp_t;
  float scale;
  float softcap;
  MagnitudeRule magnitude_rule;
  int64_t magnitude_count;  // per token and code head
  CodeFormat key_format;
  CodeFormat value_format;
  CodeFormat delta_format;               // of keys and of values; no components: no deltas
  int64_t delta_rank;                    // 0: deltas are vectors
  std::vector<int64_t> key_permutation;  // [G * Hk], the identity where absent
  std::vector<int64_t> value_permutation;
  bool has_bias;
  bool has_sink;
  bool has_decoder;
  bool evicts;
  int64_t observes;  // queries per call that attention_mass adds up; -1: all

  bool coded() const { return mode != Mode::kExact; }
  bool retains() const { return coded() && retention != Retention::kNone; }
  bool writes() const { return slot == group_size - 1; }
  int64_t slack() const { return ring_slots - window; }  // X
  bool has_delta() const { return delta_format.components > 0; }
  bool subspace() const { return mode == Mode::kSubspace; }
  // `slerp` in a common basis (docs/operator.md, "Aligned slerp").
  bool aligned() const { return mode == Mode::kSlerp && has_decoder; }
  // D rounded up so that every instruction set's vectors divide it.
  int64_t padded_size() const { return (head_size + 15) / 16 * 16; }
  Widths widths() const;
};

// Fills `checked`; returns what is wrong, or an empty string.
std::string CheckAttributes(const RawAttributes& raw, Attributes* checked);

// Its part on eviction.
std::string CheckEviction(const RawAttributes& raw, Attributes* checked);

// Its part on deltas of a pair; the format's layout is that of codes.
std::string CheckDelta(const RawAttributes& raw, Layout layout, Attributes* checked);

// Bytes of a segment with its padding (SEGMENT_ALIGNMENT of exporter/schemas.py).
inline int32_t PaddedBytes(int32_t bytes) { return (bytes + 3) / 4 * 4; }

}  // namespace minicache
