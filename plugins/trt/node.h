// A node of a network, checked: what all clones of its plugin share.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/plan.h"
#include "minicache/tensors.h"
#include "trt/fields.h"

namespace minicache::trt {

// The attribute of the node that takes the kernels into the engine.
inline constexpr char kCarriesKernels[] = "carries_kernels";

class Node {
 public:
  // `name` is the layer's. Throws std::runtime_error with a sentence where the fields are not those
  // of a node that the kernels run.
  Node(std::string name, const FieldReader& fields);

  const std::string& name() const { return name_; }
  const Attributes& attributes() const { return attributes_; }
  const std::vector<Slot>& slots() const { return slots_; }  // of the inputs
  const GpuPlan& plan() const { return plan_; }
  // Every attribute with its value.
  const std::string& description() const { return description_; }
  bool carries_kernels() const { return carries_kernels_ != 0; }

  // Outputs: the attention, then all states in input order, each at the memory of its input.
  size_t outputs() const { return 1 + states_; }
  // The input that an output stands for: the query, by its type and shape, then the states.
  size_t InputOf(size_t output) const { return output == 0 ? 0 : first_state_ + output - 1; }

  // Check how many there are; throw.
  void CheckInputs(int32_t count) const;
  void CheckOutputs(int32_t count) const;
  // Tensors with room for those of all inputs.
  Tensors Empty() const;
  // Checks types and shapes; throws.
  CallShape Check(const Tensors& tensors) const;
  // Adds all attributes to fields.
  void AddFields(FieldList* fields) const;

 private:
  const std::string name_;
  RawAttributes raw_;
  int64_t carries_kernels_ = 0;
  Attributes attributes_ = {};
  std::vector<Slot> slots_;
  size_t first_state_ = 0;
  size_t states_ = 0;
  GpuPlan plan_;
  std::string description_;
};

}  // namespace minicache::trt
