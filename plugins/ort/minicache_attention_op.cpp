#include "ort/minicache_attention_op.h"

#include <atomic>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "minicache/kernels.h"
#include "ort/attributes.h"

namespace minicache::ort {
namespace {

constexpr char kName[] = "MiniCacheAttention";

OrtStatusPtr Fail(OrtErrorCode code, const std::string& message) {
  return Ort::GetApi().CreateStatus(code, (std::string(kName) + ": " + message).c_str());
}

// Exceptions never cross the C boundary.
template <class Body>
OrtStatusPtr Guard(const Body& body) noexcept {
  try {
    return body();
  } catch (const Ort::Exception& error) {
    return Ort::GetApi().CreateStatus(error.GetOrtErrorCode(), error.what());
  } catch (const std::exception& error) {
    return Ort::GetApi().CreateStatus(ORT_FAIL, error.what());
  }
}

ElementType TypeOf(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return ElementType::kFloat32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return ElementType::kFloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return ElementType::kBfloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
      return ElementType::kInt8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return ElementType::kInt32;
    default:
      return ElementType::kOther;
  }
}

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

Tensor TensorOf(const Ort::ConstValue& value) {
  const Ort::TensorTypeAndShapeInfo info = value.GetTensorTypeAndShapeInfo();
  Tensor tensor;
  tensor.type = TypeOf(info.GetElementType());
  tensor.data = const_cast<char*>(static_cast<const char*>(value.GetTensorRawData()));
  const size_t rank = info.GetDimensionsCount();
  tensor.rank = rank <= 5 ? static_cast<int32_t>(rank) : -1;
  if (rank <= 5) Ort::ThrowOnError(Ort::GetApi().GetDimensions(info, tensor.shape, rank));
  return tensor;
}

// The output that continues a state: the same memory where the caller bound it so, else a copy.
char* Continue(const Ort::KernelContext& context, size_t index, const Tensor& past) {
  auto output = context.GetOutput(index, past.shape, static_cast<size_t>(past.rank));
  if (static_cast<OrtValue*>(output) == nullptr)
    throw Ort::Exception("a present_* output is missing", ORT_INVALID_ARGUMENT);
  char* data = static_cast<char*>(output.GetTensorMutableRawData());
  if (data != past.data) std::memcpy(data, past.data, static_cast<size_t>(past.bytes()));
  return data;
}

// A dimension that is neither known nor named would be passed on as the number -1, which breaks the
// shape inference of the nodes behind. Each gets a name of its own: a shared one would claim that
// they are equal.
void NameUnknownDimensions(const OrtApi& api, OrtTensorTypeAndShapeInfo* info) {
  static std::atomic<uint64_t> unknown{0};
  size_t rank = 0;
  Ort::ThrowOnError(api.GetDimensionsCount(info, &rank));
  std::vector<int64_t> sizes(rank);
  std::vector<const char*> names(rank);
  Ort::ThrowOnError(api.GetDimensions(info, sizes.data(), rank));
  Ort::ThrowOnError(api.GetSymbolicDimensions(info, names.data(), rank));
  std::vector<std::string> own(rank);
  for (size_t i = 0; i < rank; i++) {
    own[i] = names[i] == nullptr ? "" : names[i];
    if (sizes[i] < 0 && own[i].empty()) {
      own[i] = "minicache_unknown_" + std::to_string(unknown.fetch_add(1));
    }
    names[i] = own[i].c_str();
  }
  Ort::ThrowOnError(api.SetSymbolicDimensions(info, names.data(), rank));
}

OrtStatusPtr InferShapes(OrtShapeInferContext* context) {
  const OrtApi& api = Ort::GetApi();
  const RawAttributes raw = ReadAttributes(context);
  size_t count = 0;
  Ort::ThrowOnError(api.ShapeInferContext_GetInputCount(context, &count));
  const auto forward = [&](size_t input, size_t output) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    Ort::ThrowOnError(api.ShapeInferContext_GetInputTypeShape(context, input, &info));
    NameUnknownDimensions(api, info);
    Ort::ThrowOnError(api.ShapeInferContext_SetOutputTypeShape(context, output, info));
  };
  if (count == 0) return Fail(ORT_INVALID_ARGUMENT, "the node has no inputs");
  forward(0, 0);
  if (raw.group_slot != raw.group_size - 1) return nullptr;
  // States lie between the plain inputs and the other layers' new keys and values.
  const auto others = static_cast<size_t>(2 * (raw.group_size - 1));
  const bool retains = raw.mode == "slerp" && raw.retention != "none";
  const size_t states = 2 + (raw.mode != "exact" ? 4 : 0) + (retains ? 5 : 0);
  if (count < states + others + 5) {
    return Fail(ORT_INVALID_ARGUMENT, "the node has " + std::to_string(count) +
                                          " inputs, fewer than its attributes ask for");
  }
  for (size_t i = 0; i < states; i++) forward(count - others - states + i, 1 + i);
  return nullptr;
}

}  // namespace

MiniCacheAttentionKernel::MiniCacheAttentionKernel(const OrtKernelInfo* info) {
  const Ort::ConstKernelInfo node(info);
  const std::string error = CheckAttributes(ReadAttributes(info), &attributes_);
  const std::string where = std::string(kName) + ": ";
  if (!error.empty()) throw Ort::Exception(where + error, ORT_NOT_IMPLEMENTED);
  slots_ = InputSlots(attributes_);
  if (node.GetInputCount() != slots_.size()) {
    std::string names;
    for (const Slot& slot : slots_) names += (names.empty() ? "" : ", ") + slot.name;
    throw Ort::Exception(where + "the node has " + std::to_string(node.GetInputCount()) +
                             " inputs, its attributes ask for " + std::to_string(slots_.size()) +
                             ": " + names,
                         ORT_INVALID_ARGUMENT);
  }
  size_t outputs = 1;
  for (const Slot& slot : slots_) outputs += attributes_.writes() && IsState(slot.id) ? 1 : 0;
  if (node.GetOutputCount() != outputs) {
    throw Ort::Exception(where + "the node has " + std::to_string(node.GetOutputCount()) +
                             " outputs, its attributes ask for " + std::to_string(outputs),
                         ORT_INVALID_ARGUMENT);
  }
  Kernels();  // chosen before threads ask for it
}

OrtStatusPtr MiniCacheAttentionKernel::Compute(OrtKernelContext* raw_context) const {
  const Ort::KernelContext context(raw_context);
  Tensors tensors;
  tensors.new_keys.resize(static_cast<size_t>(attributes_.group_size - 1));
  tensors.new_values.resize(static_cast<size_t>(attributes_.group_size - 1));
  for (size_t i = 0; i < slots_.size(); i++) {
    const Slot& slot = slots_[i];
    const auto layer = static_cast<size_t>(slot.layer);
    Tensor& tensor = slot.id == TensorId::kNewKey     ? tensors.new_keys[layer]
                     : slot.id == TensorId::kNewValue ? tensors.new_values[layer]
                                                      : tensors[slot.id];
    tensor = TensorOf(context.GetInput(i));
  }
  CallShape shape;
  const std::string wrong = Check(attributes_, slots_, tensors, &shape);
  if (!wrong.empty()) return Fail(ORT_INVALID_ARGUMENT, wrong);

  const Tensor& query = tensors[TensorId::kQuery];
  auto output = context.GetOutput(0, query.shape, static_cast<size_t>(query.rank));
  tensors.attention = query;
  tensors.attention.data = static_cast<char*>(output.GetTensorMutableRawData());
  if (attributes_.writes()) {
    size_t index = 1;
    for (const Slot& slot : slots_) {
      if (!IsState(slot.id)) continue;
      tensors[slot.id].data = Continue(context, index++, tensors[slot.id]);
    }
  }
  OrtHost host(raw_context);
  Run(attributes_, tensors, shape, host);
  return nullptr;
}

MiniCacheAttentionOp::MiniCacheAttentionOp() : OrtCustomOp{} {
  version = ORT_API_VERSION;
  GetName = [](const OrtCustomOp*) -> const char* { return kName; };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* {
    return "CPUExecutionProvider";
  };
  GetInputType = GetOutputType = [](const OrtCustomOp*, size_t) {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  };
  GetInputTypeCount = GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  GetInputCharacteristic =
      GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_VARIADIC; };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  GetVariadicInputMinArity = GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicInputHomogeneity = GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  CreateKernelV2 = [](const OrtCustomOp*, const OrtApi*, const OrtKernelInfo* info,
                      void** kernel) -> OrtStatusPtr {
    return Guard([&]() -> OrtStatusPtr {
      *kernel = new MiniCacheAttentionKernel(info);
      return nullptr;
    });
  };
  KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
    return Guard([&] { return static_cast<MiniCacheAttentionKernel*>(kernel)->Compute(context); });
  };
  KernelDestroy = [](void* kernel) { delete static_cast<MiniCacheAttentionKernel*>(kernel); };
  InferOutputShapeFn = [](const OrtCustomOp*, OrtShapeInferContext* context) -> OrtStatusPtr {
    return Guard([&] { return InferShapes(context); });
  };
}

}  // namespace minicache::ort
