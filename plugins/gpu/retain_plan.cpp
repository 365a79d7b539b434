// Retention: which tokens attention reads in full, and what the writer keeps of them.
#include "gpu/call_plan.h"
#include "gpu/tuning.h"

namespace minicache {
namespace {

// `POLICY` of the kernels.
int64_t PolicyOf(Retention retention) {
  return retention == Retention::kThreshold ? 0 : retention == Retention::kMinmax ? 1 : 2;
}

// Decides which tokens of the call are kept, and where.
void AddRetain(const GpuCall& c, std::vector<Launch>* launches) {
  const Attributes& a = c.node.a;
  LaunchBuilder launch("retain");
  launch.Constant("POLICY", PolicyOf(a.retention))
      .Constant("ANY_HEAD", a.any_head)
      .Constant("BLOCK", kRetainBlock)
      .TablePointer(c.data(TensorId::kRetainedPosition))
      .TablePointer(c.data(TensorId::kRetainedSimilarity))
      .TablePointer(c.data(TensorId::kSimilarityRange))
      .Pointer(c.at(c.layout.cosine));
  AddLengths(c, &launch);
  launch.Pointer(c.at(c.layout.similarity))
      .Pointer(c.at(c.layout.slot))
      .Pointer(c.at(c.layout.free))
      .Pointer(c.at(c.layout.change))
      .Int(c.shape.batch)
      .Int(c.shape.new_tokens)
      .Int(a.group_size)
      .Int(a.kv_heads)
      .Int(c.shape.retained)
      .Int(a.slack())
      .Int(a.sinks)
      .Int(a.window)
      .Float(static_cast<float>(a.threshold))
      .Float(static_cast<float>(a.gamma));
  launch.Finish(c.shape.batch, 1, 1, launches);
}

// Copies the vectors of the tokens that arrive.
void AddRetainStore(const GpuCall& c, int64_t first_layer, std::vector<Launch>* launches) {
  const Attributes& a = c.node.a;
  LaunchBuilder launch("retain_store");
  launch.Type("T", c.model())
      .Type("E", c.exact())
      .Constant("D", a.head_size)
      .Constant("BLOCK_T", kRetainStoreBlockT);
  AddLayers(c, first_layer, &launch);
  launch.Pointer(c.data(TensorId::kExactKey))
      .Pointer(c.data(TensorId::kExactValue))
      .Pointer(c.data(TensorId::kRetainedKey))
      .Pointer(c.data(TensorId::kRetainedValue))
      .Pointer(c.at(c.layout.slot));
  AddLengths(c, &launch);
  launch.Int(c.shape.new_tokens)
      .Int(a.group_size)
      .Int(first_layer)
      .Int(a.kv_heads)
      .Int(c.shape.slots)
      .Int(c.shape.retained)
      .Int(a.sinks)
      .Int(a.window)
      .Int(a.ring_slots);
  launch.Finish(CeilDiv(c.shape.new_tokens, kRetainStoreBlockT),
                LayersFrom(c, first_layer) * a.kv_heads, 2 * c.shape.batch, launches);
}

// Marks the codes that are skipped from now on.
void AddMark(const GpuCall& c, std::vector<Launch>* launches) {
  const Attributes& a = c.node.a;
  LaunchBuilder launch("mark");
  launch.Constant("EVICTS", a.evicts)
      .Constant("BLOCK_T", kMarkBlockT)
      .Pointer(c.data(TensorId::kKeyMagnitude))
      .Pointer(c.data(TensorId::kValueMagnitude))
      .Pointer(c.at(c.layout.change));
  AddEvicted(c, &launch);
  launch.Int(c.shape.new_tokens)
      .Int(a.kv_heads)
      .HintedInt(c.shape.capacity)
      .Int(c.shape.retained)
      .Int(a.magnitude_count)
      .Int(a.sinks)
      .Int(c.layout.segments)
      .Int(c.segment_length());
  launch.Finish(CeilDiv(c.shape.retained + c.shape.new_tokens, kMarkBlockT), a.kv_heads,
                2 * c.shape.batch, launches);
}

}  // namespace

void AddActive(const GpuCall& c, std::vector<Launch>* launches) {
  const Attributes& a = c.node.a;
  LaunchBuilder launch("active");
  launch.Constant("EVICTS", a.evicts)
      .Constant("BLOCK", kRetainBlock)
      .TablePointer(c.data(TensorId::kRetainedPosition))
      .TablePointer(c.data(TensorId::kRetainedSimilarity))
      .Pointer(c.data(TensorId::kKeyMagnitude));
  AddEvicted(c, &launch);
  launch.Pointer(c.at(c.layout.active))
      .Pointer(c.at(c.layout.skipped))
      .Int(a.kv_heads)
      .Int(c.shape.retained)
      .Int(a.slack())
      .HintedInt(c.shape.capacity)
      .Int(a.magnitude_count)
      .Int(a.sinks)
      .Int(a.window)
      .Int(c.layout.segments)
      .Int(c.segment_length());
  launch.Finish(c.shape.batch, 1, 1, launches);
}

void AddRetention(const GpuCall& c, std::vector<Launch>* launches) {
  AddRetain(c, launches);
  for (int64_t g = 0; g < c.node.a.group_size && c.shape.retained > 0; g += kLayersPerLaunch) {
    AddRetainStore(c, g, launches);
  }
  AddMark(c, launches);
}

}  // namespace minicache
