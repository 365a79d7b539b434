// Splits the attention of a call into tasks: one kv head, a block of new tokens, and, where these
// are too few to keep the threads busy (decode), a part of the cached tokens.
#include <cstring>
#include <utility>

#include "cpu/attend_task.h"
#include "cpu/token_runs.h"

namespace minicache {
namespace {

// (New token, query head) pairs of a task, which share a block of keys.
constexpr int64_t kLeastRows = 64, kMostRows = 256;
constexpr int64_t kEnoughTasks = 64;  // no further splits beyond
// Nor beyond this per core: each part rounds its queries anew and has sums to merge.
constexpr int64_t kTasksPerCore = 4;
constexpr int64_t kLeastBlocks = 4;  // of 64 tokens per part
// Floats of a group's queries in all segments; with more, each task makes those that it meets.
constexpr int64_t kMostProjected = 1 << 20;

// The new tokens [begin, begin + count) of one kv head, attended in `parts`.
struct Group {
  int64_t row;
  int64_t head;
  int64_t begin;
  int64_t count;
  int64_t blocks;
  int64_t parts;
  float* memory;     // of the parts; nullptr: a single part in the worker's own scratch
  float* projected;  // decoded queries of every segment; nullptr: made by the task
};

class Attention {
 public:
  explicit Attention(const Call& call)
      : call_(call), a_(call.attributes), widths_(a_.widths()), runs_(call) {
    ClearPadding();
    MakeGroups();
  }

  void Run() {
    const int64_t count = static_cast<int64_t>(tasks_.size());
    if (count == 0) return;
    ProjectQueries();
    const int64_t rows = most_rows_, finish = call_.kernels.finish_scratch(rows, widths_);
    const int64_t own = call_.kernels.attend_scratch(rows, widths_);
    const int64_t each = own + rows * (widths_.output + 2) + finish;
    const int64_t workers = WorkerCount(count);
    float* scratch = call_.Floats(workers * each);
    ForEach(call_.host, count, workers, [&](int64_t i, int64_t worker) {
      const Group& group = groups_[tasks_[i].first];
      float* mine = scratch + worker * each;
      float* memory = group.memory ? group.memory : mine + own;
      const int64_t next = i + workers;  // what this worker takes next, more or less
      RunPart(group, tasks_[i].second, next < count ? &groups_[tasks_[next].first] : nullptr,
              memory, mine);
      if (group.parts == 1) Finish(group, memory, mine + each - finish);
    });
    if (groups_[0].parts == 1 && count == static_cast<int64_t>(groups_.size())) return;
    // Merging is little work, but for the map of codes to vectors.
    const int64_t groups = static_cast<int64_t>(groups_.size());
    const int64_t mergers = a_.has_decoder ? std::min(workers, groups) : 1;
    ForEach(call_.host, groups, mergers, [&](int64_t i, int64_t worker) {
      const Group& group = groups_[i];
      if (group.parts > 1) Finish(group, group.memory, scratch + worker * each);
    });
  }

 private:
  void ClearPadding() const {
    const int64_t width = a_.heads * a_.head_size * ElementSize(call_.model_dtype);
    for (int64_t row = 0; row < call_.shape.batch; row++) {
      const int64_t fresh = call_.spans[row].fresh;
      char* first = call_.tensors.attention.data + (row * call_.shape.new_tokens + fresh) * width;
      std::memset(first, 0, static_cast<size_t>((call_.shape.new_tokens - fresh) * width));
    }
  }

  int64_t TokensPerTask() const {
    const int64_t all = call_.shape.batch * call_.shape.new_tokens * a_.heads;
    const int64_t rows = std::clamp(all / kEnoughTasks, kLeastRows, kMostRows);
    return std::max<int64_t>(1, rows / (a_.heads / a_.kv_heads));
  }

  void MakeGroups() {
    const int64_t per_kv = a_.heads / a_.kv_heads, tokens = TokensPerTask();
    for (int64_t row = 0; row < call_.shape.batch; row++) {
      const int64_t fresh = call_.spans[row].fresh, steps = (fresh + tokens - 1) / tokens;
      for (int64_t step = steps - 1; step >= 0; step--) {  // the longest ones first
        const int64_t begin = step * tokens, count = std::min(tokens, fresh - begin);
        most_rows_ = std::max(most_rows_, count * per_kv);
        for (int64_t head = 0; head < a_.kv_heads; head++) {
          Group group = {row, head, begin, count, 0, 1, nullptr, nullptr};
          group.blocks = runs_.Make(row, head, begin + count).BlockCount();
          groups_.push_back(group);
        }
      }
    }
    const int64_t count = static_cast<int64_t>(groups_.size());
    const int64_t enough = std::min(kEnoughTasks, kTasksPerCore * WorkerCount(INT64_MAX));
    for (int64_t i = 0; i < count; i++) {
      Group& group = groups_[i];
      group.parts =
          std::clamp<int64_t>(group.blocks / kLeastBlocks, 1, std::max<int64_t>(1, enough / count));
      const int64_t rows = group.count * per_kv;
      if (group.parts > 1) group.memory = call_.Floats(group.parts * rows * (widths_.output + 2));
    }
    // The heads of one row and step follow each other: they may read the same codes.
    for (int64_t i = 0; i < count; i += a_.kv_heads) {
      for (int64_t part = 0; part < groups_[i].parts; part++) {
        for (int64_t head = 0; head < a_.kv_heads; head++) tasks_.emplace_back(i + head, part);
      }
    }
  }

  void ProjectQueries();
  AttendTask MakeTask(const Group& group, float* scratch) const;
  void RunPart(const Group& group, int64_t part, const Group* next, float* memory,
               float* scratch) const;
  void Finish(const Group& group, const float* memory, float* scratch) const;

  const Call& call_;
  const Attributes& a_;
  const Widths widths_;
  const TokenRunMaker runs_;
  std::vector<Group> groups_;
  std::vector<std::pair<int64_t, int64_t>> tasks_;  // (group, part)
  int64_t most_rows_ = 1;
};

// Parts of a group meet the same segments, so these groups' queries are made for all of them first.
void Attention::ProjectQueries() {
  if (!a_.has_decoder) return;
  std::vector<std::pair<int64_t, int64_t>> items;  // (group, segment)
  for (size_t i = 0; i < groups_.size(); i++) {
    Group& group = groups_[i];
    const int64_t end = call_.spans[group.row].coded_end;
    const int64_t rows = group.count * (a_.heads / a_.kv_heads);
    if (group.parts == 1 || end <= a_.sinks) continue;
    const int64_t first = call_.rotation.SegmentOf(a_.sinks);
    const int64_t count = call_.rotation.SegmentOf(end - 1) + 1 - first;
    if (count * rows * widths_.key > kMostProjected) continue;
    group.projected = call_.Floats(count * rows * widths_.key);
    const SlotMap& map = call_.maps[static_cast<size_t>(group.row)];
    for (int64_t s = first; s < first + count; s++) {
      if (!map.evicted || map.Start(s) < map.Start(s + 1)) items.emplace_back(i, s);
    }
  }
  if (items.empty()) return;
  const int64_t count = static_cast<int64_t>(items.size()), workers = WorkerCount(count);
  const int64_t own = call_.kernels.attend_scratch(most_rows_, widths_);
  float* scratch = call_.Floats(workers * own);
  ForEach(call_.host, count, workers, [&](int64_t i, int64_t worker) {
    const Group& group = groups_[items[i].first];
    const AttendTask task = MakeTask(group, scratch + worker * own);
    const int64_t at = items[i].second - task.first_segment;
    call_.kernels.project(task, items[i].second,
                          group.projected + at * task.new_count * task.heads * widths_.key);
  });
}

AttendTask Attention::MakeTask(const Group& group, float* scratch) const {
  AttendTask task = MakeAttendTask(call_, group.row, group.head, group.begin, group.count);
  task.projected = group.projected;
  task.scratch = scratch;
  return task;
}

void Attention::RunPart(const Group& group, int64_t part, const Group* next, float* memory,
                        float* scratch) const {
  const TokenRuns runs = runs_.Make(group.row, group.head, group.begin + group.count);
  const int64_t rows = group.count * (a_.heads / a_.kv_heads);
  AttendTask task = MakeTask(group, scratch);
  task.runs = runs.list;
  task.run_count = runs.count;
  task.block_begin = group.blocks * part / group.parts;
  task.block_end = group.blocks * (part + 1) / group.parts;
  task.maximum = memory + part * rows;
  task.sum = memory + (group.parts + part) * rows;
  task.output = memory + 2 * group.parts * rows + part * rows * widths_.output;
  if (a_.has_decoder && next && !next->projected) {
    const Tensor& decoder = call_.tensor(TensorId::kKeyDecoder);
    task.next_table = TableOf(decoder, next->head);
    task.next_bytes = decoder.shape[1] * decoder.shape[2] * ElementSize(RealType(decoder.type));
  }
  call_.kernels.attend(task);
}

void Attention::Finish(const Group& group, const float* memory, float* scratch) const {
  const int64_t bytes = ElementSize(call_.model_dtype), per_kv = a_.heads / a_.kv_heads;
  const int64_t width = a_.heads * a_.head_size, rows = group.count * per_kv;
  FinishTask task = {};
  task.rows = static_cast<int32_t>(rows);
  task.heads = static_cast<int32_t>(per_kv);
  task.head_size = static_cast<int32_t>(a_.head_size);
  task.widths = widths_;
  task.part_count = static_cast<int32_t>(group.parts);
  task.maximum = memory;
  task.sum = memory + group.parts * rows;
  task.parts = memory + 2 * group.parts * rows;
  if (a_.has_sink) {
    task.sink = call_.tensor(TensorId::kHeadSink).data + group.head * per_kv * bytes;
  }
  // Without a code to read its sums are zeros.
  if (a_.has_decoder && call_.spans[group.row].coded_end > a_.sinks) {
    const Tensor& decoder = call_.tensor(TensorId::kValueDecoder);
    task.value_decoder = TableOf(decoder, group.head);
    task.value_decoder_dtype = RealType(decoder.type);
    task.components = a_.value_format.components;
  }
  task.dtype = call_.model_dtype;
  task.scratch = scratch;
  task.output =
      call_.tensors.attention.data + ((group.row * call_.shape.new_tokens + group.begin) * width +
                                      group.head * per_kv * a_.head_size) *
                                         bytes;
  task.output_stride = width;
  call_.kernels.finish(task);
}

}  // namespace

void AttendCall(const Call& call) { Attention(call).Run(); }

}  // namespace minicache
