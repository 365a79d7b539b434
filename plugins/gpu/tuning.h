// Block sizes of the kernels, chosen for registers and shared memory (kernels/manifest.json of a
// pack says what they take); warps and stages are in plugins/triton/program_shape.py.
#pragma once

#include <cstdint>

namespace minicache {

// Rows (new token, query head) of a program; tensor cores take 16 at least, more than these do not
// fit into registers.
constexpr int64_t kProjectBlockM = 16;
constexpr int64_t kFinishBlockM = 16;
inline int64_t ExactBlockM(int64_t rows) { return rows <= 16 ? 16 : 32; }

// What a program of attend_codes holds: components of keys and values, each width padded to a power
// of two of 16-bit words.
struct CodeTile {
  int64_t columns;
  bool mixed;    // several widths in one code
  bool adjusts;  // scores get a bias or a softcap
};
struct CodeBlocks {
  int64_t m;  // rows of a program
  int64_t n;  // coded tokens of a tile: they lie in one segment
};
inline CodeBlocks CodeBlocksOf(const CodeTile& tile, int64_t rows, int64_t segment_length) {
  const bool many = tile.columns > 1024;
  const bool few_rows = rows <= 16 || many || (tile.mixed && tile.adjusts);
  int64_t n = many && tile.adjusts ? 16 : many || tile.mixed ? 32 : 64;
  while (segment_length % n != 0) n /= 2;  // 16 divides it: the plan sees to that
  return {few_rows ? 16 : 32, n};
}

constexpr int64_t kExactBlockN = 64;
constexpr int64_t kProjectBlockR = 64;
constexpr int64_t kFinishBlockR = 64;

// Observing: tokens of a program, few, as it goes over all heads and queries, and rows at a time,
// of which codes of several widths, or with deltas, leave registers for 16; rows of a program that
// merges the sums of parts.
constexpr int64_t kObserveBlockN = 32;
inline int64_t ObserveBlockM(int64_t rows, bool mixed) { return rows <= 16 || mixed ? 16 : 32; }
constexpr int64_t kObserveSumBlock = 128;

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
