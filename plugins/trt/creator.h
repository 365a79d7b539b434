// Makes plugins from the fields of a graph or of an engine.
#pragma once

#include <NvInferRuntime.h>

#include <vector>

namespace minicache::trt {

class MiniCacheAttentionCreator final : public nvinfer1::IPluginCreatorV3One {
 public:
  MiniCacheAttentionCreator();

  // nullptr, and a sentence in the log, where the fields are not those of a node.
  nvinfer1::IPluginV3* createPlugin(const char* name, const nvinfer1::PluginFieldCollection* fields,
                                    nvinfer1::TensorRTPhase phase) noexcept override;
  // The attributes that a graph may give.
  const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override;
  const char* getPluginName() const noexcept override;
  const char* getPluginVersion() const noexcept override;
  const char* getPluginNamespace() const noexcept override;

 private:
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_{};
};

}  // namespace minicache::trt
