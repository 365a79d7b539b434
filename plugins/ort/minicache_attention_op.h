// com.minicache::MiniCacheAttention for ONNX Runtime's CPU execution provider.
#pragma once

#include <vector>

#include "minicache/operator.h"
#include "ort/api.h"

namespace minicache::ort {

class MiniCacheAttentionKernel {
 public:
  // Throws Ort::Exception with a sentence where the node is not one that this library runs.
  explicit MiniCacheAttentionKernel(const OrtKernelInfo* info);

  OrtStatusPtr Compute(OrtKernelContext* context) const;

 private:
  Attributes attributes_;
  std::vector<Slot> slots_;  // of the inputs
};

// One variadic list of inputs and one of outputs: their number and types follow from attributes.
struct MiniCacheAttentionOp : OrtCustomOp {
  MiniCacheAttentionOp();
};

}  // namespace minicache::ort
