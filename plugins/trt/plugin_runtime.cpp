// The parts of the plugin that an engine runs with.
#include <stdexcept>
#include <utility>

#include "trt/log.h"
#include "trt/plugin.h"
#include "trt/tensors.h"

namespace minicache::trt {
namespace {

constexpr char kDigest[] = "kernels_digest";
constexpr char kKernels[] = "kernels";

Tensors TensorsOf(const Node& node, const nvinfer1::PluginTensorDesc* descriptions) {
  Tensors tensors = node.Empty();
  for (size_t i = 0; i < node.slots().size(); i++) {
    tensors.at(node.slots()[i]) = TensorOf(descriptions[i].type, descriptions[i].dims, nullptr);
  }
  return tensors;
}

}  // namespace

MiniCacheAttentionPlugin::Parts MiniCacheAttentionPlugin::ReadParts(
    const std::string& name, const nvinfer1::PluginFieldCollection& collection,
    nvinfer1::TensorRTPhase phase) {
  const FieldReader fields(collection);
  Parts parts = {std::make_shared<const Node>(name, fields), phase, "", nullptr};
  if (phase == nvinfer1::TensorRTPhase::kBUILD) {
    parts.kernels = KernelsToBuildWith();
    parts.digest = parts.kernels->digest;
    return parts;
  }
  std::vector<char> bytes;
  fields.Read(kDigest, &parts.digest);
  fields.Read(kKernels, &bytes);
  if (parts.digest.empty()) throw std::runtime_error("the engine names no kernels");
  if (bytes.empty()) return parts;
  parts.kernels = KernelRegistry::Instance().Share("of the engine", std::move(bytes));
  if (parts.kernels->digest == parts.digest) return parts;
  throw std::runtime_error("the kernels in the engine are damaged: their digest is " +
                           parts.kernels->digest + ", not " + parts.digest);
}

Execution& MiniCacheAttentionPlugin::Work() {
  if (work_ != nullptr) return *work_;
  if (parts_.kernels == nullptr) {
    parts_.kernels = KernelRegistry::Instance().Find(parts_.digest);
  }
  if (parts_.kernels == nullptr) {
    throw std::runtime_error("the engine does not bring the kernels " + parts_.digest +
                             ": no node of it has carries_kernels = 1; export the model again");
  }
  work_ = std::make_unique<Execution>(parts_.node, parts_.kernels);
  return *work_;
}

// The device is left alone while an engine is built: that may happen where there is none.
int32_t MiniCacheAttentionPlugin::onShapeChange(const nvinfer1::PluginTensorDesc* inputs,
                                                int32_t input_count,
                                                const nvinfer1::PluginTensorDesc*,
                                                int32_t) noexcept {
  return Guard<int32_t>(parts_.node->name(), kFailed, [&] {
    const Node& node = *parts_.node;
    node.CheckInputs(input_count);
    const Tensors tensors = TensorsOf(node, inputs);
    if (parts_.phase == nvinfer1::TensorRTPhase::kRUNTIME) {
      Work().Prepare(tensors);
    } else {
      node.Check(tensors);
    }
    return kDone;
  });
}

int32_t MiniCacheAttentionPlugin::enqueue(const nvinfer1::PluginTensorDesc* input_descriptions,
                                          const nvinfer1::PluginTensorDesc*,
                                          const void* const* inputs, void* const* outputs,
                                          void* workspace, cudaStream_t stream) noexcept {
  return Guard<int32_t>(parts_.node->name(), kFailed, [&] {
    const Node& node = *parts_.node;
    Tensors tensors = TensorsOf(node, input_descriptions);
    Execution& work = Work();
    work.Check(tensors);
    for (size_t i = 0; i < node.slots().size(); i++) {
      tensors.at(node.slots()[i]).data = static_cast<char*>(const_cast<void*>(inputs[i]));
    }
    tensors.attention = tensors[TensorId::kQuery];
    tensors.attention.data = static_cast<char*>(outputs[0]);
    for (size_t i = 1; i < node.outputs(); i++) {
      Tensor& state = tensors.at(node.slots()[node.InputOf(i)]);
      // The same memory, unless somebody binds the network's states apart.
      if (outputs[i] != state.data) {
        work.Copy(outputs[i], state.data, static_cast<size_t>(state.bytes()), stream);
      }
      state.data = static_cast<char*>(outputs[i]);
    }
    work.Run(tensors, workspace, stream);
    return kDone;
  });
}

MiniCacheAttentionPlugin* MiniCacheAttentionPlugin::attachToContext(
    nvinfer1::IPluginResourceContext*) noexcept {
  return clone();
}

const nvinfer1::PluginFieldCollection* MiniCacheAttentionPlugin::getFieldsToSerialize() noexcept {
  return Guard<const nvinfer1::PluginFieldCollection*>(parts_.node->name(), nullptr, [&] {
    fields_.Clear();
    parts_.node->AddFields(&fields_);
    fields_.Add(kDigest, &parts_.digest);
    if (parts_.node->carries_kernels()) fields_.Add(kKernels, &parts_.kernels->pack->bytes());
    return fields_.Collection();
  });
}

}  // namespace minicache::trt
