// How much attention each token got: the scores of all tokens first, then their softmax, which is
// added up over queries. It repeats what attention did, so that attention need not know of it.
#include "cpu/delta_rows.h"
#include "cpu/isa_kernels.h"
#include "cpu/segments.h"
#include "cpu/weights.h"

namespace minicache {
namespace MINICACHE_ISA {
namespace {

// Scratch, and the scaled queries in it.
Workspace Prepare(const ObserveTask& task, int64_t rows) {
  const AttendTask& a = *task.attend;
  const int64_t width = a.widths.vector;
  Workspace w = {};
  float* query = task.scratch;
  w.query = w.code_query = {query, width};
  w.segment = -1;
  w.projected = query + rows * width;
  w.vectors = w.projected + rows * a.widths.key;
  w.softmax.scores = w.vectors + Widest(a.widths) * kBlockTokens;
  w.delta_vectors = w.softmax.scores + rows * kBlockTokens;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t token = a.new_begin + r / a.heads, head = r % a.heads;
    const int64_t at = token * a.query_stride + head * a.head_size;
    ToFloat(a.dtype, a.query + at * ElementBytes(a.dtype), a.head_size, query + r * width);
    ClearTails(query + r * width, width, 0, 1, a.head_size, width);
    Rescale(a.scale, width, query + r * width);
  }
  return w;
}

// The scores of one row and block: softcapped, and -infinity where a token is not read.
void MaskRow(const AttendTask& task, const BlockView& block, const TokenFactors* factors,
             int64_t row, float* s) {
  int begin = block.begin, end = block.end;
  const int64_t position = task.past + task.new_begin + row / task.heads;
  if (!block.run->positions) Narrow(task, block, position, &begin, &end);
  const Floats cap = Set(task.softcap),
               inverse = Set(task.softcap > 0.f ? 1.f / task.softcap : 0.f);
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    const Ints lane = LaneIndex() + t;
    Ints visible = (lane >= begin) & (lane < end);
    Floats score = Load(s + t);
    if (factors) {
      Ints usable;
      memcpy(&usable, factors->usable + t, sizeof usable);
      visible &= usable;
      score *= Load(factors->key + t);
    }
    if (task.softcap > 0.f) score = cap * Tanh(score * inverse);
    Store(s + t, visible ? score : Set(-__builtin_inff()));
  }
}

// `column` is that of the block's token 0, which may lie before the run's first one.
void StoreScores(const ObserveTask& task, const BlockView& block, const TokenFactors* factors,
                 int64_t rows, int64_t column, const Workspace& w) {
  for (int64_t r = 0; r < rows; r++) {
    float* s = w.softmax.scores + r * kBlockTokens;
    MaskRow(*task.attend, block, factors, r, s);
    memcpy(task.scores + r * task.stride + column + block.begin, s + block.begin,
           (size_t)(block.end - block.begin) * sizeof(float));
  }
}

void ScoreCodes(const ObserveTask& task, BlockView block, int64_t rows, int64_t column,
                Workspace* w) {
  const AttendTask& a = *task.attend;
  const CodeFormat& format = *a.key_format;
  for (const int32_t end = block.end; block.begin < end; block.begin = block.end) {
    if (a.key_decoder) {
      const int64_t segment = SegmentOfSlot(*a.map, *a.rotation, block.first + block.begin);
      const int64_t border = a.map->Start(segment + 1) - block.first;
      block.end = a.rotation->segment_length > 0 && border < end ? (int32_t)border : end;
      if (segment != w->segment) Project(a, segment, w->projected);
      w->segment = segment;
      w->code_query = {w->projected, a.widths.key};
    }
    const CodeBlock codes = {block.run->key + block.first * format.bytes, block.begin, block.end};
    const Vectors keys = ViewCodes(format, false, codes, a.widths.key, w->vectors);
    if (a.delta_format) {
      float* copy = w->delta_vectors + kBlockTokens * a.widths.delta;
      AddDeltaRows(a, block, false, w->vectors, a.widths.key, w->delta_vectors, copy);
    }
    Score(w->code_query, block, keys, nullptr, rows, *w);
    TokenFactors factors;
    ReadMagnitudes(block, &factors);
    StoreScores(task, block, &factors, rows, column, *w);
  }
}

void AddWeights(const ObserveTask& task, int64_t row) {
  const float* scores = task.scores + row * task.stride;
  float sink = -__builtin_inff();
  if (task.sink) {
    const int64_t head = row % task.attend->heads;
    ToFloat(task.attend->dtype, task.sink + head * ElementBytes(task.attend->dtype), 1, &sink);
  }
  Floats best = Set(sink);
  for (int64_t t = 0; t < task.stride; t += kLanes) best = Max(best, Load(scores + t));
  const float maximum = Maximum(best);
  if (maximum == -__builtin_inff()) return;
  const Floats base = Set(maximum);
  Floats total = {};
  for (int64_t t = 0; t < task.stride; t += kLanes) total += Exp(Load(scores + t) - base);
  const float sum = Sum(total) + (task.sink ? ScalarExp(sink - maximum) : 0.f);
  const Floats share = Set(task.share / sum);
  for (int64_t t = 0; t < task.stride; t += kLanes) {
    Store(task.gained + t, Load(task.gained + t) + share * Exp(Load(scores + t) - base));
  }
}

}  // namespace

int64_t ObserveScratch(int64_t rows, const Widths& n) {
  const int64_t delta = n.delta > 0 ? kBlockTokens * n.delta + kTableRows * n.vector : 0;
  return rows * (n.vector + n.key + kBlockTokens) + kBlockTokens * Widest(n) + delta;
}

void Observe(const ObserveTask& task) {
  const AttendTask& a = *task.attend;
  const int64_t rows = (int64_t)a.new_count * a.heads;
  Workspace w = Prepare(task, rows);
  int64_t column = 0;  // of the run's first token
  for (int i = 0; i < a.run_count; i++) {
    const TokenRun& run = a.runs[i];
    for (int64_t at = run.begin / kBlockTokens * kBlockTokens; at < run.end; at += kBlockTokens) {
      BlockView block = {&run, at, 0, (int32_t)kBlockTokens};
      if (at < run.begin) block.begin = (int32_t)(run.begin - at);
      if (at + kBlockTokens > run.end) block.end = (int32_t)(run.end - at);
      if (run.kind == TokenRun::Kind::kCodes) {
        ScoreCodes(task, block, rows, column + at - run.begin, &w);
      } else {
        const Vectors keys = ViewVectors(a, block, run.key, w.vectors);
        Score(w.query, block, keys, nullptr, rows, w);
        StoreScores(task, block, nullptr, rows, column + at - run.begin, w);
      }
    }
    column += run.end - run.begin;
  }
  for (int64_t t = 0; t < task.stride; t++) task.gained[t] = 0.f;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t t = column; t < task.stride; t++) {
      task.scores[r * task.stride + t] = -__builtin_inff();
    }
    AddWeights(task, r);
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
