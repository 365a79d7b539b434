#include "trt/kernel_registry.h"

#include <sys/stat.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

namespace minicache::trt {
namespace {

constexpr char kVariable[] = "MINICACHE_KERNELS";
constexpr char kPackFile[] = "/kernels.bin";

bool IsFolder(const std::string& path) {
  struct stat found = {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

}  // namespace

std::string DigestOf(const std::vector<char>& bytes) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  char text[64] = {};
  std::snprintf(text, sizeof text, "%016" PRIx64 "-%zu", hash, bytes.size());
  return text;
}

KernelRegistry& KernelRegistry::Instance() {
  static KernelRegistry registry;
  return registry;
}

std::shared_ptr<const EngineKernels> KernelRegistry::Share(const std::string& name,
                                                           std::vector<char> bytes) {
  std::string digest = DigestOf(bytes);
  const std::lock_guard<std::mutex> guard(mutex_);
  std::weak_ptr<const EngineKernels>& held = kernels_[digest];
  std::shared_ptr<const EngineKernels> kernels = held.lock();
  if (kernels == nullptr) {
    kernels = std::make_shared<const EngineKernels>(
        std::move(digest), std::make_shared<const gpu::KernelPack>(name, std::move(bytes)));
    held = kernels;
  }
  return kernels;
}

std::shared_ptr<const EngineKernels> KernelRegistry::Find(const std::string& digest) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = kernels_.find(digest);
  return found == kernels_.end() ? nullptr : found->second.lock();
}

std::shared_ptr<const EngineKernels> KernelsToBuildWith() {
  const char* value = std::getenv(kVariable);
  const std::string variable = std::string("the environment variable ") + kVariable;
  if (value == nullptr || *value == '\0') {
    throw gpu::GpuError(variable +
                        " is not set; an engine takes its kernels along: set it to the folder "
                        "'kernels' of a model exported with --target tensorrt");
  }
  const std::string path = IsFolder(value) ? value + std::string(kPackFile) : value;
  try {
    return KernelRegistry::Instance().Share(path, gpu::ReadPackFile(path));
  } catch (const gpu::GpuError& error) {
    throw gpu::GpuError(variable + " names '" + value + "': " + error.what());
  }
}

}  // namespace minicache::trt
