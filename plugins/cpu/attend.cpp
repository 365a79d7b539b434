// Attention of one kv head over blocks of 64 tokens (flash decoding): scores, online softmax,
// weighted values. Few rows (decode) read keys and codes as they lie in memory; many rows (prefill)
// first bring the block into fp32 scratch, where its cost is shared by all of them (many_rows.h).
#include "cpu/isa_kernels.h"
#include "cpu/many_rows.h"
#include "cpu/segments.h"
#include "cpu/tables.h"
#include "cpu/weigh_rows.h"
#if defined(__AVX2__)
#include "cpu/integer_scores.h"
#include "cpu/integer_values.h"
#endif

namespace minicache {
namespace MINICACHE_ISA {
namespace {

void AttendVectors(const AttendTask& task, const BlockView& block, int64_t rows,
                   const Workspace& w) {
  if (rows > kFewRows) return AttendManyVectors(task, block, rows, w);
  const TokenRun& run = *block.run;
  const int64_t at = block.first * run.stride, next = at + kBlockTokens * run.stride;
  const Vectors keys = ViewVectors(task, block, run.key, w.vectors);
  Score(w.query, block, keys, run.slots ? nullptr : run.value + at, rows, w);
  float largest[kFewRows];
  WeighRows(task, block, nullptr, rows, w.softmax, largest);
  const Vectors values = ViewVectors(task, block, run.value, w.vectors);
  const bool more = block.first + block.end < run.end && !run.slots;
  AddValues(task, block, values, more ? run.key + next : nullptr, rows, w, w.softmax.output);
}

void ScoreCodeBlock(const AttendTask& task, const BlockView& block, const CodeBlock& codes,
                    const Ahead& ahead, int64_t rows, const Workspace& w) {
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
bool ScoreAsIntegers(const AttendTask& task, const CodeBlock& codes, const Ahead& ahead,
                     int64_t rows, Workspace* w) {
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

bool AddAsIntegers(const AttendTask& task, const CodeBlock& codes, const Ahead& ahead, int64_t rows,
                   const float* largest, const Workspace& w, float* output) {
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
bool ScoreAsIntegers(const AttendTask&, const CodeBlock&, const Ahead&, int64_t, Workspace*) {
  return false;
}

bool AddAsIntegers(const AttendTask&, const CodeBlock&, const Ahead&, int64_t, const float*,
                   const Workspace&, float*) {
  return false;
}
#endif

void AttendCodes(const AttendTask& task, const BlockView& block, int64_t rows, Workspace* space) {
  const Workspace& w = *space;
  if (rows > kFewRows) return AttendManyCodes(task, block, rows, w);
  const TokenRun& run = *block.run;
  const CodeFormat &keys = *task.key_format, &values = *task.value_format;
  const char* key = run.key + block.first * keys.bytes;
  const char* value = run.value + block.first * values.bytes;
  const int64_t next = run.end - block.first - block.end;  // tokens of the next block
  const int64_t next_count = next < kBlockTokens ? next : kBlockTokens;

  const CodeBlock key_codes = {key, block.begin, block.end};
  const Ahead values_ahead = {value, (int64_t)block.end * values.bytes};
  if (!ScoreAsIntegers(task, key_codes, values_ahead, rows, space)) {
    ScoreCodeBlock(task, block, key_codes, values_ahead, rows, w);
  }
  TokenFactors factors;
  ReadMagnitudes(block, &factors);
  float largest[kFewRows];
  WeighRows(task, block, &factors, rows, w.softmax, largest);
  const CodeBlock codes = {value, block.begin, block.end};
  float* output = w.softmax.output + task.widths.output - task.widths.value;
  const Ahead keys_ahead = {key + kBlockTokens * keys.bytes, next_count * keys.bytes};
  if (AddAsIntegers(task, codes, keys_ahead, rows, largest, w, output)) return;
  if (values.layout == Layout::kTile && IsVectorisable(values)) {
    AddCodedValues(values, codes, w.softmax.scores, rows, output, task.widths.output, keys_ahead);
  } else {
    const Vectors vectors = ViewCodes(values, true, codes, task.widths.value, w.vectors);
    AddValues(task, block, vectors, nullptr, rows, w, output);
  }
}

// The queries of a segment: decoder * (rotated query).
void ProjectQueries(const AttendTask& task, int64_t segment, int64_t rows, const Workspace& w,
                    float* target) {
  const Widths& n = task.widths;
  for (int64_t r = 0; r < rows; r++) {
    float* x = w.rotated + r * n.vector;
    memcpy(x, w.query.data + r * w.query.stride, (size_t)n.vector * sizeof(float));
    Turn(*task.rotation, segment, x);
  }
  const int64_t components = task.key_format->components;
  ProjectRows(w.rotated, n.vector, rows, task.key_decoder, task.key_decoder_dtype, task.head_size,
              task.head_size, 0, components, w.vectors, target, n.key);
  ClearTails(target, n.key, 0, rows, components, RoundToLanes(components));
}

void MakeCodeQueries(const AttendTask& task, int64_t segment, int64_t rows, Workspace* w) {
  w->segment = segment;
  w->code_query = {w->projected, task.widths.key};
  if (task.projected) {
    w->code_query.data = task.projected + (segment - task.first_segment) * rows * task.widths.key;
  } else {
    ProjectQueries(task, segment, rows, *w, w->projected);
  }
  if (rows <= kFewRows) return;
  InterleaveRows(w->code_query.data, w->code_query.stride, rows,
                 RoundToLanes(task.key_format->components), w->code_interleaved);
}

// A block of codes, piece by piece where segments end in it.
void AttendSegments(const AttendTask& task, BlockView block, int64_t rows, Workspace* w) {
  const Rotation& rotation = *task.rotation;
  for (const int32_t end = block.end; block.begin < end; block.begin = block.end) {
    const int64_t segment = SegmentOfSlot(*task.map, rotation, block.first + block.begin);
    const int64_t border = task.map->Start(segment + 1) - block.first;
    block.end = rotation.segment_length > 0 && border < end ? (int32_t)border : end;
    if (segment != w->segment) MakeCodeQueries(task, segment, rows, w);
    AttendCodes(task, block, rows, w);
  }
}

// The scratch with the scaled queries in it.
Workspace Prepare(const AttendTask& task, int64_t rows) {
  const Widths& n = task.widths;
  const int64_t bytes = ElementBytes(task.dtype);
  const Workspace w = PlaceWorkspace(task, rows);
  for (int64_t r = 0; r < rows; r++) {
    const int64_t token = task.new_begin + r / task.heads, head = r % task.heads;
    float* target = w.queries + r * n.vector;
    ToFloat(task.dtype, task.query + (token * task.query_stride + head * task.head_size) * bytes,
            task.head_size, target);
    ClearTails(target, n.vector, 0, 1, task.head_size, n.vector);
    Rescale(task.scale, n.vector, target);
  }
  if (rows > kFewRows) {
    InterleaveRows(w.queries, n.vector, rows, RoundToLanes(task.head_size), w.interleaved);
  }
  return w;
}

// Whether no query of the task sees the block: it lies before the local window of the first one.
bool IsHidden(const AttendTask& task, const BlockView& block) {
  if (task.local_window <= 0 || block.run->positions) return false;
  const int64_t last = block.run->first_position + block.first + block.end - 1;
  return last <= task.past + task.new_begin - task.local_window;
}

}  // namespace

int64_t AttendScratch(int64_t rows, const Widths& n) {
  // A call's tasks differ in size: the largest one of few rows may need more than all others.
  const int64_t few = WorkspaceFloats(rows < kFewRows ? rows : kFewRows, n);
  const int64_t all = WorkspaceFloats(rows, n);
  return all > few ? all : few;
}

void Project(const AttendTask& task, int64_t segment, float* target) {
  const int64_t rows = (int64_t)task.new_count * task.heads;
  ProjectQueries(task, segment, rows, Prepare(task, rows), target);
}

void Attend(const AttendTask& task) {
  const int64_t rows = (int64_t)task.new_count * task.heads;
  Workspace w = Prepare(task, rows);
  memset(task.output, 0, (size_t)(rows * task.widths.output) * sizeof(float));
  for (int64_t r = 0; r < rows; r++) {
    task.maximum[r] = -__builtin_inff();
    task.sum[r] = 0.f;
  }
  int64_t before = 0;  // blocks of the runs passed so far
  for (int i = 0; i < task.run_count; i++) {
    const TokenRun& run = task.runs[i];
    if (run.begin >= run.end) continue;
    const int64_t first = run.begin / kBlockTokens;
    const int64_t count = (run.end + kBlockTokens - 1) / kBlockTokens - first;
    int64_t b = task.block_begin > before ? task.block_begin - before : 0;
    const int64_t stop = task.block_end - before < count ? task.block_end - before : count;
    for (; b < stop; b++) {
      BlockView block = {&run, (first + b) * kBlockTokens, 0, (int32_t)kBlockTokens};
      if (block.first < run.begin) block.begin = (int32_t)(run.begin - block.first);
      if (block.first + block.end > run.end) block.end = (int32_t)(run.end - block.first);
      if (IsHidden(task, block)) continue;
      if (run.kind == TokenRun::Kind::kCodes && task.key_decoder) {
        AttendSegments(task, block, rows, &w);
      } else if (run.kind == TokenRun::Kind::kCodes) {
        AttendCodes(task, block, rows, &w);
      } else {
        AttendVectors(task, block, rows, w);
      }
    }
    before += count;
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
