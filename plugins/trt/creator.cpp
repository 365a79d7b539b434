#include "trt/creator.h"

#include <string>

#include "minicache/contract.h"
#include "minicache/read_attributes.h"
#include "trt/log.h"
#include "trt/plugin.h"

namespace minicache::trt {
namespace {

using nvinfer1::PluginFieldType;

// As TensorRT's parser passes attributes on.
PluginFieldType GraphType(const int64_t*) { return PluginFieldType::kINT32; }
PluginFieldType GraphType(const std::vector<int64_t>*) { return PluginFieldType::kINT32; }
PluginFieldType GraphType(const float*) { return PluginFieldType::kFLOAT32; }
PluginFieldType GraphType(const std::string*) { return PluginFieldType::kCHAR; }

}  // namespace

MiniCacheAttentionCreator::MiniCacheAttentionCreator() {
  RawAttributes raw;
  VisitAttributes(
      [&](const char* name, const auto* value) {
        fields_.emplace_back(name, nullptr, GraphType(value), 1);
      },
      &raw);
  fields_.emplace_back(kCarriesKernels, nullptr, PluginFieldType::kINT32, 1);
  collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
}

nvinfer1::IPluginV3* MiniCacheAttentionCreator::createPlugin(
    const char* name, const nvinfer1::PluginFieldCollection* fields,
    nvinfer1::TensorRTPhase phase) noexcept {
  const std::string node = name == nullptr ? "" : name;
  return Guard<nvinfer1::IPluginV3*>(node, nullptr, [&] {
    const nvinfer1::PluginFieldCollection none{};
    return new MiniCacheAttentionPlugin(
        MiniCacheAttentionPlugin::ReadParts(node, fields == nullptr ? none : *fields, phase));
  });
}

const nvinfer1::PluginFieldCollection* MiniCacheAttentionCreator::getFieldNames() noexcept {
  return &collection_;
}

const char* MiniCacheAttentionCreator::getPluginName() const noexcept { return kOpName; }

const char* MiniCacheAttentionCreator::getPluginVersion() const noexcept { return kOpVersion; }

const char* MiniCacheAttentionCreator::getPluginNamespace() const noexcept { return kDomain; }

}  // namespace minicache::trt
