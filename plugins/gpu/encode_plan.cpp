// The writer's launches: encode the tokens that leave the window, then store the new ones.
#include <algorithm>

#include "gpu/call_plan.h"
#include "gpu/tuning.h"

namespace minicache {
namespace {

class Writer {
 public:
  Writer(const GpuCall& call, std::vector<Launch>* launches)
      : c_(call),
        a_(call.node.a),
        product_(ProductBlocksOf(call.shape.new_tokens)),
        launches_(launches) {}

  void Run() const {
    if (a_.coded()) {
      for (int64_t g = 0; g < a_.group_size; g += kLayersPerLaunch) Gather(g);
      for (const bool values : {false, true}) Encode(values);
      if (a_.retains()) AddRetention(c_, launches_);
    }
    for (int64_t g = 0; g < a_.group_size; g += kLayersPerLaunch) Store(g);
  }

 private:
  void Gather(int64_t first_layer) const;
  void Encode(bool values) const {
    if (a_.subspace()) {
      ProjectJoint(values);
      QuantiseJoint(values);
    } else {
      if (a_.aligned()) Align(values);
      EncodeDirections(values);
      if (a_.has_delta()) EncodePair(values);
    }
  }
  void AddProduct(LaunchBuilder* launch) const;
  void ProjectJoint(bool values) const;
  void QuantiseJoint(bool values) const;
  void Align(bool values) const;
  void EncodeDirections(bool values) const;
  void EncodePair(bool values) const;
  void Store(int64_t first_layer) const;

  uint64_t gathered(bool values) const {
    const int64_t vectors = c_.shape.batch * tokens() * a_.group_size * a_.kv_heads;
    return c_.at(c_.layout.gathered + (values ? 4 * vectors * a_.head_size : 0));
  }
  const GpuFormat& format(bool values) const { return values ? c_.node.value : c_.node.key; }
  const void* code(bool values) const {
    return c_.data(values ? TensorId::kValueCode : TensorId::kKeyCode);
  }
  const void* magnitude(bool values) const {
    return c_.data(values ? TensorId::kValueMagnitude : TensorId::kKeyMagnitude);
  }
  static TensorId encoder(bool values) {
    return values ? TensorId::kValueEncoder : TensorId::kKeyEncoder;
  }
  int64_t tokens() const { return c_.shape.new_tokens; }
  // What kernels that write codes find the slots of positions by, beside the table.
  void AddSlots(LaunchBuilder* launch) const {
    launch->HintedInt(c_.shape.capacity).Int(a_.sinks).Int(a_.window);
    launch->Int(c_.layout.segments).Int(c_.segment_length());
  }

  const GpuCall& c_;
  const Attributes& a_;
  const ProductBlocks product_;
  std::vector<Launch>* launches_;
};

void Writer::Gather(int64_t first_layer) const {
  LaunchBuilder launch("gather");
  launch.Type("T", c_.model())
      .Type("E", c_.exact())
      .Constant("D", a_.head_size)
      .Constant("INTERLEAVED", c_.node.framed() && a_.rotary_interleaved)
      .Constant("FRAMED", c_.node.framed())
      .Constant("BLOCK_T", kGatherBlockT);
  AddLayers(c_, first_layer, &launch);
  launch.Pointer(c_.data(TensorId::kExactKey))
      .Pointer(c_.data(TensorId::kExactValue))
      .Pointer(c_.data(TensorId::kRopeFrequencies))
      .Pointer(c_.entry(c_.node.permutations()));
  AddLengths(c_, &launch);
  launch.Pointer(c_.at(c_.layout.gathered))
      .Int(c_.shape.batch)
      .Int(tokens())
      .Int(a_.group_size)
      .Int(first_layer)
      .Int(a_.kv_heads)
      .Int(c_.shape.slots)
      .Int(a_.sinks)
      .Int(a_.window)
      .Int(a_.ring_slots)
      .Int(c_.segment_length())
      .Int(c_.pairs());
  launch.Finish(CeilDiv(tokens(), kGatherBlockT), LayersFrom(c_, first_layer) * a_.kv_heads,
                2 * c_.shape.batch, launches_);
}

// How a product with an encoder is cut.
void Writer::AddProduct(LaunchBuilder* launch) const {
  launch->Constant("DOT", product_.dot)
      .Constant("BLOCK_T", product_.t)
      .Constant("BLOCK_R", product_.r)
      .Constant("BLOCK_K", product_.k);
}

void Writer::ProjectJoint(bool values) const {
  const GpuFormat& f = format(values);
  LaunchBuilder launch("project_joint");
  launch.Type("U", c_.type(encoder(values))).Constant("D", a_.head_size);
  AddProduct(&launch);
  launch.Pointer(gathered(values)).Pointer(c_.data(encoder(values)));
  AddLengths(c_, &launch);
  launch.Pointer(c_.at(c_.layout.joint))
      .Int(tokens())
      .Int(a_.group_size)
      .Int(a_.kv_heads)
      .Int(a_.code_heads)
      .Int(f.components)
      .HintedInt(f.stride)
      .Int(a_.sinks)
      .Int(a_.window);
  launch.Finish(CeilDiv(tokens(), product_.t), CeilDiv(f.components, product_.r),
                c_.shape.batch * a_.code_heads, launches_);
}

void Writer::QuantiseJoint(bool values) const {
  const GpuFormat& f = format(values);
  LaunchBuilder launch("quantise_joint");
  launch.Constant("P8", f.pads[1])
      .Constant("P4", f.pads[2])
      .Constant("P2", f.pads[3])
      .Constant("EVICTS", a_.evicts)
      .Pointer(c_.at(c_.layout.joint))
      .Pointer(c_.data(values ? TensorId::kValueStep : TensorId::kKeyStep))
      .Pointer(code(values))
      .Pointer(magnitude(values));
  AddEvicted(c_, &launch);
  launch.Int(tokens()).Int(a_.code_heads);
  AddSlots(&launch);
  for (int i = 1; i < 4; i++) launch.Int(f.counts[i]);
  for (int i = 2; i < 4; i++) launch.Int(f.starts[i]);  // the first segment starts at 0
  launch.Int(f.bytes).HintedInt(f.stride);
  launch.Finish(tokens(), a_.code_heads, c_.shape.batch, launches_);
}

void Writer::Align(bool values) const {
  LaunchBuilder launch("align");
  launch.Type("U", c_.type(encoder(values))).Constant("D", a_.head_size);
  AddProduct(&launch);
  launch.Pointer(gathered(values)).Pointer(c_.data(encoder(values)));
  AddLengths(c_, &launch);
  launch.Pointer(c_.at(c_.layout.aligned))
      .Int(tokens())
      .Int(a_.group_size)
      .Int(a_.kv_heads)
      .Int(a_.sinks)
      .Int(a_.window);
  launch.Finish(CeilDiv(tokens(), product_.t), CeilDiv(a_.head_size, product_.r),
                c_.shape.batch * a_.group_size * a_.kv_heads, launches_);
}

void Writer::EncodeDirections(bool values) const {
  const GpuFormat& f = format(values);
  const auto cosines = static_cast<uint64_t>(CosineBytes(c_.node, c_.shape));
  LaunchBuilder launch("encode");
  launch.Constant("D", a_.head_size)
      .Constant("BITS", (values ? a_.value_format : a_.key_format).segments[0].bits)
      .Constant("MAGNITUDE", static_cast<int64_t>(a_.magnitude_rule))
      .Constant("ALIGNED", a_.aligned())
      .Constant("EVICTS", a_.evicts)
      .Constant("BLOCK_T", kEncodeBlockT)
      .Pointer(gathered(values))
      .Pointer(a_.aligned() ? c_.at(c_.layout.aligned) : gathered(values))
      .Pointer(code(values))
      .Pointer(magnitude(values))
      .Pointer(c_.at(c_.layout.cosine) + (values ? cosines / 2 : 0));
  AddEvicted(c_, &launch);
  launch.Int(c_.shape.batch).Int(tokens()).Int(a_.group_size).Int(a_.kv_heads);
  AddSlots(&launch);
  launch.Int(a_.magnitude_count).Int(f.bytes).Float(a_.slerp_t);
  launch.Finish(CeilDiv(tokens(), kEncodeBlockT), a_.kv_heads, c_.shape.batch, launches_);
}

void Writer::EncodePair(bool values) const {
  LaunchBuilder launch("encode_pair");
  launch.Constant("D", a_.head_size)
      .Constant("BITS", a_.delta_format.segments[0].bits)
      .Constant("CODE_BITS", (values ? a_.value_format : a_.key_format).segments[0].bits)
      .Constant("MAGNITUDE", static_cast<int64_t>(a_.magnitude_rule))
      .Constant("ALIGNED", a_.aligned())
      .Constant("EVICTS", a_.evicts)
      .Constant("BLOCK_T", kEncodeBlockT)
      .Pointer(gathered(values))
      .Pointer(a_.aligned() ? c_.at(c_.layout.aligned) : gathered(values))
      .Pointer(c_.data(values ? TensorId::kValueDelta : TensorId::kKeyDelta))
      .Pointer(c_.data(values ? TensorId::kValueDeltaRatio : TensorId::kKeyDeltaRatio))
      .Pointer(magnitude(values));
  AddEvicted(c_, &launch);
  launch.Int(tokens()).Int(a_.kv_heads);
  AddSlots(&launch);
  launch.Int(a_.magnitude_count).Int(c_.node.delta.bytes);
  launch.Finish(CeilDiv(tokens(), kEncodeBlockT), a_.kv_heads, c_.shape.batch, launches_);
}

void Writer::Store(int64_t first_layer) const {
  LaunchBuilder launch("store");
  launch.Type("T", c_.model())
      .Type("E", c_.exact())
      .Constant("D", a_.head_size)
      .Constant("MODE", ModeOf(a_))
      .Constant("EVICTS", EvictsExact(a_))
      .Constant("BLOCK_T", kStoreBlockT);
  AddLayers(c_, first_layer, &launch);
  launch.Pointer(c_.data(TensorId::kExactKey)).Pointer(c_.data(TensorId::kExactValue));
  AddEvicted(c_, &launch);
  launch.Int(tokens())
      .Int(a_.group_size)
      .Int(first_layer)
      .Int(a_.kv_heads)
      .Int(c_.shape.slots)
      .Int(a_.coded() ? a_.sinks : 0)
      .Int(RingOf(c_))
      .Int(c_.shape.capacity);
  launch.Finish(CeilDiv(tokens(), kStoreBlockT), LayersFrom(c_, first_layer) * a_.kv_heads,
                2 * c_.shape.batch, launches_);
}

}  // namespace

void AddWrites(const GpuCall& call, std::vector<Launch>* launches) { Writer(call, launches).Run(); }

}  // namespace minicache
