// Blocks of codes for few rows (decode): codes are multiplied as they lie in memory. The deltas of
// a pair are codes too, with scores and sums of their own.
#pragma once

#include "cpu/code_products.h"
#include "cpu/delta_rows.h"
#include "cpu/weigh_rows.h"
#if defined(__AVX2__)
#include "cpu/integer_scores.h"
#include "cpu/integer_values.h"
#endif

namespace minicache {
namespace MINICACHE_ISA {

static inline void ScoreCodeBlock(const AttendTask& task, const BlockView& block,
                                  const CodeBlock& codes, const Ahead& ahead, int64_t rows,
                                  const Workspace& w) {
  const CodeFormat& format = *task.key_format;
  const Queries& q = w.code_query;
  if (format.layout != Layout::kTile || !IsVectorisable(format)) {
    const Vectors keys = ViewCodes(format, false, codes, task.widths.key, w.vectors);
    Score(q, block, keys, nullptr, rows, w);
  } else {
    ScoreCodes(format, codes, q.data, q.stride, rows, w.softmax.scores, ahead);
  }
}

#if defined(__AVX2__)
static inline bool ScoreAsIntegers(const AttendTask& task, const CodeBlock& codes,
                                   const Ahead& ahead, int64_t rows, Workspace* w) {
  const CodeFormat& format = *task.key_format;
  if (!UsesIntegers(task.key_maths, format, rows)) return false;
  if (w->quantised != w->segment) {
    const Queries& q = w->code_query;
    QuantiseQueries(format, task.key_maths, q.data, q.stride, rows, w->integer_query);
    w->quantised = w->segment;
  }
  if (task.key_maths == Maths::kInt16) {
    ScoreIntegers<Maths::kInt16>(format, codes, w->integer_query, rows, w->softmax.scores, ahead);
  } else {
    ScoreIntegers<Maths::kInt8>(format, codes, w->integer_query, rows, w->softmax.scores, ahead);
  }
  return true;
}

static inline bool AddAsIntegers(const AttendTask& task, const CodeBlock& codes, const Ahead& ahead,
                                 int64_t rows, const float* largest, const Workspace& w,
                                 float* output) {
  const CodeFormat& format = *task.value_format;
  const IntegerWeights& weights = w.integer_weights;
  if (!UsesIntegers(task.value_maths, format, rows)) return false;
  QuantiseWeightRows(format, task.value_maths, w.softmax.scores, largest, rows, weights);
  const int64_t stride = task.widths.output;
  if (task.value_maths == Maths::kInt16) {
    AddIntegerValues<Maths::kInt16>(format, codes, weights, rows, output, stride, ahead);
  } else {
    AddIntegerValues<Maths::kInt8>(format, codes, weights, rows, output, stride, ahead);
  }
  return true;
}
#else
static inline bool ScoreAsIntegers(const AttendTask&, const CodeBlock&, const Ahead&, int64_t,
                                   Workspace*) {
  return false;
}

static inline bool AddAsIntegers(const AttendTask&, const CodeBlock&, const Ahead&, int64_t,
                                 const float*, const Workspace&, float*) {
  return false;
}
#endif

static inline void ScoreFewCodes(const AttendTask& task, const BlockView& block,
                                 const CodeBlock& codes, const Ahead& ahead, int64_t rows,
                                 Workspace* w) {
  if (ScoreAsIntegers(task, codes, ahead, rows, w)) return;
  ScoreCodeBlock(task, block, codes, ahead, rows, *w);
}

// output[r] += sum_t score[r, t] * value code t, `widths.output` floats per row; `largest` [rows]:
// of each row's scores.
static inline void AddFewCodes(const AttendTask& task, const BlockView& block,
                               const CodeBlock& codes, const Ahead& ahead, int64_t rows,
                               const float* largest, const Workspace& w, float* output) {
  const CodeFormat& format = *task.value_format;
  if (AddAsIntegers(task, codes, ahead, rows, largest, w, output)) return;
  if (format.layout == Layout::kTile && IsVectorisable(format)) {
    AddCodedValues(format, codes, w.softmax.scores, rows, output, task.widths.output, ahead);
  } else {
    const Vectors vectors = ViewCodes(format, true, codes, task.widths.value, w.vectors);
    AddValues(task, block, vectors, nullptr, rows, w, output);
  }
}

// Deltas as the codes of a task of their own, whose scores and sums then join the other's.
struct DeltaTask {
  AttendTask task;
  Workspace space;
};

static inline DeltaTask MakeDeltaTask(const AttendTask& task, const Workspace& w) {
  DeltaTask delta = {task, w};
  if (!task.delta_format) return delta;
  delta.task.key_format = delta.task.value_format = task.delta_format;
  delta.task.key_maths = delta.task.value_maths = task.delta_maths;
  Widths& n = delta.task.widths;
  n.key = n.value = n.output = n.delta;
  delta.space.softmax.scores = w.delta_scores;
  delta.space.segment = -2;
#if defined(__AVX2__)
  delta.space.quantised = -3;
  delta.space.integer_query = w.delta_integers;
#endif
  return delta;
}

// The queries of the segment as they meet key deltas: basis * query.
static inline void MakeDeltaQueries(const AttendTask& task, const DeltaRun& run, int64_t rows,
                                    const Workspace& w, DeltaTask* delta) {
  if (delta->space.segment == w.segment) return;
  delta->space.segment = w.segment;
  delta->space.code_query = w.code_query;
  if (!run.basis) return;
  const int64_t width = task.widths.delta, components = task.delta_format->components;
  ProjectRows(w.code_query.data, w.code_query.stride, rows, run.basis, run.basis_dtype,
              task.head_size, task.head_size, 0, components, w.vectors, w.delta_query, width);
  ClearTails(w.delta_query, width, 0, rows, components, RoundToLanes(components));
  delta->space.code_query = {w.delta_query, width};
}

static inline void AddDeltaScores(const AttendTask& task, const BlockView& block,
                                  const Ahead& ahead, int64_t rows, const Workspace& w,
                                  DeltaTask* delta) {
  const DeltaRun& run = block.run->key_delta;
  MakeDeltaQueries(task, run, rows, w, delta);
  const CodeBlock codes = DeltaBlock(*task.delta_format, run, block);
  ScoreFewCodes(delta->task, block, codes, ahead, rows, &delta->space);
  alignas(64) float ratios[kBlockTokens];
  ReadRatios(run, block, task.delta_sign, ratios);
  for (int64_t r = 0; r < rows; r++) {
    float* scores = w.softmax.scores + r * kBlockTokens;
    const float* more = w.delta_scores + r * kBlockTokens;
    for (int t = 0; t < kBlockTokens; t += kLanes) {
      Store(scores + t, Load(scores + t) + Load(ratios + t) * Load(more + t));
    }
  }
}

static inline void AddDeltaValues(const AttendTask& task, const BlockView& block,
                                  const Ahead& ahead, int64_t rows, const Workspace& w,
                                  const DeltaTask& delta, float* output) {
  const DeltaRun& run = block.run->value_delta;
  alignas(64) float ratios[kBlockTokens];
  ReadRatios(run, block, 1.f, ratios);  // integer weights are not negative
  float largest[kFewRows];
  for (int64_t r = 0; r < rows; r++) {
    const float* weights = w.softmax.scores + r * kBlockTokens;
    float* own = w.delta_scores + r * kBlockTokens;
    Floats most = {};
    for (int t = 0; t < kBlockTokens; t += kLanes) {
      const Floats weight = Load(weights + t) * Load(ratios + t);
      Store(own + t, weight);
      most = Max(most, weight);
    }
    largest[r] = Maximum(most);
  }
  const int64_t width = task.widths.delta, stride = task.widths.output;
  memset(w.delta_sums, 0, (size_t)(rows * width) * sizeof(float));
  const CodeBlock codes = DeltaBlock(*task.delta_format, run, block);
  AddFewCodes(delta.task, block, codes, ahead, rows, largest, delta.space, w.delta_sums);
  Rescale(task.delta_sign, rows * width, w.delta_sums);
  if (run.basis) {
    return MapRows(w.delta_sums, width, rows, run.basis, run.basis_dtype, task.head_size,
                   task.delta_format->components, w.vectors, output, stride);
  }
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t i = 0; i < width; i += kLanes) {
      float* target = output + r * stride + i;
      Store(target, Load(target) + Load(w.delta_sums + r * width + i));
    }
  }
}

// The deltas of a block; nothing where there are none.
static inline Ahead DeltasAhead(const AttendTask& task, const DeltaRun& run,
                                const BlockView& block) {
  const int64_t bytes = task.delta_format ? task.delta_format->bytes : 0;
  return {run.code + block.first * bytes, block.end * bytes};
}

static inline void AttendFewCodes(const AttendTask& task, const BlockView& block, int64_t rows,
                                  Workspace* space, DeltaTask* delta) {
  const Workspace& w = *space;
  const TokenRun& run = *block.run;
  const CodeFormat &keys = *task.key_format, &values = *task.value_format;
  const char* key = run.key + block.first * keys.bytes;
  const char* value = run.value + block.first * values.bytes;
  const int64_t next = run.end - block.first - block.end;  // tokens of the next block
  const int64_t next_count = next < kBlockTokens ? next : kBlockTokens;

  // Each product fetches what the next one reads.
  const Ahead values_ahead = {value, (int64_t)block.end * values.bytes};
  const Ahead keys_ahead = {key + kBlockTokens * keys.bytes, next_count * keys.bytes};
  const Ahead key_deltas = DeltasAhead(task, run.key_delta, block);
  const Ahead value_deltas = DeltasAhead(task, run.value_delta, block);
  const CodeBlock key_codes = {key, block.begin, block.end};
  ScoreFewCodes(task, block, key_codes, task.delta_format ? key_deltas : values_ahead, rows, space);
  if (task.delta_format) AddDeltaScores(task, block, values_ahead, rows, w, delta);
  TokenFactors factors;
  ReadMagnitudes(block, &factors);
  float largest[kFewRows];
  WeighRows(task, block, &factors, rows, w.softmax, largest);
  float* output = w.softmax.output + task.widths.output - task.widths.value;
  const CodeBlock codes = {value, block.begin, block.end};
  AddFewCodes(task, block, codes, task.delta_format ? value_deltas : keys_ahead, rows, largest, w,
              output);
  if (task.delta_format) AddDeltaValues(task, block, keys_ahead, rows, w, *delta, output);
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
