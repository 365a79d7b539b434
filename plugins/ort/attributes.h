// Reads a node's attributes through whatever ONNX Runtime offers: kernel info or shape inference.
#pragma once

#include <string>
#include <vector>

#include "minicache/attributes.h"
#include "ort/api.h"

namespace minicache::ort {

RawAttributes ReadAttributes(const OrtKernelInfo* info);
RawAttributes ReadAttributes(OrtShapeInferContext* context);

}  // namespace minicache::ort
