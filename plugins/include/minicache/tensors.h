// The tensors of one call, and the order in which a node's attributes place them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "minicache/attributes.h"

namespace minicache {

enum class TensorId {
  kQuery,
  kKey,
  kValue,
  kPastLengths,
  kTotalLengths,
  kAttentionBias,
  kHeadSink,
  kKeyDecoder,
  kValueDecoder,
  kRopeFrequencies,
  kKeyEncoder,
  kKeyStep,
  kValueEncoder,
  kValueStep,
  kKeyDeltaBasis,
  kValueDeltaBasis,
  kKeyCode,
  kValueCode,
  kKeyMagnitude,
  kValueMagnitude,
  kKeyDelta,
  kValueDelta,
  kKeyDeltaRatio,
  kValueDeltaRatio,
  kExactKey,
  kExactValue,
  kRetainedKey,
  kRetainedValue,
  kRetainedPosition,
  kRetainedSimilarity,
  kSimilarityRange,
  kEvicted,
  kAttentionMass,
  kNewKey,    // k_0, k_1, ... of the slots below the writer's
  kNewValue,  // v_0, v_1, ...
  kCount,
};

enum class ElementType { kFloat32, kFloat16, kBfloat16, kInt8, kInt32, kOther };

const char* ElementTypeName(ElementType type);

struct Tensor {
  char* data = nullptr;
  ElementType type = ElementType::kOther;
  int32_t rank = 0;
  int64_t shape[5] = {};

  int64_t elements() const;
  int64_t bytes() const;
  // Whether both are the same memory, seen alike.
  bool operator==(const Tensor& other) const;
};

struct Slot {
  TensorId id;
  int64_t layer;  // of kNewKey and kNewValue
  std::string name;
};

// The inputs of a node, in order; a writer's outputs are the attention, then all states.
std::vector<Slot> InputSlots(const Attributes& attributes);

bool IsState(TensorId id);

// The tensors of a call by name; states are those that the node may write (present_*).
struct Tensors {
  Tensor named[static_cast<int>(TensorId::kCount)];
  std::vector<Tensor> new_keys;  // [G - 1]
  std::vector<Tensor> new_values;
  Tensor attention;

  const Tensor& operator[](TensorId id) const { return named[static_cast<int>(id)]; }
  Tensor& operator[](TensorId id) { return named[static_cast<int>(id)]; }
  // The tensor of an input slot.
  Tensor& at(const Slot& slot) {
    const auto layer = static_cast<size_t>(slot.layer);
    if (slot.id == TensorId::kNewKey) return new_keys[layer];
    return slot.id == TensorId::kNewValue ? new_values[layer] : (*this)[slot.id];
  }
  const Tensor& at(const Slot& slot) const { return const_cast<Tensors*>(this)->at(slot); }
};

// Sizes that the tensors bring: B, S, C, the slots P of the side buffer and of the exact state, and
// n of the table of evicted tokens; 0 where there is no such tensor.
struct CallShape {
  int64_t batch;
  int64_t new_tokens;
  int64_t capacity;
  int64_t retained;
  int64_t slots;
  int64_t segments;
};

// Checks the type of one input against the attributes and the inputs before it. Returns a sentence
// naming tensor, got and wanted.
std::string CheckType(const Attributes& attributes, const Slot& slot, const Tensors& tensors);

// Checks types and shapes against the attributes. Returns a sentence naming tensor, got and wanted.
std::string CheckTensors(const Attributes& attributes, const std::vector<Slot>& slots,
                         const Tensors& tensors, CallShape* shape);

}  // namespace minicache
