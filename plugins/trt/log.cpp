#include "trt/log.h"

#include <atomic>
#include <cstdio>

#include "minicache/contract.h"

namespace minicache::trt {
namespace {

std::atomic<nvinfer1::ILoggerFinder*> finder_in_use{nullptr};

}  // namespace

void SetLoggerFinder(nvinfer1::ILoggerFinder* finder) noexcept { finder_in_use = finder; }

void LogError(const std::string& node, const std::string& sentence) noexcept {
  try {
    const std::string text =
        std::string(kOpName) + (node.empty() ? "" : " '" + node + "'") + ": " + sentence;
    nvinfer1::ILoggerFinder* const finder = finder_in_use;
    nvinfer1::ILogger* const logger = finder == nullptr ? nullptr : finder->findLogger();
    if (logger != nullptr) {
      logger->log(nvinfer1::ILogger::Severity::kERROR, text.c_str());
    } else {
      std::fprintf(stderr, "%s\n", text.c_str());
    }
  } catch (const std::exception&) {  // no memory for a sentence: the error's code has to do
  }
}

}  // namespace minicache::trt
