// com.minicache::MiniCacheAttention as a TensorRT plugin.
#pragma once

#include <NvInferRuntime.h>

#include <memory>
#include <string>
#include <vector>

#include "trt/execution.h"
#include "trt/fields.h"
#include "trt/kernel_registry.h"
#include "trt/node.h"

namespace minicache::trt {

// A node of a network or an engine, and with attachToContext in an execution context. No method
// throws: errors are logged as one sentence each, and told by what the method returns.
class MiniCacheAttentionPlugin final : public nvinfer1::IPluginV3,
                                       public nvinfer1::IPluginV3OneCore,
                                       public nvinfer1::IPluginV3OneBuildV2,
                                       public nvinfer1::IPluginV3OneRuntime {
 public:
  // What the plugin works with. `kernels` may be absent in an engine, until the node that carries
  // those of `digest` is there.
  struct Parts {
    std::shared_ptr<const Node> node;
    nvinfer1::TensorRTPhase phase;
    std::string digest;
    std::shared_ptr<const EngineKernels> kernels;
  };
  // From fields of a graph, or of an engine. Throws std::exception with a sentence.
  static Parts ReadParts(const std::string& name, const nvinfer1::PluginFieldCollection& fields,
                         nvinfer1::TensorRTPhase phase);

  explicit MiniCacheAttentionPlugin(Parts parts);

  nvinfer1::IPluginCapability* getCapabilityInterface(
      nvinfer1::PluginCapabilityType type) noexcept override;
  MiniCacheAttentionPlugin* clone() noexcept override;

  // Core.
  const char* getPluginName() const noexcept override;
  const char* getPluginVersion() const noexcept override;
  const char* getPluginNamespace() const noexcept override;

  // Build; needs no driver.
  int32_t getNbOutputs() const noexcept override;
  int32_t getOutputDataTypes(nvinfer1::DataType* outputs, int32_t output_count,
                             const nvinfer1::DataType* inputs,
                             int32_t input_count) const noexcept override;
  int32_t getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count,
                          const nvinfer1::DimsExprs* shape_inputs, int32_t shape_input_count,
                          nvinfer1::DimsExprs* outputs, int32_t output_count,
                          nvinfer1::IExprBuilder& builder) noexcept override;
  bool supportsFormatCombination(int32_t position, const nvinfer1::DynamicPluginTensorDesc* tensors,
                                 int32_t input_count, int32_t output_count) noexcept override;
  int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* inputs, int32_t input_count,
                          const nvinfer1::DynamicPluginTensorDesc* outputs,
                          int32_t output_count) noexcept override;
  size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* inputs, int32_t input_count,
                          const nvinfer1::DynamicPluginTensorDesc* outputs,
                          int32_t output_count) const noexcept override;
  int32_t getAliasedInput(int32_t output) noexcept override;
  const char* getTimingCacheID() noexcept override;
  const char* getMetadataString() noexcept override;

  // Runtime.
  int32_t onShapeChange(const nvinfer1::PluginTensorDesc* inputs, int32_t input_count,
                        const nvinfer1::PluginTensorDesc* outputs,
                        int32_t output_count) noexcept override;
  int32_t enqueue(const nvinfer1::PluginTensorDesc* input_descriptions,
                  const nvinfer1::PluginTensorDesc* output_descriptions, const void* const* inputs,
                  void* const* outputs, void* workspace, cudaStream_t stream) noexcept override;
  MiniCacheAttentionPlugin* attachToContext(
      nvinfer1::IPluginResourceContext* context) noexcept override;
  const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override;

 private:
  // What a context works with, made at the first request. Throws where the kernels never came.
  Execution& Work();

  Parts parts_;
  FieldList fields_;
  std::unique_ptr<Execution> work_;
};

}  // namespace minicache::trt
