// What a plan knows of its node before any call.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/tuning.h"
#include "minicache/attributes.h"

namespace minicache {

// What a plan is made for, beside the node.
struct GpuOptions {
  int64_t multiprocessors = 108;
  // Cached tokens that are worth a split of their own, at least.
  int64_t split_tokens = 256;
  // A call whose attention needs more scratch than this is cut into chunks of new tokens.
  int64_t scratch_bytes = int64_t{64} << 20;
};

// Where the parts of a code lie, as the kernels that read or write it are told.
struct GpuFormat {
  int64_t counts[4];     // components of 16, 8, 4 and 2 bits
  int64_t starts[4];     // their first bytes
  int64_t sizes[4];      // their bytes, padding apart
  int64_t pads[4];       // powers of two that hold a plane of each, 0: absent
  int64_t word_pads[4];  // that hold the 16-bit words of each
  int64_t bytes;         // per token
  int64_t components;
  int64_t stride;  // components rounded up to 16: of rows in scratch

  int64_t columns() const {
    return word_pads[0] + 2 * word_pads[1] + 4 * word_pads[2] + 8 * word_pads[3];
  }
  int64_t widths() const {
    int64_t found = 0;
    for (const int64_t pad : word_pads) found += pad > 0 ? 1 : 0;
    return found;
  }
};

struct GpuNode {
  Attributes a;
  GpuOptions options;
  GpuFormat key;
  GpuFormat value;
  GpuFormat delta;        // of keys and values; no components: no deltas
  int64_t jobs;           // sets of kv heads that read the same key and value codes
  int64_t heads_per_job;  // kv heads of each
  // [Hk] kv heads by job, [jobs] their key code heads, [jobs] value code heads; then, at a multiple
  // of 16 bytes, permutations [2, G * Hk].
  std::vector<int32_t> table;

  int64_t heads_per_kv() const { return a.heads / a.kv_heads; }
  // Whether keys meet codes turned back by the offset of their segment.
  bool framed() const { return a.has_decoder && a.segment_length > 0; }
  // Whether this node adds up what its queries attend to.
  bool observes() const { return a.observes != 0 && a.writes(); }
  CodeBlocks code_blocks(int64_t rows) const {
    const bool mixed = key.widths() > 1 || value.widths() > 1 || a.has_delta();
    CodeTile tile = {0, mixed, a.has_bias || a.softcap > 0};
    tile.columns = key.columns() + value.columns() + 2 * delta.columns();
    return CodeBlocksOf(tile, rows, framed() ? a.segment_length : 0);
  }
  // Index of the permutations in the table.
  int64_t permutations() const { return (a.kv_heads + 2 * jobs + 3) / 4 * 4; }
};

}  // namespace minicache
