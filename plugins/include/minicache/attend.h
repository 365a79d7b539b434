// What the attention kernels read and write: plain data, so that the per-ISA sources share no code.
//
// Letters: B batch, S new tokens, H / Hk query and kv heads, D head size, C capacity, R components
// of a code, M retained capacity. "Rows" of a task are its (new token, query head) pairs.
#pragma once

#include <cstdint>

namespace minicache {

enum class Dtype : int32_t { kFloat32, kFloat16, kBfloat16 };

enum class Layout : int32_t { kRow, kTile };

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
  Layout layout;
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
  // Retained tokens are scattered: token t lies in slot slots[t] and has position positions[t].
  const int32_t* slots;
  const int32_t* positions;
  // kCodes: fp16, one per slot; the sign bit marks a token that is read from the side buffer.
  const uint16_t* key_magnitude;
  const uint16_t* value_magnitude;
  int64_t magnitude_stride;
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
  int32_t head_size;    // D
  int32_t padded_size;  // D rounded up to 16
  float scale;
  float softcap;
  int64_t local_window;  // 0: off
  int64_t past;
  const char* bias;  // [H, S, C] of the batch row, at the first query head; nullptr: none
  int64_t bias_head_stride;
  int64_t bias_token_stride;
  const CodeFormat* key_format;
  const CodeFormat* value_format;
  const TokenRun* runs;
  int32_t run_count;
  int64_t block_begin;  // blocks [block_begin, block_end) counted through all runs
  int64_t block_end;
  float* scratch;  // AttendScratchFloats
  // The part: rows = new_count * heads, row = token * heads + head.
  float* maximum;  // [rows], -inf where nothing was visible
  float* sum;      // [rows]
  float* output;   // [rows, padded_size]
};

// Merges the parts of equal rows and writes the attention output.
struct FinishTask {
  int32_t rows;
  int32_t heads;
  int32_t head_size;
  int32_t padded_size;
  int32_t part_count;
  const float* maximum;  // [parts, rows]
  const float* sum;
  const float* parts;  // [parts, rows, padded_size]
  const char* sink;    // [heads], nullptr: none
  Dtype dtype;
  float* scratch;         // [padded_size]
  char* output;           // at the first new token and query head
  int64_t output_stride;  // elements between new tokens: H * D
};

}  // namespace minicache
