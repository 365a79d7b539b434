#include "gpu/module_cache.h"

#include <array>

#include "gpu/choose_image.h"

namespace minicache::gpu {
namespace {

constexpr uint32_t kDefaultShared = 48 * 1024;  // more must be asked for

std::string Name(const Kernel& kernel, const KernelImage& image) {
  return "kernel '" + kernel.key + "' (" + (image.is_ptx ? "PTX of sm_" : "sm_") +
         std::to_string(image.arch) + ")";
}

std::string Remedy(int result) {
  switch (result) {
    case kInvalidImage:
    case kNoBinaryForGpu:
    case kUnsupportedPtxVersion:
      return "; the driver may be older than the kernels: sm_80 to sm_90 and PTX need CUDA 12.0 "
             "(R525), sm_100 and sm_120 need CUDA 12.8 (R570)";
    default:
      return "";
  }
}

// Unloads a module unless it is kept.
struct Guard {
  const Driver& driver;
  CUmod_st* module;
  ~Guard() {
    if (module != nullptr) driver.module_unload(module);
  }
};

}  // namespace

ModuleCache::~ModuleCache() {
  for (const auto& item : entries_) {
    // A context that is gone has taken its modules along.
    const Driver& driver = driver_.Get();
    const ContextScope scope(driver, item.second.context);
    if (scope) driver.module_unload(item.second.module);
  }
}

LoadedKernel ModuleCache::Get(const Kernel& kernel) const {
  const Context context = driver_.Get().Current();
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto key = std::make_pair(context.id, &kernel);
  auto found = entries_.find(key);
  if (found == entries_.end()) found = entries_.emplace(key, Load(kernel, context)).first;
  return found->second.loaded;
}

ModuleCache::Entry ModuleCache::Load(const Kernel& kernel, const Context& context) const {
  const Driver& driver = driver_.Get();
  const auto major = static_cast<uint32_t>(driver.Attribute(kComputeCapabilityMajor));
  const auto minor = static_cast<uint32_t>(driver.Attribute(kComputeCapabilityMinor));
  const KernelImage& image = ChooseImage(kernel, 10 * major + minor);
  pack_.CheckImage(kernel, image);
  const std::string name = Name(kernel, image);
  const auto most = static_cast<uint32_t>(driver.Attribute(kMaxSharedMemoryPerBlockOptin));
  if (image.shared > most) {
    throw GpuError(name + " needs " + std::to_string(image.shared) +
                   " bytes of shared memory, this GPU gives a block " + std::to_string(most) +
                   "; build the kernels for sm_" + std::to_string(10 * major + minor));
  }
  std::array<char, 2048> log{};
  int options[] = {kJitErrorLogBuffer, kJitErrorLogBufferSizeBytes};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  Entry entry{{nullptr, &image}, nullptr, context};
  if (const int result =
          driver.module_load_data_ex(&entry.module, image.data, 2, options, values)) {
    const std::string said = log[0] == '\0' ? "" : std::string(": ") + log.data();
    throw GpuError(name + " cannot be loaded (" + driver.Describe(result) + said + ")" +
                   Remedy(result));
  }
  Guard unless_kept{driver, entry.module};
  driver.Check(
      driver.module_get_function(&entry.loaded.function, entry.module, kernel.symbol.c_str()),
      name + " has no function '" + kernel.symbol + "'");
  if (image.shared > kDefaultShared) {
    driver.Check(driver.func_set_attribute(entry.loaded.function, kMaxDynamicSharedSizeBytes,
                                           static_cast<int>(image.shared)),
                 name + " gets no " + std::to_string(image.shared) + " bytes of shared memory");
  }
  unless_kept.module = nullptr;
  return entry;
}

}  // namespace minicache::gpu
