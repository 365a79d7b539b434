// Adds up what a call's observed queries attended to: docs/operator.md, "Eviction". Tasks are kv
// heads and blocks of new tokens; each has a sum of its own, so that threads change no result.
#include "cpu/attend_task.h"
#include "cpu/token_runs.h"

namespace minicache {
namespace {

constexpr int64_t kRowsPerTask = 64;  // (new token, query head) pairs

struct Part {
  int64_t row;
  int64_t head;
  int64_t begin;  // new tokens [begin, begin + count)
  int64_t count;
  TokenRuns runs;
  int64_t stride;
  float* gained;  // [stride]
};

int64_t Tokens(const TokenRuns& runs) {
  int64_t count = 0;
  for (int32_t i = 0; i < runs.count; i++) count += runs.list[i].end - runs.list[i].begin;
  return count;
}

// The slot at which the mass of a token of a run is kept.
int64_t MassSlot(const Call& call, int64_t row, const TokenRun& run, int64_t token) {
  const bool cached = run.first_position < call.spans[static_cast<size_t>(row)].past;
  if (run.kind == TokenRun::Kind::kCodes || (!call.attributes.coded() && cached)) return token;
  return call.SlotOf(row, run.positions ? run.positions[token] : run.first_position + token);
}

void AddPart(const Call& call, const Part& part, float* mass) {
  const float* gained = part.gained;
  for (int32_t i = 0; i < part.runs.count; i++) {
    const TokenRun& run = part.runs.list[i];
    for (int64_t t = run.begin; t < run.end; t++) {
      mass[MassSlot(call, part.row, run, t)] += *gained++;
    }
  }
}

std::vector<Part> MakeParts(const Call& call) {
  const Attributes& a = call.attributes;
  const TokenRunMaker runs(call);
  const int64_t tokens = std::max<int64_t>(1, kRowsPerTask / (a.heads / a.kv_heads));
  std::vector<Part> parts;
  for (int64_t row = 0; row < call.shape.batch; row++) {
    const int64_t fresh = call.spans[static_cast<size_t>(row)].fresh;
    const int64_t observed = a.observes < 0 ? fresh : std::min(a.observes, fresh);
    for (int64_t begin = fresh - observed; begin < fresh; begin += tokens) {
      const int64_t count = std::min(tokens, fresh - begin);
      for (int64_t head = 0; head < a.kv_heads; head++) {
        Part part = {row, head, begin, count, runs.Make(row, head, begin + count), 0, nullptr};
        part.stride = (Tokens(part.runs) + 15) / 16 * 16;
        part.gained = call.Floats(part.stride);
        parts.push_back(part);
      }
    }
  }
  return parts;
}

}  // namespace

void ObserveCall(const Call& call) {
  const Attributes& a = call.attributes;
  const std::vector<Part> parts = MakeParts(call);
  const int64_t per_kv = a.heads / a.kv_heads, count = static_cast<int64_t>(parts.size());
  int64_t most_rows = 1, most_scores = 1;
  for (const Part& part : parts) {
    most_rows = std::max(most_rows, part.count * per_kv);
    most_scores = std::max(most_scores, part.count * per_kv * part.stride);
  }
  const Widths widths = a.widths();
  const int64_t attend = call.kernels.attend_scratch(most_rows, widths);
  const int64_t own = call.kernels.observe_scratch(most_rows, widths);
  const int64_t workers = WorkerCount(count), each = attend + own + most_scores;
  float* scratch = call.Floats(workers * each);
  ForEach(call.host, count, workers, [&](int64_t i, int64_t worker) {
    const Part& part = parts[static_cast<size_t>(i)];
    float* mine = scratch + worker * each;
    AttendTask task = MakeAttendTask(call, part.row, part.head, part.begin, part.count);
    task.runs = part.runs.list;
    task.run_count = part.runs.count;
    task.scratch = mine;
    ObserveTask observe = {};
    observe.attend = &task;
    if (a.has_sink) {
      observe.sink = call.tensor(TensorId::kHeadSink).data +
                     part.head * per_kv * ElementSize(call.model_dtype);
    }
    observe.share = 1.f / static_cast<float>(a.heads);
    observe.scores = mine + attend + own;
    observe.stride = part.stride;
    observe.gained = part.gained;
    observe.scratch = mine + attend;
    call.kernels.observe(observe);
  });
  auto* mass = reinterpret_cast<float*>(call.tensor(TensorId::kAttentionMass).data);
  for (int64_t row = 0; row < call.shape.batch; row++) {
    const Span& span = call.spans[static_cast<size_t>(row)];
    for (int64_t p = span.past; p < span.total; p++) {
      mass[row * call.shape.capacity + call.SlotOf(row, p)] = 0.f;
    }
  }
  for (const Part& part : parts) AddPart(call, part, mass + part.row * call.shape.capacity);
}

}  // namespace minicache
