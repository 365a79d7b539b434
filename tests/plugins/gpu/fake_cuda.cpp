// A stand-in for libcuda.so.1: it records calls and plays any device. Images are texts
// "IMAGE label kinds", where kinds has a letter per parameter (p, i, l, f), or compiled kernels,
// whose arguments are then not looked at.
//
// FAKE_CUDA_LOG: file that gets a line per call. FAKE_CUDA_CAPABILITY: 10 * major + minor.
// FAKE_CUDA_SHARED: bytes a block may have. FAKE_CUDA_FAIL: "function:code" fails that function.
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

namespace {

struct Module {
  std::string label, kinds;
};

std::mutex mutex;
std::map<uintptr_t, unsigned long long> ids;  // of contexts that live
unsigned long long next_id = 100;
uint64_t next_address = 0x10000;
thread_local void* current = nullptr;
thread_local void* below = nullptr;  // one level of the stack of contexts

int Number(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

void Log(const char* format, ...) {
  char line[4096];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  const std::lock_guard<std::mutex> guard(mutex);
  const char* path = std::getenv("FAKE_CUDA_LOG");
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, "a");
  std::fprintf(file, "ctx%lu %s\n",
               static_cast<unsigned long>(reinterpret_cast<uintptr_t>(current)), line);
  std::fclose(file);
}

// The code that a function is told to fail with, 0: none.
int Failure(const char* function) {
  const char* value = std::getenv("FAKE_CUDA_FAIL");
  const size_t size = std::strlen(function);
  if (value == nullptr || std::strncmp(value, function, size) != 0 || value[size] != ':') return 0;
  return std::atoi(value + size + 1);
}

}  // namespace

#define FAIL_IF_TOLD(name) \
  if (const int code = Failure(name)) return code

extern "C" {

int cuInit(unsigned) {
  FAIL_IF_TOLD("cuInit");
  return 0;
}
int cuDriverGetVersion(int* version) { return *version = 12040, 0; }
int cuGetErrorName(int error, const char** name) {
  *name = error == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
          : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY"
                       : "CUDA_ERROR_UNKNOWN";
  return 0;
}
int cuGetErrorString(int, const char** text) { return *text = "as told", 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const int capability = Number("FAKE_CUDA_CAPABILITY", 80);
  switch (attribute) {
    case 75:
      return *value = capability / 10, 0;
    case 76:
      return *value = capability % 10, 0;
    case 97:
      return *value = Number("FAKE_CUDA_SHARED", 232448), 0;
    default:
      return 1;
  }
}
int cuCtxSetCurrent(void* context) {
  const std::lock_guard<std::mutex> guard(mutex);
  if (context != nullptr && ids.emplace(reinterpret_cast<uintptr_t>(context), next_id).second)
    next_id++;
  current = context;
  return 0;
}
int cuCtxDestroy_v2(void* context) {
  const std::lock_guard<std::mutex> guard(mutex);
  ids.erase(reinterpret_cast<uintptr_t>(context));
  if (current == context) current = nullptr;
  return 0;
}
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int cuCtxGetId(void* context, unsigned long long* id) {
  const std::lock_guard<std::mutex> guard(mutex);
  const auto found = ids.find(reinterpret_cast<uintptr_t>(context));
  if (found == ids.end()) return 201;
  return *id = found->second, 0;
}
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuCtxPushCurrent_v2(void* context) {
  const std::lock_guard<std::mutex> guard(mutex);
  if (ids.count(reinterpret_cast<uintptr_t>(context)) == 0) return 201;
  below = current;
  current = context;
  return 0;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = current;
  current = below;
  return 0;
}
int cuModuleLoadDataEx(void** module, const void* image, unsigned count, int* options,
                       void** values) {
  if (const int code = Failure("cuModuleLoadDataEx")) {
    if (count == 2 && options[0] == 5)
      std::snprintf(static_cast<char*>(values[0]), 64, "line 7: bad opcode");
    return code;
  }
  auto* made = new Module;
  const char* bytes = static_cast<const char*>(image);
  if (std::memcmp(bytes,
                  "\x7f"
                  "ELF",
                  4) == 0) {
    made->label = "cubin";
  } else if (std::strstr(bytes, ".visible .entry") != nullptr) {
    made->label = "PTX";
  } else {
    std::string word;
    std::istringstream text(bytes);
    text >> word >> made->label >> made->kinds;
    if (word != "IMAGE") return delete made, 200;
  }
  *module = made;
  Log("load %s", made->label.c_str());
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  FAIL_IF_TOLD("cuModuleGetFunction");
  *function = module;
  Log("function %s", name);
  return 0;
}
int cuModuleUnload(void* module) {
  Log("unload %s", static_cast<Module*>(module)->label.c_str());
  delete static_cast<Module*>(module);
  return 0;
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  FAIL_IF_TOLD("cuFuncSetAttribute");
  Log("attribute %d=%d", attribute, value);
  return 0;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** arguments, void** extra) {
  FAIL_IF_TOLD("cuLaunchKernel");
  const Module& module = *static_cast<Module*>(function);
  std::ostringstream text;
  for (size_t i = 0; i < module.kinds.size(); i++) {
    text << " " << module.kinds[i] << ":";
    switch (module.kinds[i]) {
      case 'p':
        text << std::hex << *static_cast<uint64_t*>(arguments[i]) << std::dec;
        break;
      case 'i':
        text << *static_cast<int32_t*>(arguments[i]);
        break;
      case 'l':
        text << *static_cast<int64_t*>(arguments[i]);
        break;
      default:
        text << *static_cast<float*>(arguments[i]);
    }
  }
  Log("launch %s grid %u,%u,%u block %u,%u,%u shared %u stream %lx extra %d arguments%s",
      module.label.c_str(), gx, gy, gz, bx, by, bz, shared,
      static_cast<unsigned long>(reinterpret_cast<uintptr_t>(stream)), extra != nullptr,
      text.str().c_str());
  return 0;
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  FAIL_IF_TOLD("cuMemAlloc_v2");
  {
    const std::lock_guard<std::mutex> guard(mutex);
    *address = next_address += 0x1000;
  }
  Log("allocate %zu at %lx", bytes, static_cast<unsigned long>(*address));
  return 0;
}
int cuMemFree_v2(uint64_t address) {
  return Log("free %lx", static_cast<unsigned long>(address)), 0;
}
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  FAIL_IF_TOLD("cuMemcpyHtoD_v2");
  std::ostringstream text;
  for (size_t i = 0; i < bytes / 4; i++) text << " " << static_cast<const int32_t*>(from)[i];
  Log("copy to %lx:%s", static_cast<unsigned long>(to), text.str().c_str());
  return 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  FAIL_IF_TOLD("cuMemcpyDtoDAsync_v2");
  Log("copy %zu from %lx to %lx stream %lx", bytes, static_cast<unsigned long>(from),
      static_cast<unsigned long>(to),
      static_cast<unsigned long>(reinterpret_cast<uintptr_t>(stream)));
  return 0;
}
int cuStreamSynchronize(void* stream) {
  return Log("synchronise %lx", static_cast<unsigned long>(reinterpret_cast<uintptr_t>(stream))), 0;
}

}  // extern "C"
