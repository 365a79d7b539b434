// Attention: queries meet codes and exact tokens in parts, which are then merged.
#include <algorithm>

#include "gpu/call_plan.h"
#include "gpu/tuning.h"

namespace minicache {
namespace {

// The new tokens [first, first + count) of a call.
class Chunk {
 public:
  Chunk(const GpuCall& call, int64_t first, int64_t count, std::vector<Launch>* launches)
      : c_(call), a_(call.node.a), first_(first), count_(count), launches_(launches) {}

  void Run() const {
    if (a_.coded()) {
      Project();
      AttendCodes();
    }
    AttendExact();
    Finish();
  }

 private:
  void Project() const;
  void AttendCodes() const;
  void AttendExact() const;
  void Finish() const;

  void AddTokens(LaunchBuilder* launch) const {
    launch->Int(c_.shape.new_tokens).Int(first_).Int(count_).Int(a_.heads).Int(a_.kv_heads);
  }
  ElementType TableType(TensorId id) const {
    return a_.has_decoder ? c_.type(id) : ElementType::kFloat16;
  }
  int64_t rows() const { return count_ * c_.node.heads_per_kv(); }  // of a kv head
  int64_t exact_block_m() const { return ExactBlockM(rows()); }
  const void* bias() const { return c_.data(TensorId::kAttentionBias); }
  int64_t bias_capacity() const {
    return a_.has_bias ? c_.tensors[TensorId::kAttentionBias].shape[3] : 0;
  }
  int64_t bias_batch_stride() const {
    if (!a_.has_bias) return 0;
    const Tensor& bias = c_.tensors[TensorId::kAttentionBias];
    return bias.shape[0] > 1 ? bias.shape[1] * bias.shape[2] * bias.shape[3] : 0;
  }

  const GpuCall& c_;
  const Attributes& a_;
  int64_t first_;
  int64_t count_;
  std::vector<Launch>* launches_;
};

void Chunk::Project() const {
  const GpuFormat& format = c_.node.key;
  LaunchBuilder launch("project");
  launch.Type("T", c_.model())
      .Type("U", TableType(TensorId::kKeyDecoder))
      .Constant("D", a_.head_size)
      .Constant("HAS_DECODER", a_.has_decoder)
      .Constant("INTERLEAVED", c_.node.framed() && a_.rotary_interleaved)
      .Constant("EVICTS", c_.node.framed() && a_.evicts)
      .Constant("BLOCK_M", kProjectBlockM)
      .Constant("BLOCK_R", kProjectBlockR)
      .Pointer(c_.data(TensorId::kQuery))
      .Pointer(c_.data(TensorId::kKeyDecoder))
      .Pointer(c_.data(TensorId::kRopeFrequencies));
  AddEvicted(c_, &launch);
  launch.Pointer(c_.at(c_.layout.projected)).Pointer(c_.at(c_.layout.offset));
  AddTokens(&launch);
  launch.Int(c_.layout.segments)
      .Int(c_.pairs())
      .Int(a_.sinks)
      .Int(a_.window)
      .Int(c_.segment_length());
  for (const int64_t count : format.counts) launch.Int(count);
  launch.HintedInt(format.stride).Float(a_.scale);
  launch.Finish(CeilDiv(rows(), kProjectBlockM), c_.layout.segments, c_.shape.batch * a_.kv_heads,
                launches_);
}

void Chunk::AttendCodes() const {
  const GpuNode& node = c_.node;
  const int64_t rows = count_ * node.heads_per_job * node.heads_per_kv();
  const bool own = a_.magnitude_count > 1, deltas = a_.has_delta();
  const CodeBlocks blocks = node.code_blocks(rows);
  LaunchBuilder launch(deltas ? "attend_pair" : "attend_codes");
  launch.Type("T", c_.model());
  const char* const keys[] = {"K16", "K8", "K4", "K2"};
  const char* const values[] = {"V16", "V8", "V4", "V2"};
  const char* const pair[] = {"W16", "W8", "W4", "W2"};
  for (int i = 0; i < 4; i++) launch.Constant(keys[i], node.key.word_pads[i]);
  for (int i = 0; i < 4; i++) launch.Constant(values[i], node.value.word_pads[i]);
  for (int i = 0; i < 4 && deltas; i++) launch.Constant(pair[i], node.delta.word_pads[i]);
  launch.Constant("HAS_BIAS", a_.has_bias)
      .Constant("HAS_SOFTCAP", a_.softcap > 0)
      .Constant("MARKS", RetainsOf(a_))
      .Constant("EVICTS", a_.evicts)
      .Constant("BLOCK_M", blocks.m)
      .Constant("BLOCK_N", blocks.n)
      .Pointer(c_.at(c_.layout.projected))
      .Pointer(c_.at(c_.layout.offset))
      .Pointer(c_.data(TensorId::kKeyCode))
      .Pointer(c_.data(TensorId::kValueCode))
      .Pointer(c_.data(TensorId::kKeyMagnitude))
      .Pointer(c_.data(TensorId::kValueMagnitude));
  for (const TensorId id : {TensorId::kKeyDelta, TensorId::kValueDelta, TensorId::kKeyDeltaRatio,
                            TensorId::kValueDeltaRatio}) {
    if (deltas) launch.Pointer(c_.data(id));
  }
  AddEvicted(c_, &launch);
  launch.Pointer(c_.entry(0))
      .Pointer(bias())
      .Pointer(RetainsOf(a_) == kByFlag ? c_.at(c_.layout.skipped) : 0)
      .Pointer(c_.at(c_.layout.maximum))
      .Pointer(c_.at(c_.layout.sum))
      .Pointer(c_.at(c_.layout.coded));
  AddTokens(&launch);
  launch.Int(node.heads_per_job)
      .Int(node.jobs)
      .Int(a_.code_heads)
      .HintedInt(c_.shape.capacity)
      .Int(c_.layout.splits)
      .Int(c_.layout.parts())
      .Int(c_.layout.segments)
      .HintedInt(c_.segment_length())
      .Int(a_.sinks)
      .Int(a_.window)
      .Int(a_.local_window)
      .Int(a_.magnitude_count)
      .Int(own ? a_.slot : 0)
      .Int(c_.layout.skipped_stride)
      .Long(bias_batch_stride())
      .Int(bias_capacity());
  AddFormat(node.key, &launch);
  AddFormat(node.value, &launch);
  if (deltas) AddFormat(node.delta, &launch);
  launch.HintedInt(node.key.stride).HintedInt(node.value.stride).Float(a_.softcap);
  if (deltas) launch.Float(a_.slot == 0 ? 1.f : -1.f);
  launch.Finish(CeilDiv(rows, blocks.m), c_.layout.splits / (deltas ? 2 : 1),
                c_.shape.batch * node.jobs, launches_);
}

void Chunk::AttendExact() const {
  LaunchBuilder launch("attend_exact");
  launch.Type("T", c_.model())
      .Type("E", c_.exact())
      .Constant("D", a_.head_size)
      .Constant("MODE", ModeOf(a_))
      .Constant("HAS_BIAS", a_.has_bias)
      .Constant("HAS_SOFTCAP", a_.softcap > 0)
      .Constant("RETAINS", RetainsOf(a_))
      .Constant("EVICTS", EvictsExact(a_))
      .Constant("BLOCK_M", exact_block_m())
      .Constant("BLOCK_N", kExactBlockN)
      .Pointer(c_.data(TensorId::kQuery))
      .Pointer(c_.data(TensorId::kKey))
      .Pointer(c_.data(TensorId::kValue))
      .Pointer(c_.data(TensorId::kExactKey))
      .Pointer(c_.data(TensorId::kExactValue))
      .Pointer(c_.data(TensorId::kRetainedKey))
      .Pointer(c_.data(TensorId::kRetainedValue))
      .TablePointer(c_.data(TensorId::kRetainedPosition))
      .Pointer(RetainsOf(a_) == kByFlag ? c_.at(c_.layout.active) : 0);
  AddEvicted(c_, &launch);
  launch.Pointer(bias())
      .Pointer(c_.at(c_.layout.maximum))
      .Pointer(c_.at(c_.layout.sum))
      .Pointer(c_.at(c_.layout.exact));
  AddTokens(&launch);
  launch.Int(a_.group_size)
      .Int(a_.slot)
      .Int(c_.shape.slots)
      .Int(c_.shape.retained)
      .Int(a_.coded() ? a_.sinks : 0)
      .Int(a_.coded() ? a_.window : 0)
      .Int(RingOf(c_))
      .Int(a_.local_window)
      .Int(c_.layout.splits)
      .Int(c_.layout.exact_splits)
      .Int(c_.layout.parts())
      .Long(bias_batch_stride())
      .Int(bias_capacity())
      .Float(a_.scale)
      .Float(a_.softcap);
  launch.Finish(CeilDiv(rows(), exact_block_m()), c_.layout.exact_splits,
                c_.shape.batch * a_.kv_heads, launches_);
}

void Chunk::Finish() const {
  LaunchBuilder launch("finish");
  launch.Type("T", c_.model())
      .Type("U", TableType(TensorId::kValueDecoder))
      .Constant("D", a_.head_size)
      .Constant("CODED", a_.coded())
      .Constant("HAS_DECODER", a_.has_decoder)
      .Constant("HAS_SINK", a_.has_sink)
      .Constant("BLOCK_M", kFinishBlockM)
      .Constant("BLOCK_R", kFinishBlockR)
      .Pointer(c_.at(c_.layout.maximum))
      .Pointer(c_.at(c_.layout.sum))
      .Pointer(a_.coded() ? c_.at(c_.layout.coded) : 0)
      .Pointer(c_.at(c_.layout.exact))
      .Pointer(c_.data(TensorId::kValueDecoder))
      .Pointer(c_.data(TensorId::kHeadSink))
      .Pointer(c_.data(TensorId::kPastLengths))
      .Pointer(c_.data(TensorId::kTotalLengths))
      .Pointer(c_.tensors.attention.data);
  AddTokens(&launch);
  launch.Int(c_.layout.splits)
      .Int(c_.layout.exact_splits)
      .Int(c_.layout.parts())
      .Int(c_.node.value.components)
      .HintedInt(c_.node.value.stride);
  launch.Finish(CeilDiv(rows(), kFinishBlockM), c_.shape.batch * a_.kv_heads, 1, launches_);
}

}  // namespace

void AddAttention(const GpuCall& call, std::vector<Launch>* launches) {
  if (RetainsOf(call.node.a) == kByFlag) AddActive(call, launches);
  const int64_t chunk = call.layout.chunk, all = call.shape.new_tokens;
  for (int64_t first = 0; first < all; first += chunk) {
    const int64_t count = std::min(chunk, all - first);
    Chunk(call, first, count, launches).Run();
    if (call.node.observes()) AddObserve(call, first, count, launches);
  }
}

}  // namespace minicache
