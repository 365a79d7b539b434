// The kernels of engines. A pack is large, so that one node of an engine carries it and the others
// know its digest; all nodes of all engines with the same pack share one launcher.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpu/kernel_pack.h"
#include "minicache/launcher.h"

namespace minicache::trt {

struct EngineKernels {
  EngineKernels(std::string id, std::shared_ptr<const gpu::KernelPack> kernels)
      : digest(std::move(id)), pack(std::move(kernels)), launcher(pack) {}

  const std::string digest;
  const std::shared_ptr<const gpu::KernelPack> pack;
  const gpu::Launcher launcher;
};

// Tells packs apart; nothing else is asked of it.
std::string DigestOf(const std::vector<char>& bytes);

// Thread-safe. It keeps no kernels alive: nodes do.
class KernelRegistry {
 public:
  // That of the process.
  static KernelRegistry& Instance();

  // The kernels in these bytes; `name` tells in errors where they come from. Throws gpu::GpuError.
  std::shared_ptr<const EngineKernels> Share(const std::string& name, std::vector<char> bytes);
  // nullptr where no living node carries them.
  std::shared_ptr<const EngineKernels> Find(const std::string& digest);

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const EngineKernels>> kernels_;
};

// The kernels that an engine is to be built with: of the file or folder that the environment
// variable MINICACHE_KERNELS names. Throws gpu::GpuError.
std::shared_ptr<const EngineKernels> KernelsToBuildWith();

}  // namespace minicache::trt
