#include "minicache/tensors.h"

#include <algorithm>

namespace minicache {
namespace {

struct Expected {
  std::vector<int64_t> shape;  // -1: any
  bool (*accepts)(ElementType);
  const char* types;
};

bool IsReal(ElementType t) {
  return t == ElementType::kFloat32 || t == ElementType::kFloat16 || t == ElementType::kBfloat16;
}
bool IsTable(ElementType t) { return t == ElementType::kFloat32 || t == ElementType::kFloat16; }
bool IsHalf(ElementType t) { return t == ElementType::kFloat16; }
bool IsFloat(ElementType t) { return t == ElementType::kFloat32; }
bool IsInt8(ElementType t) { return t == ElementType::kInt8; }
bool IsInt32(ElementType t) { return t == ElementType::kInt32; }

std::string ShapeText(const int64_t* shape, size_t rank) {
  std::string text = "[";
  for (size_t i = 0; i < rank; i++) {
    if (i > 0) text += ", ";
    text += shape[i] < 0 ? "any" : std::to_string(shape[i]);
  }
  return text + "]";
}

Expected Expect(const Attributes& a, TensorId id, const CallShape& n) {
  const char* real = "float, float16 or bfloat16";
  const char* table = "float or float16";
  const int64_t kv_width = a.kv_heads * a.head_size;
  const int64_t joint = a.group_size * (a.kv_heads / a.code_heads) * a.head_size;
  const int64_t keys = a.key_format.components, values = a.value_format.components;
  switch (id) {
    case TensorId::kQuery:
      return {{n.batch, n.new_tokens, a.heads * a.head_size}, IsReal, real};
    case TensorId::kKey:
    case TensorId::kValue:
    case TensorId::kNewKey:
    case TensorId::kNewValue:
      return {{n.batch, n.new_tokens, kv_width}, IsReal, "query's"};
    case TensorId::kPastLengths:
    case TensorId::kTotalLengths:
      return {{n.batch}, IsInt32, "int32"};
    case TensorId::kAttentionBias:
      return {{-1, a.heads, n.new_tokens, -1}, IsReal, "query's"};
    case TensorId::kHeadSink:
      return {{a.heads}, IsReal, "query's"};
    case TensorId::kKeyDecoder:
      return {{a.kv_heads, keys, a.head_size}, IsTable, table};
    case TensorId::kValueDecoder:
      return {{a.kv_heads, values, a.head_size}, IsTable, table};
    case TensorId::kRopeFrequencies:
      return {{-1}, IsFloat, "float"};
    case TensorId::kKeyEncoder:
      return {{a.code_heads, keys, joint}, IsTable, table};
    case TensorId::kKeyStep:
      return {{a.code_heads, keys}, IsFloat, "float"};
    case TensorId::kValueEncoder:
      return {{a.code_heads, values, joint}, IsTable, table};
    case TensorId::kValueStep:
      return {{a.code_heads, values}, IsFloat, "float"};
    case TensorId::kKeyDeltaBasis:
    case TensorId::kValueDeltaBasis:
      return {{a.kv_heads, a.delta_rank, a.head_size}, IsTable, table};
    case TensorId::kKeyCode:
      return {{n.batch, a.code_heads, n.capacity, a.key_format.bytes}, IsInt8, "int8"};
    case TensorId::kValueCode:
      return {{n.batch, a.code_heads, n.capacity, a.value_format.bytes}, IsInt8, "int8"};
    case TensorId::kKeyMagnitude:
    case TensorId::kValueMagnitude:
      return {{n.batch, a.code_heads, n.capacity, a.magnitude_count}, IsHalf, "float16"};
    case TensorId::kKeyDelta:
    case TensorId::kValueDelta:
      return {{n.batch, a.code_heads, n.capacity, a.delta_format.bytes}, IsInt8, "int8"};
    case TensorId::kKeyDeltaRatio:
    case TensorId::kValueDeltaRatio:
      return {{n.batch, a.code_heads, n.capacity, 1}, IsHalf, "float16"};
    case TensorId::kExactKey:
    case TensorId::kExactValue:
      return {{n.batch, a.group_size, a.kv_heads, n.slots, a.head_size}, IsReal, real};
    case TensorId::kRetainedKey:
    case TensorId::kRetainedValue:
      return {{n.batch, a.group_size, a.kv_heads, n.retained, a.head_size}, IsReal, real};
    case TensorId::kRetainedPosition:
      return {{n.batch, n.retained}, IsInt32, "int32"};
    case TensorId::kRetainedSimilarity:
      return {{n.batch, n.retained}, IsFloat, "float"};
    case TensorId::kEvicted:
      return {{n.batch, -1}, IsInt32, "int32"};
    case TensorId::kAttentionMass:
      return {{n.batch, n.capacity}, IsFloat, "float"};
    default:
      return {{n.batch, a.slack() + 1, 2}, IsFloat, "float"};
  }
}

bool HasQueryType(TensorId id) {
  switch (id) {
    case TensorId::kKey:
    case TensorId::kValue:
    case TensorId::kNewKey:
    case TensorId::kNewValue:
    case TensorId::kAttentionBias:
    case TensorId::kHeadSink:
      return true;
    default:
      return false;
  }
}

std::string CheckShape(const Slot& slot, const Tensor& tensor, const Expected& expected) {
  bool fits = static_cast<size_t>(tensor.rank) == expected.shape.size();
  for (size_t i = 0; fits && i < expected.shape.size(); i++) {
    fits = expected.shape[i] < 0 || tensor.shape[i] == expected.shape[i];
  }
  if (fits) return "";
  return "input '" + slot.name + "' has shape " +
         ShapeText(tensor.shape, static_cast<size_t>(tensor.rank)) + ", wanted " +
         ShapeText(expected.shape.data(), expected.shape.size());
}

}  // namespace

bool IsState(TensorId id) { return id >= TensorId::kKeyCode && id <= TensorId::kAttentionMass; }

std::vector<Slot> InputSlots(const Attributes& a) {
  std::vector<Slot> slots = {{TensorId::kQuery, 0, "query"},
                             {TensorId::kKey, 0, "key"},
                             {TensorId::kValue, 0, "value"},
                             {TensorId::kPastLengths, 0, "past_lengths"},
                             {TensorId::kTotalLengths, 0, "total_lengths"}};
  if (a.has_bias) slots.push_back({TensorId::kAttentionBias, 0, "attention_bias"});
  if (a.has_sink) slots.push_back({TensorId::kHeadSink, 0, "head_sink"});
  if (a.has_decoder) {
    slots.push_back({TensorId::kKeyDecoder, 0, "key_decoder"});
    slots.push_back({TensorId::kValueDecoder, 0, "value_decoder"});
    if (a.segment_length > 0) slots.push_back({TensorId::kRopeFrequencies, 0, "rope_frequencies"});
  }
  if (a.has_decoder && a.writes()) {
    slots.push_back({TensorId::kKeyEncoder, 0, "key_encoder"});
    if (a.subspace()) slots.push_back({TensorId::kKeyStep, 0, "key_step"});
    slots.push_back({TensorId::kValueEncoder, 0, "value_encoder"});
    if (a.subspace()) slots.push_back({TensorId::kValueStep, 0, "value_step"});
  }
  if (a.delta_rank > 0) {
    slots.push_back({TensorId::kKeyDeltaBasis, 0, "key_delta_basis"});
    slots.push_back({TensorId::kValueDeltaBasis, 0, "value_delta_basis"});
  }
  if (a.coded()) {
    slots.push_back({TensorId::kKeyCode, 0, "past_key_code"});
    slots.push_back({TensorId::kValueCode, 0, "past_value_code"});
    slots.push_back({TensorId::kKeyMagnitude, 0, "past_key_magnitude"});
    slots.push_back({TensorId::kValueMagnitude, 0, "past_value_magnitude"});
  }
  if (a.has_delta()) {
    slots.push_back({TensorId::kKeyDelta, 0, "past_key_delta"});
    slots.push_back({TensorId::kValueDelta, 0, "past_value_delta"});
    slots.push_back({TensorId::kKeyDeltaRatio, 0, "past_key_delta_ratio"});
    slots.push_back({TensorId::kValueDeltaRatio, 0, "past_value_delta_ratio"});
  }
  slots.push_back({TensorId::kExactKey, 0, "past_exact_key"});
  slots.push_back({TensorId::kExactValue, 0, "past_exact_value"});
  if (a.retains()) {
    slots.push_back({TensorId::kRetainedKey, 0, "past_retained_key"});
    slots.push_back({TensorId::kRetainedValue, 0, "past_retained_value"});
    slots.push_back({TensorId::kRetainedPosition, 0, "past_retained_position"});
    slots.push_back({TensorId::kRetainedSimilarity, 0, "past_retained_similarity"});
    slots.push_back({TensorId::kSimilarityRange, 0, "past_similarity_range"});
  }
  if (a.evicts) slots.push_back({TensorId::kEvicted, 0, "past_evicted"});
  if (a.observes != 0) slots.push_back({TensorId::kAttentionMass, 0, "past_attention_mass"});
  for (int64_t layer = 0; a.writes() && layer < a.group_size - 1; layer++) {
    slots.push_back({TensorId::kNewKey, layer, "k_" + std::to_string(layer)});
    slots.push_back({TensorId::kNewValue, layer, "v_" + std::to_string(layer)});
  }
  return slots;
}

std::string CheckType(const Attributes& a, const Slot& slot, const Tensors& t) {
  const ElementType type = t.at(slot).type, query = t[TensorId::kQuery].type;
  const std::string has = "input '" + slot.name + "' has type " + ElementTypeName(type);
  if (HasQueryType(slot.id)) {
    if (type == query) return "";
    return has + ", wanted that of query, " + ElementTypeName(query);
  }
  const Expected expected = Expect(a, slot.id, {});
  if (!expected.accepts(type)) return has + ", wanted " + expected.types;
  if (slot.id == TensorId::kExactValue && type != t[TensorId::kExactKey].type) {
    return "inputs 'past_exact_key' and 'past_exact_value' have different types";
  }
  if (slot.id == TensorId::kRetainedValue && type != t[TensorId::kRetainedKey].type) {
    return "inputs 'past_retained_key' and 'past_retained_value' have different types";
  }
  return "";
}

std::string CheckTensors(const Attributes& a, const std::vector<Slot>& slots, const Tensors& t,
                         CallShape* n) {
  const Tensor &query = t[TensorId::kQuery], &exact = t[TensorId::kExactKey];
  const Tensor& retained = t[TensorId::kRetainedPosition];
  *n = {};
  if (query.rank == 3) n->batch = query.shape[0];
  if (query.rank == 3) n->new_tokens = query.shape[1];
  if (exact.rank == 5) n->slots = a.coded() ? a.sinks + a.ring_slots : exact.shape[3];
  n->capacity = a.coded() ? t[TensorId::kKeyCode].shape[2] : n->slots;
  if (a.retains()) n->retained = retained.shape[1];
  for (const Slot& slot : slots) {
    std::string error = CheckType(a, slot, t);
    if (error.empty()) error = CheckShape(slot, t.at(slot), Expect(a, slot.id, *n));
    if (!error.empty()) return error;
  }
  if (a.coded() && n->capacity % 16 != 0) {
    return "input 'past_key_code' has capacity " + std::to_string(n->capacity) +
           ", wanted a multiple of 16";
  }
  if (a.has_decoder && a.segment_length > 0) {
    const int64_t pairs = t[TensorId::kRopeFrequencies].shape[0];
    if (pairs < 1 || 2 * pairs > a.head_size) {
      return "input 'rope_frequencies' has " + std::to_string(pairs) +
             " pairs, wanted 1 to head_size / 2 = " + std::to_string(a.head_size / 2);
    }
  }
  if (a.evicts) {
    const int64_t entries = t[TensorId::kEvicted].shape[1];
    const bool segmented = a.has_decoder && a.segment_length > 0;
    if (segmented ? entries < 2 : entries != 2) {
      return "input 'past_evicted' has " + std::to_string(entries) + " entries per row, wanted " +
             (segmented ? "2 or more" : "2");
    }
    n->segments = entries - 1;
  }
  if (a.has_bias) {
    const int64_t rows = t[TensorId::kAttentionBias].shape[0];
    if (rows != 1 && rows != n->batch) {
      return "input 'attention_bias' has batch " + std::to_string(rows) + ", wanted 1 or " +
             std::to_string(n->batch);
    }
  }
  return "";
}

}  // namespace minicache
