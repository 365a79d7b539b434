// The names of a node's attributes, for whatever reads or writes them.
#pragma once

#include "minicache/attributes.h"

namespace minicache {

// Calls visit(name, pointer) for those attributes that decide how many inputs and outputs a node
// has; the pointer is to int64_t, float, std::string or std::vector<int64_t>. `Raw` may be const.
template <class Visit, class Raw>
void VisitArity(const Visit& visit, Raw* raw) {
  visit("mode", &raw->mode);
  visit("retention", &raw->retention);
  visit("group_slot", &raw->group_slot);
  visit("group_size", &raw->group_size);
  visit("has_bias", &raw->has_bias);
  visit("has_sink", &raw->has_sink);
  visit("has_decoder", &raw->has_decoder);
  visit("delta_bits", &raw->delta_bits);
  visit("delta_rank", &raw->delta_rank);
  visit("evicts", &raw->evicts);
  visit("observes", &raw->observes);
}

// All attributes, likewise.
template <class Visit, class Raw>
void VisitAttributes(const Visit& visit, Raw* raw) {
  VisitArity(visit, raw);
  visit("num_heads", &raw->num_heads);
  visit("kv_num_heads", &raw->kv_num_heads);
  visit("head_size", &raw->head_size);
  visit("code_heads", &raw->code_heads);
  visit("key_bits", &raw->key_bits);
  visit("value_bits", &raw->value_bits);
  visit("code_layout", &raw->code_layout);
  visit("slerp_t", &raw->slerp_t);
  visit("magnitude", &raw->magnitude);
  visit("retention_threshold", &raw->retention_threshold);
  visit("retention_gamma", &raw->retention_gamma);
  visit("retention_scope", &raw->retention_scope);
  visit("window", &raw->window);
  visit("sinks", &raw->sinks);
  visit("ring_slots", &raw->ring_slots);
  visit("segment_length", &raw->segment_length);
  visit("rotary_interleaved", &raw->rotary_interleaved);
  visit("scale", &raw->scale);
  visit("softcap", &raw->softcap);
  visit("local_window_size", &raw->local_window_size);
  visit("key_head_permutation", &raw->key_head_permutation);
  visit("value_head_permutation", &raw->value_head_permutation);
}

// `Reader` has Read(name, pointer), and leaves the default of absent ones.
template <class Reader>
void ReadArity(const Reader& reader, RawAttributes* raw) {
  VisitArity([&](const char* name, auto* value) { reader.Read(name, value); }, raw);
}
template <class Reader>
RawAttributes ReadRawAttributes(const Reader& reader) {
  RawAttributes raw;
  VisitAttributes([&](const char* name, auto* value) { reader.Read(name, value); }, &raw);
  return raw;
}

}  // namespace minicache
