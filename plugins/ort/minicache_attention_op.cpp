#include "ort/minicache_attention_op.h"

#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "minicache/kernels.h"
#include "minicache/operator.h"
#include "ort/node.h"

namespace minicache::ort {
namespace {

// Lends ONNX Runtime's thread pool and arena to a call.
class OrtHost final : public Host {
 public:
  explicit OrtHost(OrtKernelContext* context) : context_(context) {
    const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    Ort::ThrowOnError(Ort::GetApi().KernelContext_GetAllocator(context, memory, &allocator_));
  }
  ~OrtHost() override {
    for (void* memory : blocks_) allocator_->Free(allocator_, memory);
    Ort::GetApi().ReleaseAllocator(allocator_);
  }
  OrtHost(const OrtHost&) = delete;
  OrtHost& operator=(const OrtHost&) = delete;

  void ParallelFor(size_t count, void (*run)(void*, size_t), void* data) override {
    Ort::ThrowOnError(Ort::GetApi().KernelContext_ParallelFor(context_, run, count, count, data));
  }

  void* Allocate(size_t bytes) override {
    blocks_.reserve(blocks_.size() + 1);
    void* memory = allocator_->Alloc(allocator_, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    blocks_.push_back(memory);
    return memory;
  }

 private:
  OrtKernelContext* context_;
  OrtAllocator* allocator_ = nullptr;
  std::vector<void*> blocks_;
};

class Kernel {
 public:
  Kernel(const OrtKernelInfo* info, MathsSetting maths) : node_(info), maths_(maths) {
    Kernels();  // chosen before threads ask for it
  }

  OrtStatusPtr Compute(OrtKernelContext* raw_context) const {
    const Ort::KernelContext context(raw_context);
    Tensors tensors = node_.Inputs(context);
    CallShape shape;
    const std::string wrong = Check(node_.attributes, node_.slots, tensors, &shape);
    if (!wrong.empty()) return Fail(ORT_INVALID_ARGUMENT, wrong);
    const auto copy = [](char* to, const char* from, size_t bytes) {
      std::memcpy(to, from, bytes);
    };
    node_.AddOutputs(context, copy, &tensors);
    OrtHost host(raw_context);
    Run(node_.attributes, maths_, tensors, shape, host);
    return nullptr;
  }

 private:
  const Node node_;
  const MathsSetting maths_;
};

}  // namespace

MiniCacheAttentionOp::MiniCacheAttentionOp(bool expects_cuda, MathsSetting maths)
    : expects_cuda(expects_cuda), maths(maths) {
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* {
    return "CPUExecutionProvider";
  };
  CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info,
                      void** kernel) -> OrtStatusPtr {
    return Guard([&]() -> OrtStatusPtr {
      const auto* self = static_cast<const MiniCacheAttentionOp*>(op);
      if (self->expects_cuda) {
        return Fail(
            ORT_NOT_IMPLEMENTED,
            "the session option 'minicache.kernels' asks for CUDA, but ONNX Runtime gave "
            "the node to the CPU; put CUDAExecutionProvider first, or leave the option out");
      }
      *kernel = new Kernel(info, self->maths);
      return nullptr;
    });
  };
  KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
    return Guard([&] { return static_cast<Kernel*>(kernel)->Compute(context); });
  };
  KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
}

}  // namespace minicache::ort
