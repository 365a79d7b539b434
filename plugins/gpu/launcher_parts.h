// What a launcher owns; in this order, since each refers to those above.
#pragma once

#include <string>

#include "gpu/driver.h"
#include "gpu/kernel_pack.h"
#include "gpu/module_cache.h"
#include "minicache/launcher.h"

namespace minicache::gpu {

struct Launcher::Parts {
  Parts(const std::string& path, const std::string& library)
      : pack(path), driver(library), modules(pack, driver) {}
  KernelPack pack;
  LazyDriver driver;
  ModuleCache modules;
};

}  // namespace minicache::gpu
