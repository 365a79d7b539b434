// The names of a node's attributes, for whatever reads them: `Reader` has Read(name, T*) for
// int64_t, float, std::string and std::vector<int64_t>, and leaves the default of absent ones.
#pragma once

#include "minicache/attributes.h"

namespace minicache {

// Those that decide how many inputs and outputs a node has.
template <class Reader>
void ReadArity(const Reader& reader, RawAttributes* raw) {
  reader.Read("mode", &raw->mode);
  reader.Read("retention", &raw->retention);
  reader.Read("group_slot", &raw->group_slot);
  reader.Read("group_size", &raw->group_size);
  reader.Read("has_bias", &raw->has_bias);
  reader.Read("has_sink", &raw->has_sink);
  reader.Read("has_decoder", &raw->has_decoder);
}

template <class Reader>
RawAttributes ReadRawAttributes(const Reader& reader) {
  RawAttributes raw;
  ReadArity(reader, &raw);
  reader.Read("num_heads", &raw.num_heads);
  reader.Read("kv_num_heads", &raw.kv_num_heads);
  reader.Read("head_size", &raw.head_size);
  reader.Read("code_heads", &raw.code_heads);
  reader.Read("key_bits", &raw.key_bits);
  reader.Read("value_bits", &raw.value_bits);
  reader.Read("code_layout", &raw.code_layout);
  reader.Read("slerp_t", &raw.slerp_t);
  reader.Read("magnitude", &raw.magnitude);
  reader.Read("retention_threshold", &raw.retention_threshold);
  reader.Read("retention_gamma", &raw.retention_gamma);
  reader.Read("retention_scope", &raw.retention_scope);
  reader.Read("window", &raw.window);
  reader.Read("sinks", &raw.sinks);
  reader.Read("ring_slots", &raw.ring_slots);
  reader.Read("segment_length", &raw.segment_length);
  reader.Read("rotary_interleaved", &raw.rotary_interleaved);
  reader.Read("scale", &raw.scale);
  reader.Read("softcap", &raw.softcap);
  reader.Read("local_window_size", &raw.local_window_size);
  reader.Read("key_head_permutation", &raw.key_head_permutation);
  reader.Read("value_head_permutation", &raw.value_head_permutation);
  return raw;
}

}  // namespace minicache
