#include "gpu/scratch_layout.h"

#include <algorithm>

#include "gpu/launch_builder.h"
#include "gpu/tuning.h"

namespace minicache {
namespace {

constexpr int64_t kProgramsPerProcessor = 2;  // that are in flight together
constexpr int64_t kMostSplits = 128;

// Splits of `tokens` so that `programs` of each fill the processors.
int64_t SplitsOf(const GpuOptions& options, int64_t programs, int64_t tokens) {
  const int64_t wanted =
      CeilDiv(kProgramsPerProcessor * options.multiprocessors, std::max<int64_t>(programs, 1));
  const int64_t worth = tokens / std::max<int64_t>(options.split_tokens, 1);
  return std::clamp<int64_t>(std::min(wanted, worth), 1, kMostSplits);
}

}  // namespace

ScratchLayout::ScratchLayout(const GpuNode& node, const CallShape& shape) {
  const Attributes& a = node.a;
  segments = a.coded() ? 1 : 0;
  // Where tokens are evicted, a text may have more segments than the slots of a row.
  if (node.framed()) {
    segments = a.evicts ? shape.segments : CeilDiv(shape.capacity, a.segment_length);
  }
  ChooseSplits(node, shape);
  const int64_t per_token =
      shape.batch * a.heads *
      (segments * (2 * node.key.stride + 4) + 8 * parts() + 4 * splits * node.value.stride +
       4 * exact_splits * a.head_size + (node.observes() ? 4 : 0));
  chunk = std::clamp<int64_t>(node.options.scratch_bytes / std::max<int64_t>(per_token, 1), 1,
                              std::max<int64_t>(shape.new_tokens, 1));
  skipped_stride = 1 + a.slack();
  if (a.retains()) {
    active = Reserve(4 * shape.batch * shape.retained, &shared);
    skipped = Reserve(4 * shape.batch * skipped_stride, &shared);
  }
  bytes = shared;
  PlaceAttention(node, shape);
  const int64_t attention = bytes;
  bytes = shared;
  if (a.coded() && a.writes()) PlaceWriter(node, shape);
  bytes = std::max(bytes, attention);
}

void ScratchLayout::ChooseSplits(const GpuNode& node, const CallShape& shape) {
  const Attributes& a = node.a;
  const int64_t rows = shape.new_tokens * node.heads_per_kv();
  if (a.coded()) {
    const int64_t tiles =
        CeilDiv(rows * node.heads_per_job, node.code_blocks(rows * node.heads_per_job).m);
    splits = SplitsOf(node.options, shape.batch * node.jobs * tiles, shape.capacity);
    if (a.has_delta()) splits *= 2;  // of directions and of deltas
  }
  const int64_t local = a.local_window > 0 ? a.local_window : shape.slots;
  exact_splits = SplitsOf(node.options, shape.batch * a.kv_heads * CeilDiv(rows, ExactBlockM(rows)),
                          std::min(shape.slots, local));
}

void ScratchLayout::PlaceAttention(const GpuNode& node, const CallShape& shape) {
  const int64_t rows = shape.batch * chunk * node.a.heads;
  if (node.a.coded()) {
    projected = Reserve(2 * rows * segments * node.key.stride, &bytes);
    offset = Reserve(4 * rows * segments, &bytes);
    coded = Reserve(4 * rows * splits * node.value.stride, &bytes);
  }
  maximum = Reserve(4 * rows * parts(), &bytes);
  sum = Reserve(4 * rows * parts(), &bytes);
  exact = Reserve(4 * rows * exact_splits * node.a.head_size, &bytes);
  if (node.observes()) log_sum = Reserve(4 * rows, &bytes);
}

void ScratchLayout::PlaceWriter(const GpuNode& node, const CallShape& shape) {
  const Attributes& a = node.a;
  const int64_t tokens = shape.batch * shape.new_tokens;
  const int64_t vectors = tokens * a.group_size * a.kv_heads * a.head_size;
  gathered = Reserve(4 * 2 * vectors, &bytes);
  if (a.subspace()) {
    const int64_t stride = std::max(node.key.stride, node.value.stride);
    joint = Reserve(4 * tokens * a.code_heads * stride, &bytes);
    return;
  }
  if (a.aligned()) aligned = Reserve(4 * vectors, &bytes);
  cosine = Reserve(CosineBytes(node, shape), &bytes);
  if (!a.retains()) return;
  similarity = Reserve(4 * tokens, &bytes);
  slot = Reserve(4 * tokens, &bytes);
  free = Reserve(4 * shape.batch * shape.retained, &bytes);
  change = Reserve(4 * (shape.batch * shape.retained + tokens), &bytes);
}

int64_t CosineBytes(const GpuNode& node, const CallShape& shape) {
  return 8 * 2 * 2 * shape.batch * shape.new_tokens * node.a.kv_heads;
}

int64_t ScratchLayout::Reserve(int64_t bytes, int64_t* end) {
  const int64_t start = *end;
  *end += CeilDiv(bytes, kAlignment) * kAlignment;
  return start;
}

}  // namespace minicache
