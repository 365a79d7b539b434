// What a node launches on a GPU: a pure function of its attributes, tensors and shapes. Lengths
// stay on the device, so neither grids nor arguments depend on them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/node.h"
#include "minicache/launch.h"
#include "minicache/tensors.h"

namespace minicache {

class GpuPlan {
 public:
  // Fills `plan`; returns a sentence where the kernels do not cover such a node.
  static std::string Make(const Attributes& attributes, const GpuOptions& options, GpuPlan* plan);

  // The integers that the kernels read of the node itself; they are to lie in device memory.
  const std::vector<int32_t>& table() const { return node_.table; }

  // Checks tensors that CheckTensors passed for what it allows and the kernels do not; returns a
  // sentence or an empty string.
  std::string CheckCall(const Tensors& tensors, const CallShape& shape) const;
  // Likewise the type of one input, given those before it.
  static std::string CheckType(TensorId id, const Tensors& tensors);

  int64_t ScratchBytes(const CallShape& shape) const;
  // No less than ScratchBytes of any call that is as large as `most` or smaller in any size.
  int64_t ScratchBound(const CallShape& most) const;

  // The launches of a call, in order. All addresses are on the device: `table` of the node's
  // table, `scratch` of ScratchBytes, at a multiple of 256.
  std::vector<Launch> Launches(const Tensors& tensors, const CallShape& shape, uint64_t table,
                               uint64_t scratch) const;

 private:
  GpuNode node_ = {};
};

}  // namespace minicache
