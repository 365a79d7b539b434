// What a launcher owns; in this order, since each refers to those above.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "gpu/driver.h"
#include "gpu/kernel_pack.h"
#include "gpu/module_cache.h"
#include "minicache/launcher.h"

namespace minicache::gpu {

struct Launcher::Parts {
  Parts(std::shared_ptr<const KernelPack> shared, const std::string& library)
      : pack(std::move(shared)), driver(library), modules(*pack, driver) {}
  const std::shared_ptr<const KernelPack> pack;
  LazyDriver driver;
  ModuleCache modules;
};

}  // namespace minicache::gpu
