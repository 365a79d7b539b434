// Entry points of libminicache_trt.so.
#include <NvInferRuntime.h>

#include "minicache/contract.h"
#include "trt/creator.h"
#include "trt/log.h"

#define MINICACHE_EXPORT extern "C" __attribute__((visibility("default")))

// Counts changes of the C interface and of the operator's contract.
MINICACHE_EXPORT int minicache_abi_version() { return minicache::kAbiVersion; }

MINICACHE_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
  minicache::trt::SetLoggerFinder(finder);
}

MINICACHE_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
  static minicache::trt::MiniCacheAttentionCreator creator;
  static nvinfer1::IPluginCreatorInterface* const creators[] = {&creator};
  count = 1;
  return creators;
}
