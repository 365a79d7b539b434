// What the attention kernels read and write: plain data, so that the per-ISA sources share no code.
//
// Letters: B batch, S new tokens, H / Hk query and kv heads, D head size, C capacity, R components
// of a code. "Rows" of a task are its (new token, query head) pairs.
#pragma once

#include <cstdint>

#include "minicache/slot_map.h"

namespace minicache {

enum class Dtype : int32_t { kFloat32, kFloat16, kBfloat16 };

enum class Layout : int32_t { kRow, kTile };

// How products with codes are computed: fp32, or integers of 15 bits and a sign, or of 7.
enum class Maths : int32_t { kFloat32, kInt16, kInt8 };

// One run of equally wide components inside a code. Planar: byte j of a segment holds components j,
// j + count/planes, ... from the low bits up, planes = 8 / bits.
struct CodeSegment {
  int32_t bits;             // 16 (fp16), or 8, 4, 2 (mid-rise)
  int32_t count;            // components
  int32_t first_component;  // of R
  int32_t first_byte;       // of the code
};

// A code of R components: what a block reader needs to know.
struct CodeFormat {
  static constexpr int kMaxSegments = 4;
  CodeSegment segments[kMaxSegments];
  int32_t segment_count;
  int32_t components;  // R
  int32_t bytes;       // per token, padding included
  // Floats behind the R of a row in memory that a reader may overwrite: 15 and more let it read
  // whole vectors where a segment ends amidst one.
  int32_t room;
  Layout layout;
};

// Floats per row in memory, rounded up to 16. Codes without a decoder are vectors like others; with
// one they have a space of their own, and the output of a part is [vector | sum of codes].
struct Widths {
  int64_t vector;  // D
  int64_t key;     // of a key code and of the query that meets it
  int64_t value;   // of a value code
  int64_t output;  // of a part's row; values of codes are summed in its last `value` floats
  int64_t delta;   // of a delta; 0: there are none
};

// RoPE by minus the offset of a segment: how keys enter its frame, before they meet an encoder.
struct Rotation {
  const float* cosine;  // [segments, pairs]
  const float* sine;
  int64_t pairs;           // 0: keys stay as they are
  int64_t segment_length;  // L; 0: one segment for all
  bool interleaved;        // pairs are (2i, 2i + 1), not (i, i + pairs)

  int64_t SegmentOf(int64_t position) const {
    return segment_length > 0 ? position / segment_length : 0;
  }
};

// Deltas of one code head's keys or values (docs/operator.md, "Deltas of a pair").
struct DeltaRun {
  const char* code;
  const uint16_t* ratio;  // fp16, one per slot
  const char* basis;      // [components, D]; nullptr: deltas are vectors
  Dtype basis_dtype;
};

// Cached or new tokens of one kv head that are read alike: slots [begin, end) of `key` and `value`.
struct TokenRun {
  enum class Kind : int32_t { kVectors, kCodes };
  Kind kind;
  Dtype dtype;  // of kVectors
  const char* key;
  const char* value;
  int64_t stride;  // bytes between slots of kVectors
  int64_t begin;
  int64_t end;
  int64_t first_position;  // position of slot 0
  // Retained tokens: token t has position positions[t], and lies in slot slots[t], or t if null.
  const int32_t* slots;
  const int32_t* positions;
  // kCodes: fp16, one per slot; the sign bit marks a token that is read from the side buffer.
  const uint16_t* key_magnitude;
  const uint16_t* value_magnitude;
  int64_t magnitude_stride;
  DeltaRun key_delta;
  DeltaRun value_delta;
  // Slots that are read from the side buffer without a mark, as after going back; mostly none.
  const int32_t* skipped;
  int64_t skipped_count;
};

// Tokens of a block; blocks of codes start at multiples of it, so that tiles stay whole.
constexpr int64_t kBlockTokens = 64;

// Attention of one kv head's query heads over blocks of tokens: an unnormalised softmax part.
struct AttendTask {
  const char* query;     // [S, H * D] of the batch row, at this kv head's first query head
  Dtype dtype;           // of query, bias, sink and output
  int64_t query_stride;  // elements between new tokens: H * D
  int32_t heads;         // query heads per kv head, H / Hk
  int32_t new_begin;     // new tokens [new_begin, new_begin + new_count)
  int32_t new_count;
  int32_t head_size;  // D
  Widths widths;
  float scale;
  float softcap;
  int64_t local_window;  // 0: off
  int64_t past;
  const char* bias;  // [H, S, C] of the batch row, at the first query head; nullptr: none
  int64_t bias_head_stride;
  int64_t bias_token_stride;
  const CodeFormat* key_format;
  const CodeFormat* value_format;
  Maths key_maths;  // wishes: where a task has many rows, and with other layouts, fp32 is used
  Maths value_maths;
  const CodeFormat* delta_format;  // of keys and values; nullptr: no deltas
  Maths delta_maths;
  float delta_sign;  // of this layer of the pair
  const TokenRun* runs;
  int32_t run_count;
  // Queries meet key codes as decoder * (rotated query).
  const char* key_decoder;  // [R, D] of the kv head; nullptr: codes are vectors
  Dtype key_decoder_dtype;
  const Rotation* rotation;
  const SlotMap* map;      // of the batch row: where its segments begin
  const float* projected;  // [segments, rows, widths.key] where they are at hand, or nullptr
  int64_t first_segment;   // of `projected`
  int64_t block_begin;     // blocks [block_begin, block_end) counted through all runs
  int64_t block_end;
  const char* next_table;  // what the next task begins with: fetched while this one computes
  int64_t next_bytes;
  float* scratch;  // AttendScratchFloats
  // The part: rows = new_count * heads, row = token * heads + head.
  float* maximum;  // [rows], -inf where nothing was visible
  float* sum;      // [rows]
  float* output;   // [rows, widths.output]
};

// Merges the parts of equal rows and writes the attention output.
struct FinishTask {
  int32_t rows;
  int32_t heads;
  int32_t head_size;
  Widths widths;
  int32_t part_count;
  const float* maximum;  // [parts, rows]
  const float* sum;
  const float* parts;  // [parts, rows, widths.output]
  const char* sink;    // [heads], nullptr: none
  Dtype dtype;
  const char* value_decoder;  // [components, D] of the kv head; nullptr: codes are vectors
  Dtype value_decoder_dtype;
  int32_t components;
  float* scratch;         // FinishScratchFloats
  char* output;           // at the first new token and query head
  int64_t output_stride;  // elements between new tokens: H * D
};

}  // namespace minicache
