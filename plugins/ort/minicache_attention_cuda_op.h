// com.minicache::MiniCacheAttention for ONNX Runtime's CUDA execution provider: all inputs lie on
// the device, lengths too; nothing is copied to the host and nothing waits.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "minicache/launcher.h"
#include "ort/node.h"

namespace minicache::ort {

struct MiniCacheAttentionCudaOp : OpSurface {
  // `pack`: folder of the kernel pack; empty where the session option does not name one.
  explicit MiniCacheAttentionCudaOp(std::string pack);

  // The launcher that all kernels of a session share; it ends with the last of them.
  std::shared_ptr<const gpu::Launcher> Launcher() const;

 private:
  const std::string pack_;
  mutable std::mutex mutex_;
  mutable std::weak_ptr<const gpu::Launcher> launcher_;
};

}  // namespace minicache::ort
