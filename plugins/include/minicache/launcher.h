// Launches kernels of a pack (plugins/triton/build.py) on whatever CUDA context is current.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "minicache/launch.h"

struct CUstream_st;  // what cudaStream_t and CUstream point to

namespace minicache::gpu {

using Stream = CUstream_st*;

class KernelPack;

// Its text is a sentence: what went wrong, with which kernel, and what to do.
class GpuError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A kernel pack, and its kernels as modules of every context that launched them. The driver is
// looked for at the first use, so that a launcher may be made where there is none. Any number of
// threads may use one launcher. Nothing here waits for the device.
class Launcher {
 public:
  // Reads kernels.bin; throws GpuError.
  explicit Launcher(const std::string& pack, const std::string& driver = "libcuda.so.1");
  explicit Launcher(std::shared_ptr<const KernelPack> pack,
                    const std::string& driver = "libcuda.so.1");
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Enqueues one launch. A variant that counts on divisible arguments (hint=1) is taken only where
  // they are, else its twin without (hint=0). A grid with a zero launches nothing. Throws GpuError.
  void Enqueue(const Launch& launch, Stream stream) const;
  // Loads the kernel of a launch into the current context: the first launch does, but a stream that
  // is being captured into a graph must not. Throws GpuError.
  void Prepare(const Launch& launch) const;
  // Checks, without a driver, that the pack can run a launch; throws GpuError.
  void Require(const Launch& launch) const;
  // Enqueues a copy within device memory. Throws GpuError.
  void Copy(uint64_t to, uint64_t from, size_t bytes, Stream stream) const;
  // Opens the driver; throws GpuError where there is none.
  void RequireDriver() const;

 private:
  friend class DeviceTable;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace minicache::gpu
