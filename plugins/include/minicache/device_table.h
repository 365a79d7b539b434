// Integers that kernels read and that never change, such as the head permutations of a node.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "minicache/launcher.h"

namespace minicache::gpu {

// One copy per context, uploaded at the first use there and freed with the table. Thread-safe.
class DeviceTable {
 public:
  // The launcher must outlive the table.
  DeviceTable(const Launcher& launcher, std::vector<int32_t> values);
  ~DeviceTable();
  DeviceTable(const DeviceTable&) = delete;
  DeviceTable& operator=(const DeviceTable&) = delete;

  // The address in the current context, 0 for an empty table. The first call in a context waits for
  // the upload; it must not happen while a stream is captured. Throws GpuError.
  uint64_t Address() const;

 private:
  struct Copy {
    void* context;
    uint64_t address;
  };
  const Launcher& launcher_;
  const std::vector<int32_t> values_;
  mutable std::mutex mutex_;
  mutable std::map<uint64_t, Copy> copies_;  // by identity of the context
};

}  // namespace minicache::gpu
