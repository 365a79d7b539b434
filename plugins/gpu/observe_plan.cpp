// How much attention each token gets: docs/operator.md, "Eviction". The scores of a launch once
// more, now that the sums of their softmax are known.
#include <algorithm>

#include "gpu/call_plan.h"
#include "gpu/tuning.h"

namespace minicache {
namespace {

// The new tokens [first, first + count) of a call.
class Observer {
 public:
  Observer(const GpuCall& call, int64_t first, int64_t count, std::vector<Launch>* launches)
      : c_(call), a_(call.node.a), first_(first), count_(count), launches_(launches) {}

  void Run() const {
    ObserveSum();
    if (a_.coded()) ObserveCodes();
    ObserveExact();
  }

 private:
  void ObserveSum() const;
  void ObserveCodes() const;
  void ObserveExact() const;

  const GpuCall& c_;
  const Attributes& a_;
  int64_t first_;
  int64_t count_;
  std::vector<Launch>* launches_;
};

void Observer::ObserveSum() const {
  LaunchBuilder launch("observe_sum");
  launch.Type("T", c_.model())
      .Constant("HAS_SINK", a_.has_sink)
      .Constant("BLOCK", kObserveSumBlock)
      .Pointer(c_.at(c_.layout.maximum))
      .Pointer(c_.at(c_.layout.sum))
      .Pointer(c_.data(TensorId::kHeadSink));
  AddLengths(c_, &launch);
  launch.Pointer(c_.at(c_.layout.log_sum))
      .Int(c_.shape.new_tokens)
      .Int(first_)
      .Int(count_)
      .Int(a_.heads)
      .Int(c_.layout.parts())
      .Int(a_.observes);
  launch.Finish(CeilDiv(count_ * a_.heads, kObserveSumBlock), c_.shape.batch, 1, launches_);
}

void Observer::ObserveCodes() const {
  const GpuNode& node = c_.node;
  const int64_t rows = count_ * node.heads_per_job * node.heads_per_kv();
  const bool own = a_.magnitude_count > 1, deltas = a_.has_delta();
  LaunchBuilder launch("observe_codes");
  const char* const keys[] = {"K16", "K8", "K4", "K2"};
  const char* const pair[] = {"W16", "W8", "W4", "W2"};
  for (int i = 0; i < 4; i++) launch.Constant(keys[i], node.key.word_pads[i]);
  for (int i = 0; i < 4; i++) launch.Constant(pair[i], node.delta.word_pads[i]);
  launch.Constant("HAS_SOFTCAP", a_.softcap > 0)
      .Constant("MARKS", RetainsOf(a_))
      .Constant("BLOCK_M", ObserveBlockM(rows, deltas || node.key.widths() > 1))
      .Constant("BLOCK_N", kObserveBlockN)
      .Pointer(c_.at(c_.layout.projected))
      .Pointer(c_.at(c_.layout.offset))
      .Pointer(c_.data(TensorId::kKeyCode))
      .Pointer(c_.data(TensorId::kKeyMagnitude))
      .Pointer(c_.data(TensorId::kKeyDelta))
      .Pointer(c_.data(TensorId::kKeyDeltaRatio));
  AddEvicted(c_, &launch);
  launch.Pointer(c_.entry(0))
      .Pointer(RetainsOf(a_) == kByFlag ? c_.at(c_.layout.skipped) : 0)
      .Pointer(c_.at(c_.layout.log_sum))
      .Pointer(c_.data(TensorId::kAttentionMass))
      .Int(c_.shape.new_tokens)
      .Int(first_)
      .Int(count_)
      .Int(a_.heads)
      .Int(a_.kv_heads)
      .Int(node.heads_per_job)
      .Int(node.jobs)
      .Int(a_.code_heads)
      .HintedInt(c_.shape.capacity)
      .Int(c_.shape.segments)
      .HintedInt(c_.segment_length())
      .Int(a_.sinks)
      .Int(a_.window)
      .Int(a_.magnitude_count)
      .Int(own ? a_.slot : 0)
      .Int(c_.layout.skipped_stride)
      .Int(a_.observes);
  AddFormat(node.key, &launch);
  AddFormat(node.delta, &launch);
  launch.HintedInt(node.key.stride).Float(a_.softcap).Float(a_.slot == 0 ? 1.f : -1.f);
  const int64_t tokens = std::min(c_.segment_length(), c_.shape.capacity);  // of a segment, at most
  launch.Finish(CeilDiv(tokens, kObserveBlockN), c_.shape.segments, c_.shape.batch, launches_);
}

void Observer::ObserveExact() const {
  LaunchBuilder launch("observe_exact");
  launch.Type("T", c_.model())
      .Type("E", c_.exact())
      .Constant("D", a_.head_size)
      .Constant("MODE", ModeOf(a_))
      .Constant("HAS_SOFTCAP", a_.softcap > 0)
      .Constant("RETAINS", RetainsOf(a_))
      .Constant("BLOCK_M", ObserveBlockM(count_ * c_.node.heads_per_kv(), false))
      .Constant("BLOCK_N", kObserveBlockN)
      .Pointer(c_.data(TensorId::kQuery))
      .Pointer(c_.data(TensorId::kKey))
      .Pointer(c_.data(TensorId::kExactKey))
      .Pointer(c_.data(TensorId::kRetainedKey))
      .TablePointer(c_.data(TensorId::kRetainedPosition))
      .Pointer(RetainsOf(a_) == kByFlag ? c_.at(c_.layout.active) : 0);
  AddEvicted(c_, &launch);
  launch.Pointer(c_.at(c_.layout.log_sum))
      .Pointer(c_.data(TensorId::kAttentionMass))
      .Int(c_.shape.new_tokens)
      .Int(first_)
      .Int(count_)
      .Int(a_.heads)
      .Int(a_.kv_heads)
      .Int(a_.group_size)
      .Int(a_.slot)
      .Int(c_.shape.slots)
      .Int(c_.shape.retained)
      .Int(c_.shape.capacity)
      .Int(c_.shape.segments)
      .Int(c_.segment_length())
      .Int(a_.coded() ? a_.sinks : 0)
      .Int(a_.coded() ? a_.window : 0)
      .Int(RingOf(c_))
      .Int(a_.observes)
      .Float(a_.scale)
      .Float(a_.softcap);
  const int64_t tiles = CeilDiv(c_.shape.slots, kObserveBlockN) +
                        CeilDiv(first_ + count_, kObserveBlockN) +
                        CeilDiv(c_.shape.retained, kObserveBlockN);
  launch.Finish(tiles, c_.shape.batch, 1, launches_);
}

}  // namespace

void AddObserve(const GpuCall& call, int64_t first, int64_t count, std::vector<Launch>* launches) {
  Observer(call, first, count, launches).Run();
}

}  // namespace minicache
