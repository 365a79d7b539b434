// Attention of one kv head over blocks of 64 tokens (flash decoding): scores, online softmax,
// weighted values. Few rows (decode) read keys and codes (few_rows.h) as they lie in memory; many
// rows (prefill) first bring the block into fp32 scratch, where its cost is shared by all of them
// (many_rows.h).
#include "cpu/few_rows.h"
#include "cpu/isa_kernels.h"
#include "cpu/many_rows.h"
#include "cpu/segments.h"

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

void AttendCodes(const AttendTask& task, const BlockView& block, int64_t rows, Workspace* w,
                 DeltaTask* delta) {
  if (rows > kFewRows) return AttendManyCodes(task, block, rows, *w);
  AttendFewCodes(task, block, rows, w, delta);
}

// A block of codes, piece by piece where segments end in it.
void AttendSegments(const AttendTask& task, BlockView block, int64_t rows, Workspace* w,
                    DeltaTask* delta) {
  const Rotation& rotation = *task.rotation;
  for (const int32_t end = block.end; block.begin < end; block.begin = block.end) {
    const int64_t segment = SegmentOfSlot(*task.map, rotation, block.first + block.begin);
    const int64_t border = task.map->Start(segment + 1) - block.first;
    block.end = rotation.segment_length > 0 && border < end ? (int32_t)border : end;
    if (segment != w->segment) MakeCodeQueries(task, segment, rows, w);
    AttendCodes(task, block, rows, w, delta);
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

// Lines of the next task's table that a block fetches into the second cache: products with codes
// leave the memory time for a few. All tables at once would come in the way of the codes.
constexpr int64_t kTableLines = 12;

void FetchShare(Ahead* table) {
  for (int64_t i = 0; i < kTableLines && table->bytes > 0; i++) {
    __builtin_prefetch(table->data, 0, 2);
    table->data += 64;
    table->bytes -= 64;
  }
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
  DeltaTask delta = MakeDeltaTask(task, w);
  memset(task.output, 0, (size_t)(rows * task.widths.output) * sizeof(float));
  for (int64_t r = 0; r < rows; r++) {
    task.maximum[r] = -__builtin_inff();
    task.sum[r] = 0.f;
  }
  Ahead table = {task.next_table, rows > kFewRows ? 0 : task.next_bytes};
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
      FetchShare(&table);
      if (run.kind == TokenRun::Kind::kCodes && task.key_decoder) {
        AttendSegments(task, block, rows, &w, &delta);
      } else if (run.kind == TokenRun::Kind::kCodes) {
        AttendCodes(task, block, rows, &w, &delta);
      } else {
        AttendVectors(task, block, rows, w);
      }
    }
    before += count;
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
