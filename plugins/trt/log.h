// Where sentences about errors go: TensorRT's logger, and exceptions end here.
#pragma once

#include <NvInferRuntime.h>

#include <exception>
#include <string>

namespace minicache::trt {

// What methods return that answer with a number.
inline constexpr int kDone = 0;
inline constexpr int kFailed = -1;

// TensorRT passes it when it loads the library; nullptr: none.
void SetLoggerFinder(nvinfer1::ILoggerFinder* finder) noexcept;

// To the logger of the calling thread's builder or context; without one, to standard error.
// `node` is the layer's name, or empty.
void LogError(const std::string& node, const std::string& sentence) noexcept;

// Runs what may throw and returns its value; an exception is logged, and `failed` returned.
template <class Result, class Body>
Result Guard(const std::string& node, Result failed, const Body& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    LogError(node, error.what());
    return failed;
  }
}

}  // namespace minicache::trt
