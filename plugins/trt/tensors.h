// TensorRT's descriptions of tensors as the operator sees them.
#pragma once

#include <NvInferRuntime.h>

#include "minicache/tensors.h"

namespace minicache::trt {

// kOther for what no input takes.
ElementType TypeOf(nvinfer1::DataType type);

Tensor TensorOf(nvinfer1::DataType type, const nvinfer1::Dims& dims, const void* data);

}  // namespace minicache::trt
