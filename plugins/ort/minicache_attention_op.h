// com.minicache::MiniCacheAttention for ONNX Runtime's CPU execution provider.
#pragma once

#include "minicache/maths.h"
#include "ort/node.h"

namespace minicache::ort {

struct MiniCacheAttentionOp : OpSurface {
  // `expects_cuda`: the session names CUDA kernels; a node that ends up here would run on the CPU
  // unnoticed, with its cache copied to and fro, so it is refused.
  MiniCacheAttentionOp(bool expects_cuda, MathsSetting maths);

  const bool expects_cuda;
  const MathsSetting maths;
};

}  // namespace minicache::ort
