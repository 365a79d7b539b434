#include "trt/execution.h"

#include <utility>

namespace minicache::trt {
namespace {

constexpr uint64_t kAlignment = 256;  // of scratch, as plans count on it

uint64_t AddressOf(const void* data) { return reinterpret_cast<uint64_t>(data); }

// The launches of a call whose memory is not known yet: aligned, as TensorRT and CUDA give it. What
// turns out not to be needs other kernels, which are then loaded late.
std::vector<Launch> LaunchesAhead(const Node& node, Tensors tensors, const CallShape& shape) {
  char* const anywhere = reinterpret_cast<char*>(kAlignment);
  for (const Slot& slot : node.slots()) tensors.at(slot).data = anywhere;
  tensors.attention = tensors[TensorId::kQuery];
  return node.plan().Launches(tensors, shape, kAlignment, kAlignment);
}

}  // namespace

Execution::Execution(std::shared_ptr<const Node> node, std::shared_ptr<const EngineKernels> kernels)
    : node_(std::move(node)),
      kernels_(std::move(kernels)),
      table_(kernels_->launcher, node_->plan().table()) {}

size_t Execution::WorkspaceBytes(const Node& node, const CallShape& most) {
  return static_cast<size_t>(node.plan().ScratchBound(most)) + kAlignment;
}

void Execution::Check(const Tensors& tensors) {
  std::vector<Tensor> now;
  now.reserve(node_->slots().size());
  for (const Slot& slot : node_->slots()) {
    now.push_back(tensors.at(slot));
    now.back().data = nullptr;
  }
  if (now == checked_) return;
  shape_ = node_->Check(tensors);
  checked_ = std::move(now);
  prepared_ = false;
}

void Execution::Prepare(const Tensors& tensors) {
  Check(tensors);
  table_.Address();
  if (prepared_) return;
  for (const Launch& launch : LaunchesAhead(*node_, tensors, shape_)) {
    kernels_->launcher.Prepare(launch);
  }
  prepared_ = true;
}

void Execution::Run(const Tensors& tensors, void* workspace, gpu::Stream stream) {
  const uint64_t scratch = (AddressOf(workspace) + kAlignment - 1) / kAlignment * kAlignment;
  const LastCall::Launches launches =
      last_.Get(node_->plan(), node_->slots(), tensors, table_.Address(), scratch, shape_);
  for (const Launch& launch : *launches) kernels_->launcher.Enqueue(launch, stream);
}

void Execution::Copy(void* to, const void* from, size_t bytes, gpu::Stream stream) const {
  kernels_->launcher.Copy(AddressOf(to), AddressOf(from), bytes, stream);
}

void RequireKernels(const Node& node, const EngineKernels& kernels, const Tensors& tensors,
                    const CallShape& shape) {
  for (const Launch& launch : LaunchesAhead(node, tensors, shape)) {
    kernels.launcher.Require(launch);
  }
}

}  // namespace minicache::trt
