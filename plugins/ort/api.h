// The C++ API of ONNX Runtime without a link to it: RegisterCustomOps hands the table over.
#pragma once

#ifndef ORT_API_MANUAL_INIT
#define ORT_API_MANUAL_INIT
#endif
#include <onnxruntime_cxx_api.h>
#undef ORT_API_MANUAL_INIT
