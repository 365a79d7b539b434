// The parts of the plugin that a network is built with.
#include "trt/plugin.h"

#include <stdexcept>
#include <utility>

#include "minicache/contract.h"
#include "trt/log.h"
#include "trt/tensors.h"

namespace minicache::trt {
namespace {

using nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::DynamicPluginTensorDesc;

enum class Bound { kMin, kOpt, kMax };

// The inputs as large as a profile lets them be.
Tensors TensorsAt(const Node& node, const DynamicPluginTensorDesc* inputs, Bound bound) {
  Tensors tensors = node.Empty();
  for (size_t i = 0; i < node.slots().size(); i++) {
    const DynamicPluginTensorDesc& input = inputs[i];
    const Dims& dims = bound == Bound::kMin   ? input.min
                       : bound == Bound::kMax ? input.max
                                              : input.opt;
    tensors.at(node.slots()[i]) = TensorOf(input.desc.type, dims, nullptr);
  }
  return tensors;
}

// The types of the first inputs, or of all.
template <class TypeAt>
Tensors TypesOf(const Node& node, size_t count, const TypeAt& type) {
  Tensors tensors = node.Empty();
  for (size_t i = 0; i < count; i++) tensors.at(node.slots()[i]).type = TypeOf(type(i));
  return tensors;
}

// What is wrong with the type of an input, given those before it.
std::string WrongType(const Node& node, const Slot& slot, const Tensors& tensors) {
  const std::string wrong = CheckType(node.attributes(), slot, tensors);
  return wrong.empty() ? GpuPlan::CheckType(slot.id, tensors) : wrong;
}

}  // namespace

MiniCacheAttentionPlugin::MiniCacheAttentionPlugin(Parts parts) : parts_(std::move(parts)) {}

nvinfer1::IPluginCapability* MiniCacheAttentionPlugin::getCapabilityInterface(
    nvinfer1::PluginCapabilityType type) noexcept {
  switch (type) {
    case nvinfer1::PluginCapabilityType::kCORE:
      return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD:
      return static_cast<nvinfer1::IPluginV3OneBuildV2*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME:
      return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

MiniCacheAttentionPlugin* MiniCacheAttentionPlugin::clone() noexcept {
  return Guard<MiniCacheAttentionPlugin*>(parts_.node->name(), nullptr,
                                          [&] { return new MiniCacheAttentionPlugin(parts_); });
}

const char* MiniCacheAttentionPlugin::getPluginName() const noexcept { return kOpName; }

const char* MiniCacheAttentionPlugin::getPluginVersion() const noexcept { return kOpVersion; }

const char* MiniCacheAttentionPlugin::getPluginNamespace() const noexcept { return kDomain; }

int32_t MiniCacheAttentionPlugin::getNbOutputs() const noexcept {
  return static_cast<int32_t>(parts_.node->outputs());
}

// TensorRT asks for the types before it tries formats: the place to say what is wrong with them.
int32_t MiniCacheAttentionPlugin::getOutputDataTypes(DataType* outputs, int32_t output_count,
                                                     const DataType* inputs,
                                                     int32_t input_count) const noexcept {
  return Guard<int32_t>(parts_.node->name(), kFailed, [&] {
    const Node& node = *parts_.node;
    node.CheckInputs(input_count);
    node.CheckOutputs(output_count);
    const Tensors types = TypesOf(node, node.slots().size(), [&](size_t i) { return inputs[i]; });
    for (const Slot& slot : node.slots()) {
      const std::string wrong = WrongType(node, slot, types);
      if (!wrong.empty()) throw std::runtime_error(wrong);
    }
    for (size_t i = 0; i < node.outputs(); i++) outputs[i] = inputs[node.InputOf(i)];
    return kDone;
  });
}

int32_t MiniCacheAttentionPlugin::getOutputShapes(const nvinfer1::DimsExprs* inputs,
                                                  int32_t input_count, const nvinfer1::DimsExprs*,
                                                  int32_t, nvinfer1::DimsExprs* outputs,
                                                  int32_t output_count,
                                                  nvinfer1::IExprBuilder&) noexcept {
  return Guard<int32_t>(parts_.node->name(), kFailed, [&] {
    const Node& node = *parts_.node;
    node.CheckInputs(input_count);
    node.CheckOutputs(output_count);
    for (size_t i = 0; i < node.outputs(); i++) outputs[i] = inputs[node.InputOf(i)];
    return kDone;
  });
}

bool MiniCacheAttentionPlugin::supportsFormatCombination(int32_t position,
                                                         const DynamicPluginTensorDesc* tensors,
                                                         int32_t input_count,
                                                         int32_t output_count) noexcept {
  return Guard<bool>(parts_.node->name(), false, [&] {
    const Node& node = *parts_.node;
    node.CheckInputs(input_count);
    node.CheckOutputs(output_count);
    const nvinfer1::PluginTensorDesc& asked = tensors[position].desc;
    if (asked.format != nvinfer1::TensorFormat::kLINEAR) return false;
    const auto at = static_cast<size_t>(position), inputs = node.slots().size();
    if (at >= inputs) return asked.type == tensors[node.InputOf(at - inputs)].desc.type;
    // Later inputs are not decided yet.
    const Tensors types = TypesOf(node, at + 1, [&](size_t i) { return tensors[i].desc.type; });
    return WrongType(node, node.slots()[at], types).empty();
  });
}

int32_t MiniCacheAttentionPlugin::configurePlugin(const DynamicPluginTensorDesc* inputs,
                                                  int32_t input_count,
                                                  const DynamicPluginTensorDesc*,
                                                  int32_t output_count) noexcept {
  return Guard<int32_t>(parts_.node->name(), kFailed, [&] {
    const Node& node = *parts_.node;
    node.CheckInputs(input_count);
    node.CheckOutputs(output_count);
    // An engine should not find out on the device that it lacks a kernel.
    for (const Bound bound : {Bound::kMin, Bound::kOpt, Bound::kMax}) {
      const Tensors tensors = TensorsAt(node, inputs, bound);
      const CallShape shape = node.Check(tensors);
      if (parts_.kernels != nullptr) RequireKernels(node, *parts_.kernels, tensors, shape);
    }
    return kDone;
  });
}

size_t MiniCacheAttentionPlugin::getWorkspaceSize(const DynamicPluginTensorDesc* inputs,
                                                  int32_t input_count,
                                                  const DynamicPluginTensorDesc*,
                                                  int32_t) const noexcept {
  return Guard<size_t>(parts_.node->name(), 0, [&] {
    const Node& node = *parts_.node;
    node.CheckInputs(input_count);
    return Execution::WorkspaceBytes(node, node.Check(TensorsAt(node, inputs, Bound::kMax)));
  });
}

int32_t MiniCacheAttentionPlugin::getAliasedInput(int32_t output) noexcept {
  const Node& node = *parts_.node;
  if (output < 1 || static_cast<size_t>(output) >= node.outputs()) return -1;
  return static_cast<int32_t>(node.InputOf(static_cast<size_t>(output)));
}

// What a timing depends on beside types and shapes.
const char* MiniCacheAttentionPlugin::getTimingCacheID() noexcept {
  return parts_.node->description().c_str();
}

const char* MiniCacheAttentionPlugin::getMetadataString() noexcept {
  return parts_.node->description().c_str();
}

}  // namespace minicache::trt
