// Writes a launch: the key of the kernel's variant, then the arguments in the kernel's order.
#pragma once

#include <string>
#include <utility>

#include "minicache/launch.h"
#include "minicache/tensors.h"

namespace minicache {

// How plugins/triton/variant.py spells an element type.
const char* TypeText(ElementType type);

class LaunchBuilder {
 public:
  explicit LaunchBuilder(const char* kernel) { launch_.key = kernel; }

  // Types come before constants, both in the order of plugins/triton/signatures.py.
  LaunchBuilder& Type(const char* letter, ElementType type) { return Text(letter, TypeText(type)); }
  LaunchBuilder& Constant(const char* name, int64_t value) {
    return Text(name, std::to_string(value));
  }

  LaunchBuilder& Pointer(uint64_t address) {
    hinted_ = hinted_ && address % kHint == 0;
    return Add(LaunchArgument::kPointer).pointer = address, *this;
  }
  LaunchBuilder& Pointer(const void* address) {
    return Pointer(reinterpret_cast<uint64_t>(address));
  }
  // One that no variant takes for a multiple: the address of a row's small table, anywhere.
  LaunchBuilder& TablePointer(const void* address) {
    return Add(LaunchArgument::kPointer).pointer = reinterpret_cast<uint64_t>(address), *this;
  }
  LaunchBuilder& Int(int64_t value) {
    return Add(LaunchArgument::kInt32).int32 = static_cast<int32_t>(value), *this;
  }
  // One that the hinted variant takes for a multiple.
  LaunchBuilder& HintedInt(int64_t value, int64_t multiple = kHint) {
    hinted_ = hinted_ && value % multiple == 0;
    return Int(value);
  }
  LaunchBuilder& Long(int64_t value) { return Add(LaunchArgument::kInt64).int64 = value, *this; }
  LaunchBuilder& Float(float value) { return Add(LaunchArgument::kFloat32).float32 = value, *this; }

  // Adds the launch to a list; none where the grid is empty.
  void Finish(int64_t x, int64_t y, int64_t z, std::vector<Launch>* list) {
    if (x <= 0 || y <= 0 || z <= 0) return;
    launch_.key += hinted_ ? "|hint=1" : "|hint=0";
    launch_.grid[0] = static_cast<uint32_t>(x);
    launch_.grid[1] = static_cast<uint32_t>(y);
    launch_.grid[2] = static_cast<uint32_t>(z);
    list->push_back(std::move(launch_));
  }

 private:
  static constexpr int64_t kHint = 16;

  LaunchBuilder& Text(const char* name, const std::string& value) {
    launch_.key.append("|").append(name).append("=").append(value);
    return *this;
  }
  LaunchArgument& Add(LaunchArgument::Kind kind) {
    launch_.arguments.push_back({kind, {0}});
    return launch_.arguments.back();
  }

  Launch launch_ = {};
  bool hinted_ = true;
};

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace minicache
