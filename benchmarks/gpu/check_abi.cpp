// What gpu_check.py calls: the plan and the launcher, without ONNX Runtime.
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "gpu/plan_text.h"
#include "minicache/device_table.h"
#include "minicache/launcher.h"

#define CHECK_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using minicache::Launch;
using minicache::LaunchArgument;
using minicache::gpu::DeviceTable;
using minicache::gpu::Launcher;

std::string& LastError() {
  static thread_local std::string error;
  return error;
}

// What `body` returns, or `failed` where it throws.
template <class Body, class Result>
Result Guard(const Body& body, Result failed) {
  try {
    return body();
  } catch (const std::exception& error) {
    LastError() = error.what();
    return failed;
  }
}

}  // namespace

// As libminicache_ort.so has it, so that minicache.plugins.gpu_plan asks either.
CHECK_EXPORT const char* minicache_gpu_plan(const char* request) {
  static thread_local std::string answer;
  answer = minicache::PlanText(request);
  return answer.c_str();
}

// Why the last call of this thread failed.
CHECK_EXPORT const char* check_error() { return LastError().c_str(); }

// A launcher of kernels.bin; null where it cannot be read. It lives as long as the process.
CHECK_EXPORT const Launcher* check_open(const char* pack) {
  return Guard([&] { return static_cast<const Launcher*>(new Launcher(pack)); },
               static_cast<const Launcher*>(nullptr));
}

// Address of a node's table on the device, for as long as the process lives; 0 where it fails.
CHECK_EXPORT uint64_t check_table(const Launcher* launcher, const int32_t* values, int64_t count) {
  return Guard(
      [&] {
        const std::vector<int32_t> table(values, values + count);
        return (new DeviceTable(*launcher, table))->Address();
      },
      uint64_t{0});
}

CHECK_EXPORT std::vector<Launch>* check_list() { return new std::vector<Launch>; }

CHECK_EXPORT void check_free(std::vector<Launch>* list) { delete list; }

// `kinds` is a letter per argument, `values` their bits, those of a float in the low half.
CHECK_EXPORT void check_add(std::vector<Launch>* list, const char* key, uint32_t x, uint32_t y,
                            uint32_t z, const char* kinds, const uint64_t* values) {
  Launch launch = {key, {x, y, z}, {}};
  for (size_t i = 0; kinds[i] != 0; i++) {
    LaunchArgument argument = {static_cast<LaunchArgument::Kind>(kinds[i]), {0}};
    argument.pointer = values[i];
    launch.arguments.push_back(argument);
  }
  list->push_back(std::move(launch));
}

// Loads the kernels of a list; 0 where it fails.
CHECK_EXPORT int check_prepare(const Launcher* launcher, const std::vector<Launch>* list) {
  return Guard(
      [&] {
        for (const Launch& launch : *list) launcher->Prepare(launch);
        return 1;
      },
      0);
}

// Enqueues a list; 0 where it fails.
CHECK_EXPORT int check_enqueue(const Launcher* launcher, const std::vector<Launch>* list,
                               minicache::gpu::Stream stream) {
  return Guard(
      [&] {
        for (const Launch& launch : *list) launcher->Enqueue(launch, stream);
        return 1;
      },
      0);
}
