#include "minicache/device_table.h"

#include <utility>

#include "gpu/launcher_parts.h"

namespace minicache::gpu {
namespace {

uint64_t Upload(const Driver& driver, const std::vector<int32_t>& values) {
  const size_t bytes = values.size() * sizeof(int32_t);
  const std::string table = "a table of " + std::to_string(bytes) + " bytes";
  uint64_t address = 0;
  driver.Check(driver.mem_alloc(&address, bytes), table + " does not fit into GPU memory");
  int result = driver.memcpy_htod(address, values.data(), bytes);
  // The copy runs on the default stream and may return before it has landed; kernels run on streams
  // that do not wait for that one. Once per context.
  if (result == kSuccess) result = driver.stream_synchronize(nullptr);
  if (result != kSuccess) driver.mem_free(address);
  driver.Check(result, table + " cannot be copied to the GPU");
  return address;
}

}  // namespace

DeviceTable::DeviceTable(const Launcher& launcher, std::vector<int32_t> values)
    : launcher_(launcher), values_(std::move(values)) {}

DeviceTable::~DeviceTable() {
  for (const auto& item : copies_) {
    const Driver& driver = launcher_.parts_->driver.Get();
    const ContextScope scope(driver, {static_cast<CUctx_st*>(item.second.context), item.first});
    if (scope) driver.mem_free(item.second.address);
  }
}

uint64_t DeviceTable::Address() const {
  if (values_.empty()) return 0;
  const Driver& driver = launcher_.parts_->driver.Get();
  const Context context = driver.Current();
  const std::lock_guard<std::mutex> guard(mutex_);
  auto found = copies_.find(context.id);
  if (found == copies_.end()) {
    found = copies_.emplace(context.id, Copy{context.handle, Upload(driver, values_)}).first;
  }
  return found->second.address;
}

}  // namespace minicache::gpu
