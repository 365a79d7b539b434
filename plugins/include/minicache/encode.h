// What the encoder kernels read and write: plain data, like attend.h.
#pragma once

#include <cstdint>

#include "minicache/attend.h"

namespace minicache {

enum class MagnitudeRule : int32_t { kOwn, kUpper, kBlended };

// Where the full vectors of one layer lie, for one batch row, keys or values.
struct LayerVectors {
  const char* exact;           // [Hk, slots, D]
  const char* fresh;           // [S, Hk * D], the new tokens of this call
  const int64_t* permutation;  // [Hk] head that joins code head h
};

// Merges and encodes tokens of one batch row: the K or the V of all code heads.
struct EncodeTask {
  const LayerVectors* layers;  // [G]
  int32_t layer_count;         // G
  int32_t heads;               // Hc = Hk
  int32_t head_size;           // D
  int32_t padded_size;
  Dtype exact_dtype;
  Dtype fresh_dtype;
  int64_t slots;
  int64_t sinks;
  int64_t ring_slots;
  int64_t past;
  int64_t capacity;
  int64_t evicted;  // tokens, all before `begin`: position p is coded in slot p - evicted
  int64_t begin;    // positions [begin, end)
  int64_t end;
  float slerp_t;
  MagnitudeRule magnitude_rule;
  // Aligned slerp: what turns each layer's vectors into the code space.
  const char* encoder;  // [Hc, D, G * D]; nullptr: they are merged as they are
  Dtype encoder_dtype;
  const Rotation* rotation;  // of keys; nullptr: values
  bool values;               // tiles of values are not those of keys
  const CodeFormat* format;
  char* code;           // [Hc, C, bytes]
  uint16_t* magnitude;  // [Hc, C, magnitude_count]
  int32_t magnitude_count;
  // Deltas of a pair, of format `delta_format`; nullptr: none.
  const CodeFormat* delta_format;
  char* delta;            // [Hc, C, bytes]
  uint16_t* delta_ratio;  // [Hc, C]
  const char* basis;      // [Hc, components, D]; nullptr: deltas are vectors
  Dtype basis_dtype;
  float* scratch;  // EncodeScratchFloats
  // Per position from `begin` on: sum and minimum of the cosines of neighbouring layers.
  float* cosine_sum;
  float* cosine_minimum;
};

// `subspace`: components [component_begin, component_end) of y = E x for the tokens of one code
// head.
struct JointTask {
  const EncodeTask* tokens;  // whose `heads` are the Hk slots of a layer; one code head's memory
  int32_t code_head;
  int32_t slots_per_code;    // J
  const Rotation* rotation;  // nullptr: values
  const char* encoder;       // [R, G * J * D] of the code head
  Dtype encoder_dtype;
  const float* step;  // [R]
  int32_t component_begin;
  int32_t component_end;
  float* joint;      // scratch: JointScratchFloats
  float* projected;  // [tokens, R], of the whole code; quantising overwrites it
};

// Copies `count` rows of D elements between tensors, converting the type where it differs.
struct CopyTask {
  const char* source;
  char* target;
  Dtype source_dtype;
  Dtype target_dtype;
  int64_t elements;
};

}  // namespace minicache
