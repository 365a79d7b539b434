// The new tokens of a group's layers, as the writer's launches take them.
#include <algorithm>

#include "gpu/call_plan.h"

namespace minicache {

// The new keys, then the new values, of a launch; those beyond the last layer repeat it.
void AddLayers(const GpuCall& call, int64_t first_layer, LaunchBuilder* launch) {
  const Attributes& a = call.node.a;
  for (const bool values : {false, true}) {
    const Tensor& own = call.tensors[values ? TensorId::kValue : TensorId::kKey];
    const auto& others = values ? call.tensors.new_values : call.tensors.new_keys;
    for (int64_t i = 0; i < kLayersPerLaunch; i++) {
      const int64_t layer = std::min(first_layer + i, a.group_size - 1);
      launch->Pointer(layer == a.slot ? own.data : others[static_cast<size_t>(layer)].data);
    }
  }
}

}  // namespace minicache
