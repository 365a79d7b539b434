// The file kernels.bin: compiled kernels and what is needed to launch them. Written by
// plugins/triton/kernel_pack.py, where the layout is described.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "minicache/launch.h"

namespace minicache::gpu {

struct KernelArgument {
  std::string name;
  LaunchArgument::Kind kind;
  uint32_t divisor;  // the compiled code counts on a multiple of it
};

struct KernelImage {
  uint32_t arch;  // 10 * major + minor of the compute capability
  bool is_ptx;    // ends with a zero byte
  uint32_t warps;
  uint32_t shared;  // bytes, dynamic
  const char* data;
  size_t size;
  uint32_t checksum;
};

struct Kernel {
  std::string key;
  std::string symbol;
  std::vector<KernelArgument> arguments;
  uint32_t null_pointers;  // Triton's scratch parameters, which come after the arguments
  std::vector<KernelImage> images;
};

// One kernel as compiled with and without counting on divisible arguments; either may be absent.
struct KernelTwins {
  const Kernel* hinted;
  const Kernel* plain;
};

// The bytes of a file; throws GpuError.
std::vector<char> ReadPackFile(const std::string& path);

class KernelPack {
 public:
  // `name` tells in errors where the bytes come from. Throws GpuError.
  KernelPack(std::string name, std::vector<char> bytes);
  explicit KernelPack(const std::string& path) : KernelPack(path, ReadPackFile(path)) {}
  KernelPack(const KernelPack&) = delete;
  KernelPack& operator=(const KernelPack&) = delete;

  // By key, whatever its hint; both null where there is none.
  KernelTwins Find(std::string_view key) const;
  // Throws GpuError where the image is not what was written.
  void CheckImage(const Kernel& kernel, const KernelImage& image) const;
  const std::string& name() const { return name_; }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  const std::string name_;
  const std::vector<char> bytes_;
  std::vector<Kernel> kernels_;
  std::unordered_map<std::string_view, KernelTwins> twins_;  // by the key without its hint
};

}  // namespace minicache::gpu
