// The writer's part of a `subspace` call: tasks of 16 tokens of one code head's keys or values. A
// decode step has a token or none, so the encoder's rows are split among the threads instead.
#include "cpu/call.h"

namespace minicache {
namespace {

constexpr int64_t kTokensPerTask = 16;
constexpr int64_t kRowsPerSplit = 16;  // of the encoder, at least, and a multiple of it
constexpr int64_t kSplitsPerWorker = 2;

class SubspaceEncoder {
 public:
  explicit SubspaceEncoder(const Call& call) : call_(call), a_(call.attributes) {
    layers_.resize(static_cast<size_t>(2 * call.shape.batch));
    for (int64_t row = 0; row < call.shape.batch; row++) {
      for (const bool values : {false, true}) {
        auto* layers = &layers_[static_cast<size_t>(2 * row + values)];
        sources_.push_back(MakeEncodeTask(call, values, row, layers));
      }
      AddPieces(row);
    }
  }

  void Run() const {
    const auto count = static_cast<int64_t>(pieces_.size());
    if (count == 0) return;
    const int64_t wanted = WorkerCount(INT64_MAX) * kSplitsPerWorker;
    const int64_t components = std::max(a_.key_format.components, a_.value_format.components);
    const int64_t splits = std::clamp<int64_t>(wanted / count, 1, components / kRowsPerSplit + 1);
    const int64_t workers = WorkerCount(count * splits), own = ScratchFloats();
    const int64_t projected = kTokensPerTask * components;
    float* scratch = call_.Floats(workers * (own + projected));
    float* shared = splits > 1 ? call_.Floats(count * projected) : nullptr;
    ForEach(call_.host, count * splits, workers, [&](int64_t i, int64_t worker) {
      float* mine = scratch + worker * (own + projected);
      float* y = shared ? shared + i / splits * projected : mine + own;
      EncodeTask source;
      const JointTask task =
          MakeTask(pieces_[static_cast<size_t>(i / splits)], i % splits, splits, mine, y, &source);
      if (task.component_begin < task.component_end) call_.kernels.project_joint(task);
      if (splits == 1) call_.kernels.quantise_joint(task);
    });
    if (splits == 1) return;
    ForEach(call_.host, count, WorkerCount(count), [&](int64_t i, int64_t worker) {
      EncodeTask source;
      float* mine = scratch + worker * (own + projected);
      call_.kernels.quantise_joint(
          MakeTask(pieces_[static_cast<size_t>(i)], 0, 1, mine, shared + i * projected, &source));
    });
  }

 private:
  struct Piece {
    int64_t source;  // 2 * row + values
    int64_t code_head;
    int64_t begin;
    int64_t end;
  };

  int64_t JointSize() const { return a_.group_size * (a_.kv_heads / a_.code_heads) * a_.head_size; }

  int64_t ScratchFloats() const {
    const int64_t bytes = std::max(a_.key_format.bytes, a_.value_format.bytes);
    return std::max(call_.kernels.joint_scratch(kTokensPerTask, JointSize()), bytes / 4 + 1);
  }

  // Pieces end at multiples of 16 tokens: no two threads write into one cache line of a tile.
  void AddPieces(int64_t row) {
    const Span& span = call_.spans[static_cast<size_t>(row)];
    for (int64_t begin = span.encode_begin; begin < span.encode_end;) {
      const int64_t next = begin / kTokensPerTask * kTokensPerTask + kTokensPerTask;
      const int64_t end = std::min(next, span.encode_end);
      for (int64_t head = 0; head < a_.code_heads; head++) {
        pieces_.push_back({2 * row, head, begin, end});
        pieces_.push_back({2 * row + 1, head, begin, end});
      }
      begin = end;
    }
  }

  JointTask MakeTask(const Piece& piece, int64_t split, int64_t splits, float* scratch,
                     float* projected, EncodeTask* source) const {
    *source = sources_[static_cast<size_t>(piece.source)];
    source->begin = piece.begin;
    source->end = piece.end;
    const bool values = source->values;
    const int64_t components = source->format->components;
    const Tensor& encoder = call_.tensor(values ? TensorId::kValueEncoder : TensorId::kKeyEncoder);
    const Tensor& step = call_.tensor(values ? TensorId::kValueStep : TensorId::kKeyStep);
    JointTask task = {};
    task.tokens = source;
    task.code_head = static_cast<int32_t>(piece.code_head);
    task.slots_per_code = static_cast<int32_t>(a_.kv_heads / a_.code_heads);
    task.rotation = values ? nullptr : &call_.rotation;
    task.encoder_dtype = RealType(encoder.type);
    task.encoder =
        encoder.data + piece.code_head * components * JointSize() * ElementSize(task.encoder_dtype);
    task.step = reinterpret_cast<const float*>(step.data) + piece.code_head * components;
    const auto border = [&](int64_t i) {
      const int64_t at = components * i / splits;
      return static_cast<int32_t>(i == splits ? components : at / kRowsPerSplit * kRowsPerSplit);
    };
    task.component_begin = border(split);
    task.component_end = border(split + 1);
    task.joint = scratch;
    task.projected = projected;
    return task;
  }

  const Call& call_;
  const Attributes& a_;
  std::vector<std::vector<LayerVectors>> layers_;  // [2 B]
  std::vector<EncodeTask> sources_;                // [2 B], keys and values of a row
  std::vector<Piece> pieces_;
};

}  // namespace

void EncodeSubspaceCall(const Call& call) { SubspaceEncoder(call).Run(); }

}  // namespace minicache
