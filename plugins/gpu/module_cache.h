// The kernels that were loaded, per context.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "gpu/driver.h"
#include "gpu/kernel_pack.h"

namespace minicache::gpu {

struct LoadedKernel {
  CUfunc_st* function;
  const KernelImage* image;
};

// Thread-safe; one thread loads at a time, the others wait for it.
class ModuleCache {
 public:
  ModuleCache(const KernelPack& pack, const LazyDriver& driver) : pack_(pack), driver_(driver) {}
  ~ModuleCache();
  ModuleCache(const ModuleCache&) = delete;
  ModuleCache& operator=(const ModuleCache&) = delete;

  // The kernel in the current context, loaded there if need be. Throws GpuError.
  LoadedKernel Get(const Kernel& kernel) const;

 private:
  struct Entry {
    LoadedKernel loaded;
    CUmod_st* module;
    Context context;
  };
  Entry Load(const Kernel& kernel, const Context& context) const;

  const KernelPack& pack_;
  const LazyDriver& driver_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<uint64_t, const Kernel*>, Entry> entries_;
};

}  // namespace minicache::gpu
