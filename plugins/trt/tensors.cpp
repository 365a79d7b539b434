#include "trt/tensors.h"

#include <algorithm>

namespace minicache::trt {

ElementType TypeOf(nvinfer1::DataType type) {
  switch (type) {
    case nvinfer1::DataType::kFLOAT:
      return ElementType::kFloat32;
    case nvinfer1::DataType::kHALF:
      return ElementType::kFloat16;
    case nvinfer1::DataType::kBF16:
      return ElementType::kBfloat16;
    case nvinfer1::DataType::kINT8:
      return ElementType::kInt8;
    case nvinfer1::DataType::kINT32:
      return ElementType::kInt32;
    default:
      return ElementType::kOther;
  }
}

Tensor TensorOf(nvinfer1::DataType type, const nvinfer1::Dims& dims, const void* data) {
  Tensor tensor;
  tensor.type = TypeOf(type);
  tensor.data = const_cast<char*>(static_cast<const char*>(data));
  const bool fits = dims.nbDims >= 0 && dims.nbDims <= 5;
  tensor.rank = fits ? dims.nbDims : -1;
  if (fits) std::copy(dims.d, dims.d + dims.nbDims, tensor.shape);
  return tensor;
}

}  // namespace minicache::trt
