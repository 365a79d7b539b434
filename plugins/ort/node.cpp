#include "ort/node.h"

#include <atomic>
#include <cstdint>

#include "ort/attributes.h"

namespace minicache::ort {
namespace {

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
  const bool deltas = raw.delta_bits != 0 || raw.delta_rank != 0;
  const size_t states = 2 + (raw.mode != "exact" ? 4 : 0) + (retains ? 5 : 0) + (deltas ? 4 : 0) +
                        (raw.evicts != 0 ? 1 : 0) + (raw.observes != 0 ? 1 : 0);
  if (count < states + others + 5) {
    return Fail(ORT_INVALID_ARGUMENT, "the node has " + std::to_string(count) +
                                          " inputs, fewer than its attributes ask for");
  }
  for (size_t i = 0; i < states; i++) forward(count - others - states + i, 1 + i);
  return nullptr;
}

}  // namespace

OrtStatusPtr Fail(OrtErrorCode code, const std::string& message) {
  return Ort::GetApi().CreateStatus(code, (std::string(kOpName) + ": " + message).c_str());
}

Node::Node(const OrtKernelInfo* info) {
  const Ort::ConstKernelInfo node(info);
  const std::string error = CheckAttributes(ReadAttributes(info), &attributes);
  const std::string where = std::string(kOpName) + ": ";
  if (!error.empty()) throw Ort::Exception(where + error, ORT_NOT_IMPLEMENTED);
  slots = InputSlots(attributes);
  if (node.GetInputCount() != slots.size()) {
    std::string names;
    for (const Slot& slot : slots) names += (names.empty() ? "" : ", ") + slot.name;
    throw Ort::Exception(where + "the node has " + std::to_string(node.GetInputCount()) +
                             " inputs, its attributes ask for " + std::to_string(slots.size()) +
                             ": " + names,
                         ORT_INVALID_ARGUMENT);
  }
  size_t outputs = 1;
  for (const Slot& slot : slots) outputs += attributes.writes() && IsState(slot.id) ? 1 : 0;
  if (node.GetOutputCount() != outputs) {
    throw Ort::Exception(where + "the node has " + std::to_string(node.GetOutputCount()) +
                             " outputs, its attributes ask for " + std::to_string(outputs),
                         ORT_INVALID_ARGUMENT);
  }
}

Tensors Node::Inputs(const Ort::KernelContext& context) const {
  Tensors tensors;
  tensors.new_keys.resize(static_cast<size_t>(attributes.group_size - 1));
  tensors.new_values.resize(static_cast<size_t>(attributes.group_size - 1));
  for (size_t i = 0; i < slots.size(); i++) tensors.at(slots[i]) = TensorOf(context.GetInput(i));
  return tensors;
}

char* Node::Output(const Ort::KernelContext& context, size_t index, const Tensor& like) {
  auto output = context.GetOutput(index, like.shape, static_cast<size_t>(like.rank));
  if (static_cast<OrtValue*>(output) == nullptr) {
    throw Ort::Exception(
        index == 0 ? "the attention output is missing" : "a present_* output is missing",
        ORT_INVALID_ARGUMENT);
  }
  return static_cast<char*>(output.GetTensorMutableRawData());
}

OpSurface::OpSurface() : OrtCustomOp{} {
  version = ORT_API_VERSION;
  GetName = [](const OrtCustomOp*) -> const char* { return kOpName; };
  GetInputType = GetOutputType = [](const OrtCustomOp*, size_t) {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  };
  GetInputTypeCount = GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  GetInputCharacteristic =
      GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_VARIADIC; };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  GetVariadicInputMinArity = GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicInputHomogeneity = GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  InferOutputShapeFn = [](const OrtCustomOp*, OrtShapeInferContext* context) -> OrtStatusPtr {
    return Guard([&] { return InferShapes(context); });
  };
}

}  // namespace minicache::ort
