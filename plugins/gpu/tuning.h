// Block sizes of the kernels, chosen for registers and shared memory (kernels/manifest.json of a
// pack says what they take); warps and stages are in plugins/triton/program_shape.py.
#pragma once

#include <cstdint>

namespace minicache {

// Rows (new token, query head) of a program; tensor cores take 16 at least, more than these do not
// fit into registers.
constexpr int64_t kProjectBlockM = 16;
constexpr int64_t kFinishBlockM = 16;
inline int64_t CodesBlockM(int64_t rows) { return rows <= 16 ? 16 : 32; }
inline int64_t ExactBlockM(int64_t rows) { return rows <= 16 ? 16 : 32; }

// Coded tokens of a tile: they lie in one segment. 0: no segments.
inline int64_t CodeBlockN(int64_t segment_length) {
  if (segment_length % 64 == 0) return 64;
  return segment_length % 32 == 0 ? 32 : 16;
}

constexpr int64_t kExactBlockN = 64;
constexpr int64_t kProjectBlockR = 64;
constexpr int64_t kFinishBlockR = 64;

// The writer: new tokens of a program.
constexpr int64_t kGatherBlockT = 4;
constexpr int64_t kEncodeBlockT = 4;  // more do not fit into registers
constexpr int64_t kStoreBlockT = 16;

// Products with encoders: tensor cores where a call brings many tokens. For a few, the encoder is
// all the traffic, so that more programs share it.
struct ProductBlocks {
  bool dot;
  int64_t t;
  int64_t r;
  int64_t k;
};
inline ProductBlocks ProductBlocksOf(int64_t tokens) {
  return tokens >= 16 ? ProductBlocks{true, 32, 64, 32} : ProductBlocks{false, 1, 16, 128};
}

// Retention.
constexpr int64_t kRetainBlock = 256;
constexpr int64_t kRetainStoreBlockT = 16;
constexpr int64_t kMarkBlockT = 64;

}  // namespace minicache
