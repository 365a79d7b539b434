#include "gpu/driver.h"

#include <dlfcn.h>

namespace minicache::gpu {
namespace {

template <typename Function>
void Find(void* library, const std::string& path, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  if (*function == nullptr) {
    throw GpuError("the CUDA driver " + path + " has no function " + name +
                   ": it is older than CUDA 12.0; update it to R525 or newer");
  }
}

}  // namespace

Driver::Driver(const std::string& path) {
  // Never closed: the driver keeps threads and handlers of its own until the process ends.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw GpuError(path + " was not found (" + (reason == nullptr ? "no reason given" : reason) +
                   "): install the NVIDIA driver, or run on the CPU instead");
  }
  Find(library, path, "cuInit", &init);
  Find(library, path, "cuDriverGetVersion", &driver_get_version);
  Find(library, path, "cuGetErrorName", &get_error_name);
  Find(library, path, "cuGetErrorString", &get_error_string);
  Find(library, path, "cuDeviceGetAttribute", &device_get_attribute);
  Find(library, path, "cuCtxGetCurrent", &ctx_get_current);
  Find(library, path, "cuCtxGetId", &ctx_get_id);
  Find(library, path, "cuCtxGetDevice", &ctx_get_device);
  Find(library, path, "cuCtxPushCurrent_v2", &ctx_push_current);
  Find(library, path, "cuCtxPopCurrent_v2", &ctx_pop_current);
  Find(library, path, "cuModuleLoadDataEx", &module_load_data_ex);
  Find(library, path, "cuModuleGetFunction", &module_get_function);
  Find(library, path, "cuModuleUnload", &module_unload);
  Find(library, path, "cuFuncSetAttribute", &func_set_attribute);
  Find(library, path, "cuLaunchKernel", &launch_kernel);
  Find(library, path, "cuMemAlloc_v2", &mem_alloc);
  Find(library, path, "cuMemFree_v2", &mem_free);
  Find(library, path, "cuMemcpyHtoD_v2", &memcpy_htod);
  Find(library, path, "cuMemcpyDtoDAsync_v2", &memcpy_dtod_async);
  Find(library, path, "cuStreamSynchronize", &stream_synchronize);
  Check(init(0), "the CUDA driver does not start");
}

std::string Driver::Describe(int result) const {
  const char *name = nullptr, *text = nullptr;
  int version = 0;
  get_error_name(result, &name);
  get_error_string(result, &text);
  driver_get_version(&version);
  return (name == nullptr ? "error " + std::to_string(result) : std::string(name)) +
         (text == nullptr ? "" : std::string(": ") + text) + ", driver for CUDA " +
         std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

void Driver::Check(int result, const std::string& doing) const {
  if (result != kSuccess) throw GpuError(doing + " (" + Describe(result) + ")");
}

Context Driver::Current() const {
  Context context{};
  Check(ctx_get_current(&context.handle), "the current CUDA context cannot be read");
  if (context.handle == nullptr) {
    throw GpuError(
        "this thread has no current CUDA context; call cudaSetDevice or cuCtxSetCurrent on it "
        "first");
  }
  unsigned long long id = 0;
  Check(ctx_get_id(context.handle, &id), "the identity of the CUDA context cannot be read");
  context.id = id;
  return context;
}

int Driver::Attribute(int attribute) const {
  int device = 0, value = 0;
  Check(ctx_get_device(&device), "the device of the CUDA context cannot be read");
  Check(device_get_attribute(&value, attribute, device),
        "attribute " + std::to_string(attribute) + " of CUDA device " + std::to_string(device) +
            " cannot be read");
  return value;
}

ContextScope::ContextScope(const Driver& driver, const Context& context) : driver_(driver) {
  pushed_ = driver.ctx_push_current(context.handle) == kSuccess;
  if (!pushed_) return;
  unsigned long long id = 0;
  alive_ = driver.ctx_get_id(context.handle, &id) == kSuccess && id == context.id;
}

ContextScope::~ContextScope() {
  CUctx_st* popped = nullptr;
  if (pushed_) driver_.ctx_pop_current(&popped);
}

const Driver& LazyDriver::Get() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!driver_) driver_.emplace(library_);
  return *driver_;
}

}  // namespace minicache::gpu
