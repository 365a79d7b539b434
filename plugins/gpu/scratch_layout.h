// How a call is cut into splits of the cache and chunks of new tokens, and where its scratch lies.
#pragma once

#include <cstdint>

#include "gpu/node.h"
#include "minicache/tensors.h"

namespace minicache {

struct ScratchLayout {
  static constexpr int64_t kAlignment = 256;
  static constexpr int64_t kPadding = 7 * kAlignment;  // of the parts for a chunk, at most

  ScratchLayout(const GpuNode& node, const CallShape& shape);

  int64_t segments = 0;      // of the longest text, in which keys are coded
  int64_t splits = 0;        // of the codes, and as many of their deltas; 0 without
  int64_t exact_splits = 0;  // of the exact slots
  int64_t chunk = 0;         // new tokens that are attended at a time

  // Bytes from the start. Retention: what attention and the writer share.
  int64_t active = 0;   // i32 [B, P]
  int64_t skipped = 0;  // i32 [B, 1 + X]
  int64_t shared = 0;   // bytes of both
  // Attention, for a chunk.
  int64_t projected = 0;  // fp16 [B, chunk, H, segments, key stride]
  int64_t offset = 0;     // fp32 [B, chunk, H, segments]
  int64_t maximum = 0;    // fp32 [B, chunk, H, parts]
  int64_t sum = 0;        // likewise
  int64_t coded = 0;      // fp32 [B, chunk, H, splits, value stride]
  int64_t exact = 0;      // fp32 [B, chunk, H, exact_splits, D]
  int64_t log_sum = 0;    // fp32 [B, chunk, H], where the node observes
  // The writer, in the same memory: attention is over when it begins.
  int64_t gathered = 0;    // fp32 [2, B, S, G, Hk, D]
  int64_t joint = 0;       // fp32 [B, S, Hc, stride], of keys, then of values
  int64_t aligned = 0;     // fp32 [B, S, G, Hk, D], of keys, then of values
  int64_t cosine = 0;      // fp64 [2, 2, B, S, Hk]: of keys and values, sums and minima
  int64_t similarity = 0;  // fp32 [B, S]
  int64_t slot = 0;        // i32 [B, S]
  int64_t free = 0;        // i32 [B, P]
  int64_t change = 0;      // i32 [B, P + S]
  int64_t bytes = 0;

  int64_t skipped_stride = 0;  // 1 + X

  int64_t parts() const { return splits + exact_splits; }

 private:
  void ChooseSplits(const GpuNode& node, const CallShape& shape);
  void PlaceAttention(const GpuNode& node, const CallShape& shape);
  void PlaceWriter(const GpuNode& node, const CallShape& shape);
  // Reserves bytes at `end`.
  static int64_t Reserve(int64_t bytes, int64_t* end);
};

int64_t CosineBytes(const GpuNode& node, const CallShape& shape);

}  // namespace minicache
