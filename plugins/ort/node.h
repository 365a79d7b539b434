// What the kernels of both execution providers share: the node, its tensors, and the op's surface.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "minicache/contract.h"
#include "minicache/tensors.h"
#include "ort/api.h"

namespace minicache::ort {

OrtStatusPtr Fail(OrtErrorCode code, const std::string& message);

// Runs what may throw: exceptions never cross the C boundary.
template <class Body>
OrtStatusPtr Guard(const Body& body) noexcept {
  try {
    return body();
  } catch (const Ort::Exception& error) {
    return Ort::GetApi().CreateStatus(error.GetOrtErrorCode(), error.what());
  } catch (const std::exception& error) {
    return Ort::GetApi().CreateStatus(ORT_FAIL, error.what());
  }
}

// A node, checked: its attributes and inputs.
struct Node {
  // Throws Ort::Exception with a sentence where the node is not one that this library runs.
  explicit Node(const OrtKernelInfo* info);

  // The tensors of a call, states as they were before it; no output yet.
  Tensors Inputs(const Ort::KernelContext& context) const;

  // Places the outputs of a call; past states that have other memory than present ones are copied
  // by copy(to, from, bytes).
  template <class Copy>
  void AddOutputs(const Ort::KernelContext& context, const Copy& copy, Tensors* tensors) const {
    tensors->attention = (*tensors)[TensorId::kQuery];
    tensors->attention.data = Output(context, 0, tensors->attention);
    size_t index = 1;
    for (const Slot& slot : slots) {
      if (!attributes.writes() || !IsState(slot.id)) continue;
      Tensor& state = (*tensors)[slot.id];
      char* present = Output(context, index++, state);
      if (present != state.data) copy(present, state.data, static_cast<size_t>(state.bytes()));
      state.data = present;
    }
  }

  Attributes attributes = {};
  std::vector<Slot> slots;  // of the inputs

 private:
  static char* Output(const Ort::KernelContext& context, size_t index, const Tensor& like);
};

// All of an op but its provider and its kernel. One variadic list of inputs and one of outputs:
// their number and types follow from attributes.
struct OpSurface : OrtCustomOp {
  OpSurface();
};

}  // namespace minicache::ort
