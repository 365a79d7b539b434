// One launch of a GPU kernel, as the plan of a call yields it: plain data, no driver.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace minicache {

// A runtime argument of a kernel; compile-time ones are part of the key.
struct LaunchArgument {
  enum Kind : char { kPointer = 'p', kInt32 = 'i', kInt64 = 'l', kFloat32 = 'f' };
  Kind kind;
  union {
    uint64_t pointer;  // on the device
    int32_t int32;
    int64_t int64;
    float float32;
  };
};

struct Launch {
  std::string key;  // of the kernel's variant (plugins/triton/variant.py)
  uint32_t grid[3];
  std::vector<LaunchArgument> arguments;  // in the kernel's order
};

}  // namespace minicache
