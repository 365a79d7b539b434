// Attention of one kv head over blocks of 64 tokens (flash decoding): scores, online softmax,
// weighted values. Few rows (decode) read keys and codes as they lie in memory; many rows (prefill)
// first bring the block into fp32 scratch, where its cost is shared by all of them.
#include "cpu/code_products.h"
#include "cpu/isa_kernels.h"
#include "cpu/products.h"
#include "cpu/transpose.h"
#include "cpu/weights.h"

namespace minicache {
namespace MINICACHE_ISA {
namespace {

constexpr int64_t kFewRows = 8;

struct Workspace {
  float* query;    // [rows, padded]
  float* turned;   // [padded, kBlockTokens]: keys, lanes along tokens
  float* vectors;  // [kBlockTokens, padded]: keys or values
  Softmax softmax;
};

// Vectors of a block, where they can be read as they are, else as a copy in fp32.
struct Vectors {
  const char* data;
  int64_t stride;
  int64_t width;  // a multiple of kLanes
  Dtype dtype;
};

Vectors ViewVectors(const AttendTask& task, const BlockView& block, const char* data, float* copy) {
  const TokenRun& run = *block.run;
  if (!run.slots && task.head_size % kLanes == 0) {
    return {data + block.first * run.stride, run.stride, task.head_size, run.dtype};
  }
  for (int t = block.begin; t < block.end; t++) {
    const int64_t slot = run.slots ? run.slots[block.first + t] : block.first + t;
    ToFloat(run.dtype, data + slot * run.stride, task.head_size, copy + t * task.padded_size);
  }
  return {(const char*)copy, task.padded_size * 4, task.padded_size, Dtype::kFloat32};
}

Vectors ViewCodes(const AttendTask& task, const CodeFormat& format, bool values,
                  const CodeBlock& block, float* copy) {
  ReadCodes(format, values, block, copy, task.padded_size);
  return {(const char*)copy, task.padded_size * 4, task.padded_size, Dtype::kFloat32};
}

template <class E>
void ScoreVectors(const AttendTask& task, const BlockView& block, const Vectors& keys,
                  const char* ahead, int64_t rows, const Workspace& w) {
  float* scores = w.softmax.scores;
  if (rows <= kFewRows) {
    Dots<E>(w.query, task.padded_size, keys.data + block.begin * keys.stride, keys.stride, rows,
            block.end - block.begin, keys.width, scores + block.begin, kBlockTokens, ahead);
    return;
  }
  Transpose<E>(keys.data, keys.stride, block.end, keys.width, w.turned);
  const int64_t width = (block.end + kLanes - 1) / kLanes * kLanes;
  memset(scores, 0, (size_t)(rows * kBlockTokens) * sizeof(float));
  AddProduct<Float32>(w.query, task.padded_size, (const char*)w.turned, kBlockTokens * 4, rows,
                      keys.width, width, scores, kBlockTokens);
}

void Score(const AttendTask& task, const BlockView& block, const Vectors& keys, const char* ahead,
           int64_t rows, const Workspace& w) {
  if (keys.dtype == Dtype::kFloat32) {
    return ScoreVectors<Float32>(task, block, keys, ahead, rows, w);
  }
  if (keys.dtype == Dtype::kFloat16) {
    return ScoreVectors<Float16>(task, block, keys, ahead, rows, w);
  }
  return ScoreVectors<Bfloat16>(task, block, keys, ahead, rows, w);
}

template <class E>
void AddVectors(const AttendTask& task, const BlockView& block, const Vectors& values,
                const char* ahead, int64_t rows, const Workspace& w) {
  AddProduct<E>(w.softmax.scores + block.begin, kBlockTokens,
                values.data + block.begin * values.stride, values.stride, rows,
                block.end - block.begin, values.width, w.softmax.output, task.padded_size,
                rows <= kFewRows ? ahead : nullptr);
}

void AddValues(const AttendTask& task, const BlockView& block, const Vectors& values,
               const char* ahead, int64_t rows, const Workspace& w) {
  if (values.dtype == Dtype::kFloat32) {
    return AddVectors<Float32>(task, block, values, ahead, rows, w);
  }
  if (values.dtype == Dtype::kFloat16) {
    return AddVectors<Float16>(task, block, values, ahead, rows, w);
  }
  return AddVectors<Bfloat16>(task, block, values, ahead, rows, w);
}

void AttendVectors(const AttendTask& task, const BlockView& block, int64_t rows,
                   const Workspace& w) {
  const TokenRun& run = *block.run;
  const int64_t at = block.first * run.stride, next = at + kBlockTokens * run.stride;
  const Vectors keys = ViewVectors(task, block, run.key, w.vectors);
  Score(task, block, keys, run.slots ? nullptr : run.value + at, rows, w);
  for (int64_t r = 0; r < rows; r++) WeighRow(task, block, nullptr, r, w.softmax);
  const Vectors values = ViewVectors(task, block, run.value, w.vectors);
  const bool more = block.first + block.end < run.end && !run.slots;
  AddValues(task, block, values, more ? run.key + next : nullptr, rows, w);
}

void ScoreCodeBlock(const AttendTask& task, const BlockView& block, const CodeBlock& codes,
                    const Ahead& ahead, int64_t rows, const Workspace& w) {
  const CodeFormat& format = *task.key_format;
  if (format.layout != Layout::kTile || !IsVectorisable(format)) {
    Score(task, block, ViewCodes(task, format, false, codes, w.vectors), nullptr, rows, w);
  } else if (rows <= kFewRows) {
    ScoreCodes(format, codes, w.query, task.padded_size, rows, w.softmax.scores, ahead);
  } else {
    ReadKeysTransposed(format, codes, w.turned);
    memset(w.softmax.scores, 0, (size_t)(rows * kBlockTokens) * sizeof(float));
    AddProduct<Float32>(w.query, task.padded_size, (const char*)w.turned, kBlockTokens * 4, rows,
                        format.components, kBlockTokens, w.softmax.scores, kBlockTokens);
  }
}

void AttendCodes(const AttendTask& task, const BlockView& block, int64_t rows, const Workspace& w) {
  const TokenRun& run = *block.run;
  const CodeFormat &keys = *task.key_format, &values = *task.value_format;
  const char* key = run.key + block.first * keys.bytes;
  const char* value = run.value + block.first * values.bytes;
  const int64_t next = run.end - block.first - block.end;  // tokens of the next block
  const int64_t next_count = next < kBlockTokens ? next : kBlockTokens;

  ScoreCodeBlock(task, block, {key, block.begin, block.end},
                 {value, (int64_t)block.end * values.bytes}, rows, w);
  TokenFactors factors;
  ReadMagnitudes(block, &factors);
  for (int64_t r = 0; r < rows; r++) WeighRow(task, block, &factors, r, w.softmax);
  const CodeBlock codes = {value, block.begin, block.end};
  if (rows <= kFewRows && values.layout == Layout::kTile && IsVectorisable(values)) {
    const Ahead ahead = {key + kBlockTokens * keys.bytes, next_count * keys.bytes};
    AddCodedValues(values, codes, w.softmax.scores, rows, w.softmax.output, task.padded_size,
                   ahead);
  } else {
    AddValues(task, block, ViewCodes(task, values, true, codes, w.vectors), nullptr, rows, w);
  }
}

Workspace Prepare(const AttendTask& task, int64_t rows) {
  const int64_t padded = task.padded_size;
  Workspace w;
  w.query = task.scratch;
  w.turned = w.query + rows * padded;
  w.vectors = w.turned + padded * kBlockTokens;
  w.softmax.scores = w.vectors + padded * kBlockTokens;
  w.softmax.maximum = task.maximum;
  w.softmax.total = task.sum;
  w.softmax.output = task.output;
  if (padded != task.head_size) {  // padding must stay zero: it enters the dot products
    memset(w.query, 0, (size_t)(rows * padded) * sizeof(float));
    memset(w.vectors, 0, (size_t)(padded * kBlockTokens) * sizeof(float));
  }
  memset(task.output, 0, (size_t)(rows * padded) * sizeof(float));
  const int64_t bytes = ElementBytes(task.dtype);
  for (int64_t r = 0; r < rows; r++) {
    const int64_t token = task.new_begin + r / task.heads, head = r % task.heads;
    float* query = w.query + r * padded;
    ToFloat(task.dtype, task.query + (token * task.query_stride + head * task.head_size) * bytes,
            task.head_size, query);
    Rescale(task.scale, padded, query);
    task.maximum[r] = -__builtin_inff();
    task.sum[r] = 0.f;
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

int64_t AttendScratch(int64_t rows, int64_t padded_size) {
  return (rows + 2 * kBlockTokens) * padded_size + rows * kBlockTokens;
}

void Attend(const AttendTask& task) {
  const int64_t rows = (int64_t)task.new_count * task.heads;
  const Workspace w = Prepare(task, rows);
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
      if (run.kind == TokenRun::Kind::kCodes) {
        AttendCodes(task, block, rows, w);
      } else {
        AttendVectors(task, block, rows, w);
      }
    }
    before += count;
  }
}

void Finish(const FinishTask& task) {
  const int64_t bytes = ElementBytes(task.dtype), padded = task.padded_size;
  for (int64_t r = 0; r < task.rows; r++) {
    const int64_t head = r % task.heads;
    float sink = -__builtin_inff();
    if (task.sink) ToFloat(task.dtype, task.sink + head * bytes, 1, &sink);
    float maximum = sink;
    bool visible = false;
    for (int64_t part = 0; part < task.part_count; part++) {
      const float m = task.maximum[part * task.rows + r];
      visible |= m > -__builtin_inff();
      maximum = m > maximum ? m : maximum;
    }
    float* merged = task.scratch;
    memset(merged, 0, (size_t)padded * sizeof(float));
    float total = task.sink ? ScalarExp(sink - maximum) : 0.f;
    for (int64_t part = 0; visible && part < task.part_count; part++) {
      const int64_t at = part * task.rows + r;
      const Floats factor = Set(ScalarExp(task.maximum[at] - maximum));
      total += factor[0] * task.sum[at];
      const float* source = task.parts + at * padded;
      for (int64_t d = 0; d < padded; d += kLanes) {
        Store(merged + d, Load(merged + d) + factor * Load(source + d));
      }
    }
    if (visible) Rescale(1.f / total, padded, merged);
    char* target =
        task.output + (r / task.heads * task.output_stride + head * task.head_size) * bytes;
    FromFloat(merged, task.head_size, task.dtype, target);
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
