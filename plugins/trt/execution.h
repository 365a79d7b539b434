// A node at work in one execution context.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "gpu/last_call.h"
#include "minicache/device_table.h"
#include "trt/kernel_registry.h"
#include "trt/node.h"

namespace minicache::trt {

// TensorRT uses a context from one thread at a time, and so is this used.
class Execution {
 public:
  Execution(std::shared_ptr<const Node> node, std::shared_ptr<const EngineKernels> kernels);

  // Workspace of calls up to a shape.
  static size_t WorkspaceBytes(const Node& node, const CallShape& most);

  // Checks types and shapes. Throws std::exception with a sentence.
  void Check(const Tensors& tensors);

  // Likewise, and loads what calls with these need onto the device, so that Run only enqueues.
  void Prepare(const Tensors& tensors);

  // Enqueues a call that was checked last; states are those that the node may write. Device memory
  // is neither allocated nor waited for, once Prepare has seen the shapes. Throws std::exception
  // with a sentence.
  void Run(const Tensors& tensors, void* workspace, gpu::Stream stream);

  // Enqueues a copy of a state to where the network wants it.
  void Copy(void* to, const void* from, size_t bytes, gpu::Stream stream) const;

 private:
  const std::shared_ptr<const Node> node_;
  const std::shared_ptr<const EngineKernels> kernels_;
  const gpu::DeviceTable table_;
  LastCall last_;

  // Steps repeat each other: what was checked is not checked again.
  std::vector<Tensor> checked_;  // inputs, without their memory
  CallShape shape_ = {};         // of these
  bool prepared_ = false;        // for these
};

// Checks, without a driver, that the kernels can run calls of these types and shapes. Throws.
void RequireKernels(const Node& node, const EngineKernels& kernels, const Tensors& tensors,
                    const CallShape& shape);

}  // namespace minicache::trt
