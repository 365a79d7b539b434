#include "minicache/launcher.h"

#include <utility>

#include "gpu/launcher_parts.h"

namespace minicache::gpu {
namespace {

constexpr uint32_t kThreadsPerWarp = 32;
constexpr uint32_t kMaxGrid[3] = {0x7FFFFFFF, 65535, 65535};  // CUDA: table of compute capabilities

const char* KindName(LaunchArgument::Kind kind) {
  switch (kind) {
    case LaunchArgument::kPointer:
      return "a pointer";
    case LaunchArgument::kInt32:
      return "a 32-bit integer";
    case LaunchArgument::kInt64:
      return "a 64-bit integer";
    case LaunchArgument::kFloat32:
      return "a float";
  }
  return "of unknown kind";
}

void CheckArguments(const Kernel& kernel, const Launch& launch) {
  if (launch.arguments.size() != kernel.arguments.size()) {
    throw GpuError("kernel '" + kernel.key + "' takes " + std::to_string(kernel.arguments.size()) +
                   " arguments, " + std::to_string(launch.arguments.size()) +
                   " were given; library and kernel pack do not belong together");
  }
  for (size_t i = 0; i < kernel.arguments.size(); i++) {
    if (launch.arguments[i].kind == kernel.arguments[i].kind) continue;
    throw GpuError("argument '" + kernel.arguments[i].name + "' of kernel '" + kernel.key +
                   "' is " + KindName(kernel.arguments[i].kind) + ", " +
                   KindName(launch.arguments[i].kind) +
                   " was given; library and kernel pack do not belong together");
  }
}

bool IsMultiple(const LaunchArgument& argument, uint32_t divisor) {
  switch (argument.kind) {
    case LaunchArgument::kPointer:
      return argument.pointer % divisor == 0;
    case LaunchArgument::kInt32:
      return argument.int32 % static_cast<int32_t>(divisor) == 0;
    case LaunchArgument::kInt64:
      return argument.int64 % static_cast<int64_t>(divisor) == 0;
    default:
      return true;
  }
}

// The first argument that is not the multiple which the compiled code counts on; its index.
size_t FindIndivisible(const Kernel& kernel, const Launch& launch) {
  size_t i = 0;
  while (i < kernel.arguments.size() &&
         IsMultiple(launch.arguments[i], kernel.arguments[i].divisor)) {
    i++;
  }
  return i;
}

const Kernel& Choose(const KernelPack& pack, const Launch& launch) {
  const KernelTwins twins = pack.Find(launch.key);
  if (twins.hinted == nullptr && twins.plain == nullptr) {
    throw GpuError("kernel pack '" + pack.name() + "' has no kernel '" + launch.key +
                   "'; export the model again, or build the pack with this variant");
  }
  const bool plain_named = twins.plain != nullptr && launch.key == twins.plain->key;
  if (twins.hinted == nullptr || plain_named) {
    CheckArguments(*twins.plain, launch);
    return *twins.plain;
  }
  CheckArguments(*twins.hinted, launch);
  const size_t bad = FindIndivisible(*twins.hinted, launch);
  if (bad == launch.arguments.size()) return *twins.hinted;
  if (twins.plain != nullptr) {
    CheckArguments(*twins.plain, launch);
    return *twins.plain;
  }
  const KernelArgument& argument = twins.hinted->arguments[bad];
  const bool pointer = argument.kind == LaunchArgument::kPointer;
  throw GpuError("argument '" + argument.name + "' of kernel '" + twins.hinted->key + "' is " +
                 (pointer ? "not aligned to " : "not a multiple of ") +
                 std::to_string(argument.divisor) + (pointer ? " bytes" : "") +
                 ", and the pack has no variant without that need (hint=0); " +
                 (pointer ? "give the tensor an aligned address" : "build the pack with it"));
}

void CheckGrid(const Launch& launch) {
  for (int i = 0; i < 3; i++) {
    if (launch.grid[i] <= kMaxGrid[i]) continue;
    throw GpuError("kernel '" + launch.key + "' would get " + std::to_string(launch.grid[i]) +
                   " blocks along " + "xyz"[i] + ", CUDA allows " + std::to_string(kMaxGrid[i]) +
                   "; use a smaller batch or fewer new tokens per call");
  }
}

}  // namespace

Launcher::Launcher(const std::string& pack, const std::string& driver)
    : Launcher(std::make_shared<const KernelPack>(pack), driver) {}

Launcher::Launcher(std::shared_ptr<const KernelPack> pack, const std::string& driver)
    : parts_(std::make_unique<Parts>(std::move(pack), driver)) {}

Launcher::~Launcher() = default;

void Launcher::Enqueue(const Launch& launch, Stream stream) const {
  const Kernel& kernel = Choose(*parts_->pack, launch);
  if (launch.grid[0] == 0 || launch.grid[1] == 0 || launch.grid[2] == 0) return;
  CheckGrid(launch);
  const LoadedKernel loaded = parts_->modules.Get(kernel);
  uint64_t null = 0;
  std::vector<void*> values;
  values.reserve(launch.arguments.size() + kernel.null_pointers);
  for (const LaunchArgument& argument : launch.arguments) {
    // The driver reads as many bytes as the parameter has; all members of the union begin alike.
    values.push_back(const_cast<uint64_t*>(&argument.pointer));
  }
  values.insert(values.end(), kernel.null_pointers, &null);
  const Driver& driver = parts_->driver.Get();
  const int result = driver.launch_kernel(loaded.function, launch.grid[0], launch.grid[1],
                                          launch.grid[2], loaded.image->warps * kThreadsPerWarp, 1,
                                          1, loaded.image->shared, stream, values.data(), nullptr);
  if (result != kSuccess) {
    throw GpuError("kernel '" + kernel.key + "' cannot be launched (" + driver.Describe(result) +
                   "); an earlier launch may have failed, CUDA_LAUNCH_BLOCKING=1 tells which");
  }
}

void Launcher::Prepare(const Launch& launch) const {
  parts_->modules.Get(Choose(*parts_->pack, launch));
}

void Launcher::Require(const Launch& launch) const {
  Choose(*parts_->pack, launch);
  CheckGrid(launch);
}

void Launcher::Copy(uint64_t to, uint64_t from, size_t bytes, Stream stream) const {
  const Driver& driver = parts_->driver.Get();
  driver.Check(driver.memcpy_dtod_async(to, from, bytes, stream),
               std::to_string(bytes) + " bytes cannot be copied on the GPU");
}

void Launcher::RequireDriver() const { parts_->driver.Get(); }

}  // namespace minicache::gpu
