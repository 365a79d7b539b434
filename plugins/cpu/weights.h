// From the scores of a block to softmax weights: softcap, bias, visibility, running maximum.
#pragma once

#include "cpu/elements.h"

namespace minicache {
namespace MINICACHE_ISA {

// One block of a task and its tokens [begin, end), seen by every row.
struct BlockView {
  const TokenRun* run;
  int64_t first;  // slot of the block's token 0
  int32_t begin;
  int32_t end;
};

// What the token itself contributes: magnitudes of codes, and whether it is read here at all.
struct TokenFactors {
  alignas(64) float key[kBlockTokens];
  alignas(64) float value[kBlockTokens];
  alignas(64) int32_t usable[kBlockTokens];  // all ones or zero
};

static inline void ReadMagnitudes(const BlockView& block, TokenFactors* factors) {
  const TokenRun& run = *block.run;
  const int64_t stride = run.magnitude_stride;
  const uint16_t* key = run.key_magnitude + block.first * stride;
  const uint16_t* value = run.value_magnitude + block.first * stride;
  alignas(64) uint16_t copy[2 * kBlockTokens];
  if (stride != 1 || block.end < kBlockTokens) {  // the state may end with the block's last token
    for (int t = 0; t < kBlockTokens; t++) {
      const int64_t from = (t < block.end ? t : block.begin) * stride;
      copy[t] = key[from];
      copy[kBlockTokens + t] = value[from];
    }
    key = copy;
    value = copy + kBlockTokens;
  }
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    const Ints lane = LaneIndex() + t;
    const Floats k = Float16::Lanes((const char*)(key + t));
    const Floats v = Abs(Float16::Lanes((const char*)(value + t)));
    // Zeros around the block's tokens: halves that were never written may be NaN.
    // The sign marks a retained token: the side buffer holds the token itself.
    const Ints usable = (lane >= block.begin) & (lane < block.end) & ((Ints)k >= 0);
    Store(factors->key + t, usable ? k : Floats{});
    Store(factors->value + t, usable ? v : Floats{});
    memcpy(factors->usable + t, &usable, sizeof usable);
  }
  for (int64_t i = 0; i < run.skipped_count; i++) {
    const int64_t t = run.skipped[i] - block.first;
    if (t < 0 || t >= kBlockTokens) continue;
    factors->key[t] = factors->value[t] = 0.f;
    factors->usable[t] = 0;
  }
}

// The state of the online softmax of a task.
struct Softmax {
  float* scores;   // [rows, kBlockTokens] (many rows: of a pass); become weights, 0 where hidden
  float* maximum;  // [rows]
  float* total;    // [rows]
  float* output;   // [rows, widths.output]
};

static inline void AddBias(const AttendTask& task, const BlockView& block, int64_t row, int begin,
                           int end, float* scores) {
  const int64_t bytes = ElementBytes(task.dtype), head = row % task.heads;
  const int64_t token = task.new_begin + row / task.heads;
  const char* bias =
      task.bias + (head * task.bias_head_stride + token * task.bias_token_stride) * bytes;
  alignas(64) float values[kBlockTokens];
  if (block.run->positions) {
    for (int t = begin; t < end; t++) {
      ToFloat(task.dtype, bias + block.run->positions[block.first + t] * bytes, 1, values + t);
    }
  } else {
    const int64_t position = block.run->first_position + block.first;
    ToFloat(task.dtype, bias + (position + begin) * bytes, end - begin, values + begin);
  }
  for (int t = begin; t < end; t++) scores[t] += values[t];
}

// Tokens of the block that a query at `position` sees, where positions run on without gaps.
static inline void Narrow(const AttendTask& task, const BlockView& block, int64_t position,
                          int* begin, int* end) {
  const int64_t first = block.run->first_position + block.first;
  if (first + *end > position + 1) *end = (int)(position + 1 - first);
  if (task.local_window > 0 && first + *begin <= position - task.local_window) {
    *begin = (int)(position - task.local_window + 1 - first);
  }
}

// Tokens of the vector at `t` that a query at `position` sees among [begin, end).
static inline Ints Visible(const AttendTask& task, const BlockView& block,
                           const TokenFactors* factors, int64_t position, int t, int begin,
                           int end) {
  const Ints lane = LaneIndex() + t;
  Ints visible = (lane >= begin) & (lane < end);
  if (factors) {
    Ints usable;
    memcpy(&usable, factors->usable + t, sizeof usable);
    visible &= usable;
  }
  const int32_t* positions = block.run->positions;
  if (positions && task.local_window > 0) {
    for (int i = 0; i < kLanes; i++) {
      const bool here = t + i < end;
      if (here && positions[block.first + t + i] <= position - task.local_window) visible[i] = 0;
    }
  }
  return visible;
}

static inline void Rescale(float factor, int64_t n, float* x) {
  for (int64_t i = 0; i < n; i += kLanes) Store(x + i, Load(x + i) * Set(factor));
}

// Scores of the vectors [first, last) times the magnitudes of their keys.
static inline void ScaleScores(const TokenFactors& factors, int first, int last, float* s) {
  for (int t = first; t < last; t += kLanes) Store(s + t, Load(s + t) * Load(factors.key + t));
}

static inline void CapScores(float softcap, int first, int last, float* s) {
  const Floats cap = Set(softcap), inverse = Set(1.f / softcap);
  for (int t = first; t < last; t += kLanes) Store(s + t, cap * Tanh(Load(s + t) * inverse));
}

// Takes the largest score of a block in: what was summed so far shrinks.
static inline void RaiseMaximum(const AttendTask& task, int64_t row, float maximum,
                                const Softmax& softmax) {
  if (!(maximum > softmax.maximum[row])) return;
  const float factor = ScalarExp(softmax.maximum[row] - maximum);  // 0 at the first block
  softmax.total[row] *= factor;
  Rescale(factor, task.widths.output, softmax.output + row * task.widths.output);
  softmax.maximum[row] = maximum;
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
