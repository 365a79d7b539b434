#include "ort/minicache_attention_cuda_op.h"

#include <new>
#include <utility>
#include <vector>

#include "gpu/last_call.h"
#include "gpu/plan.h"
#include "minicache/device_table.h"

namespace minicache::ort {
namespace {

constexpr char kPackFile[] = "kernels.bin";

uint64_t AddressOf(const void* data) { return reinterpret_cast<uint64_t>(data); }

// Device memory of ONNX Runtime's arena for the launches of one call. It goes back to the arena
// when they are enqueued, not when they are done: whoever gets it next is on the same stream.
class Scratch {
 public:
  Scratch(OrtKernelContext* context, int64_t bytes) {
    if (bytes == 0) return;
    // Where the query lies, scratch lies too.
    const auto memory = Ort::KernelContext(context).GetInput(0).GetTensorMemoryInfo();
    Ort::ThrowOnError(Ort::GetApi().KernelContext_GetAllocator(context, memory, &allocator_));
    data_ = allocator_->Alloc(allocator_, static_cast<size_t>(bytes));
    if (data_ == nullptr) {
      Ort::GetApi().ReleaseAllocator(allocator_);
      throw std::bad_alloc();
    }
  }
  ~Scratch() {
    if (data_ == nullptr) return;
    allocator_->Free(allocator_, data_);
    Ort::GetApi().ReleaseAllocator(allocator_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  uint64_t address() const { return AddressOf(data_); }

 private:
  OrtAllocator* allocator_ = nullptr;
  void* data_ = nullptr;
};

class Kernel {
 public:
  Kernel(const OrtKernelInfo* info, std::shared_ptr<const gpu::Launcher> launcher)
      : node_(info),
        plan_(MakePlan(node_)),
        launcher_(std::move(launcher)),
        table_(*launcher_, plan_.table()) {}

  OrtStatusPtr Compute(OrtKernelContext* raw_context) {
    const Ort::KernelContext context(raw_context);
    const auto stream = static_cast<gpu::Stream>(context.GetGPUComputeStream());
    Tensors tensors = node_.Inputs(context);
    CallShape shape;
    // Lengths are not looked at: that would wait for the device. Kernels stay within bounds
    // whatever they are.
    std::string wrong = CheckTensors(node_.attributes, node_.slots, tensors, &shape);
    if (wrong.empty()) wrong = plan_.CheckCall(tensors, shape);
    if (!wrong.empty()) return Fail(ORT_INVALID_ARGUMENT, wrong);
    const auto copy = [&](char* to, const char* from, size_t bytes) {
      launcher_->Copy(AddressOf(to), AddressOf(from), bytes, stream);
    };
    node_.AddOutputs(context, copy, &tensors);
    const Scratch scratch(raw_context, plan_.ScratchBytes(shape));
    const LastCall::Launches launches =
        last_.Get(plan_, node_.slots, tensors, table_.Address(), scratch.address(), shape);
    for (const Launch& launch : *launches) launcher_->Enqueue(launch, stream);
    return nullptr;
  }

 private:
  static GpuPlan MakePlan(const Node& node) {
    GpuPlan plan;
    const std::string wrong = GpuPlan::Make(node.attributes, {}, &plan);
    if (wrong.empty()) return plan;
    throw Ort::Exception(std::string(kOpName) + ": " + wrong, ORT_NOT_IMPLEMENTED);
  }

  const Node node_;
  const GpuPlan plan_;
  const std::shared_ptr<const gpu::Launcher> launcher_;
  const gpu::DeviceTable table_;
  LastCall last_;
};

}  // namespace

MiniCacheAttentionCudaOp::MiniCacheAttentionCudaOp(std::string pack) : pack_(std::move(pack)) {
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* {
    return "CUDAExecutionProvider";
  };
  CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info,
                      void** kernel) -> OrtStatusPtr {
    return Guard([&]() -> OrtStatusPtr {
      *kernel = new Kernel(info, static_cast<const MiniCacheAttentionCudaOp*>(op)->Launcher());
      return nullptr;
    });
  };
  KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
    return Guard([&] { return static_cast<Kernel*>(kernel)->Compute(context); });
  };
  KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
}

std::shared_ptr<const gpu::Launcher> MiniCacheAttentionCudaOp::Launcher() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::shared_ptr<const gpu::Launcher> launcher = launcher_.lock();
  if (launcher != nullptr) return launcher;
  if (pack_.empty()) {
    throw gpu::GpuError(
        std::string(kOpName) +
        ": the session option 'minicache.kernels' names no folder of CUDA kernels; "
        "set it to the 'kernels' folder of a model exported with --target ort-cuda");
  }
  launcher = std::make_shared<const gpu::Launcher>(pack_ + "/" + kPackFile);
  launcher->RequireDriver();
  launcher_ = launcher;
  return launcher;
}

}  // namespace minicache::ort
