// What is used of the CUDA driver, declared here so that no CUDA toolkit is needed to build, and
// looked up at run time so that the library loads where there is no driver.
// Names and numbers: CUDA Driver API reference manual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "minicache/launcher.h"

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;

namespace minicache::gpu {

// Values of CUresult, CUdevice_attribute, CUfunction_attribute and CUjit_option that are used.
constexpr int kSuccess = 0;
constexpr int kInvalidImage = 200;
constexpr int kNoBinaryForGpu = 209;
constexpr int kUnsupportedPtxVersion = 222;
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;
constexpr int kMaxSharedMemoryPerBlockOptin = 97;
constexpr int kMaxDynamicSharedSizeBytes = 8;
constexpr int kJitErrorLogBuffer = 5;
constexpr int kJitErrorLogBufferSizeBytes = 6;

// A context by its handle, and by the number that tells it from a later one at the same address.
struct Context {
  CUctx_st* handle;
  uint64_t id;
};

class Driver {
 public:
  explicit Driver(const std::string& library);

  int (*init)(unsigned flags);
  int (*driver_get_version)(int* version);
  int (*get_error_name)(int error, const char** name);
  int (*get_error_string)(int error, const char** text);
  int (*device_get_attribute)(int* value, int attribute, int device);
  int (*ctx_get_current)(CUctx_st** context);
  int (*ctx_get_id)(CUctx_st* context, unsigned long long* id);
  int (*ctx_get_device)(int* device);
  int (*ctx_push_current)(CUctx_st* context);
  int (*ctx_pop_current)(CUctx_st** context);
  int (*module_load_data_ex)(CUmod_st** module, const void* image, unsigned count, int* options,
                             void** values);
  int (*module_get_function)(CUfunc_st** function, CUmod_st* module, const char* name);
  int (*module_unload)(CUmod_st* module);
  int (*func_set_attribute)(CUfunc_st* function, int attribute, int value);
  int (*launch_kernel)(CUfunc_st* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                       CUstream_st* stream, void** arguments, void** extra);
  int (*mem_alloc)(uint64_t* address, size_t bytes);
  int (*mem_free)(uint64_t address);
  int (*memcpy_htod)(uint64_t to, const void* from, size_t bytes);
  int (*memcpy_dtod_async)(uint64_t to, uint64_t from, size_t bytes, CUstream_st* stream);
  int (*stream_synchronize)(CUstream_st* stream);

  // Throws GpuError unless `result` is success; `doing` begins the sentence.
  void Check(int result, const std::string& doing) const;
  // "CUDA_ERROR_X: text, driver for CUDA 12.4"
  std::string Describe(int result) const;
  Context Current() const;
  int Attribute(int attribute) const;  // of the current context's device
};

// Makes a context current while it lives, if it is still the one that is meant.
class ContextScope {
 public:
  ContextScope(const Driver& driver, const Context& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  explicit operator bool() const { return alive_; }

 private:
  const Driver& driver_;
  bool pushed_ = false;
  bool alive_ = false;
};

// A driver that is opened when first asked for; a failure is raised again at each request.
class LazyDriver {
 public:
  explicit LazyDriver(std::string library) : library_(std::move(library)) {}
  const Driver& Get() const;

 private:
  const std::string library_;
  mutable std::mutex mutex_;
  mutable std::optional<Driver> driver_;
};

}  // namespace minicache::gpu
