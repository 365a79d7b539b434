#include "gpu/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "gpu/call_plan.h"

namespace minicache {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 28;  // retention sorts by 28 bits of a position
constexpr int64_t kLeastPad = 16;                  // the least depth of a product on tensor cores
constexpr int64_t kSegmentMultiple = 16;           // tokens of the smallest block of codes

int64_t PowerOfTwo(int64_t least) {
  int64_t power = kLeastPad;
  while (power < least) power *= 2;
  return power;
}

GpuFormat MakeFormat(const CodeFormat& format) {
  GpuFormat made = {};
  made.bytes = format.bytes;
  made.components = format.components;
  made.stride = CeilDiv(format.components, 16) * 16;
  for (int32_t i = 0; i < format.segment_count; i++) {
    const CodeSegment& segment = format.segments[i];
    const int at = segment.bits == 16 ? 0 : segment.bits == 8 ? 1 : segment.bits == 4 ? 2 : 3;
    const int64_t planes = segment.bits == 16 ? 1 : 8 / segment.bits;
    made.counts[at] = segment.count;
    made.starts[at] = segment.first_byte;
    made.sizes[at] = segment.count * segment.bits / 8;
    made.pads[at] = PowerOfTwo(segment.count / planes);
    made.word_pads[at] = PowerOfTwo(CeilDiv(made.sizes[at], 2));
  }
  return made;
}

// The code head that a kv head of this layer reads.
int64_t CodeHead(const Attributes& a, const std::vector<int64_t>& permutation, int64_t head) {
  const auto first = permutation.begin() + a.slot * a.kv_heads;
  const int64_t slot = std::find(first, first + a.kv_heads, head) - first;
  return slot * a.code_heads / a.kv_heads;
}

std::string CheckNode(const Attributes& a) {
  if (a.delta_rank > 0) {
    return "delta_rank is " + std::to_string(a.delta_rank) +
           ": the GPU kernels read deltas of bits only; export with --delta-bits";
  }
  if (!a.coded()) return "";
  if (a.key_format.layout != Layout::kRow) {
    return "code_layout is 'tile', the CUDA kernels read 'row': export with --target ort-cuda "
           "or tensorrt";
  }
  if (a.has_decoder && a.segment_length % kSegmentMultiple != 0) {
    return "segment_length is " + std::to_string(a.segment_length) +
           ", the CUDA kernels need a multiple of " + std::to_string(kSegmentMultiple);
  }
  return "";
}

bool IsHalf(ElementType type) {
  return type == ElementType::kFloat16 || type == ElementType::kBfloat16;
}

// A job is a set of kv heads that read the same key codes and the same value codes: these are
// loaded once for all of them. All jobs are of one size.
void MakeJobs(GpuNode* node) {
  const Attributes& a = node->a;
  std::map<std::pair<int64_t, int64_t>, std::vector<int32_t>> sharing;
  for (int64_t head = 0; head < a.kv_heads; head++) {
    std::pair<int64_t, int64_t> codes = {head, head};
    if (a.coded()) {
      codes = {CodeHead(a, a.key_permutation, head), CodeHead(a, a.value_permutation, head)};
    }
    sharing[codes].push_back(static_cast<int32_t>(head));
  }
  int64_t size = 0;
  for (const auto& entry : sharing) {
    size = std::gcd(size, static_cast<int64_t>(entry.second.size()));
  }
  node->heads_per_job = size;
  node->jobs = a.kv_heads / size;
  std::vector<int32_t> keys, values;
  for (const auto& [codes, heads] : sharing) {
    node->table.insert(node->table.end(), heads.begin(), heads.end());
    const size_t jobs = heads.size() / static_cast<size_t>(size);
    keys.insert(keys.end(), jobs, static_cast<int32_t>(codes.first));
    values.insert(values.end(), jobs, static_cast<int32_t>(codes.second));
  }
  node->table.insert(node->table.end(), keys.begin(), keys.end());
  node->table.insert(node->table.end(), values.begin(), values.end());
  node->table.resize(static_cast<size_t>(node->permutations()));
}

}  // namespace

const char* TypeText(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
      return "fp16";
    case ElementType::kBfloat16:
      return "bf16";
    case ElementType::kFloat32:
      return "fp32";
    default:
      return "none";
  }
}

std::string GpuPlan::Make(const Attributes& attributes, const GpuOptions& options, GpuPlan* plan) {
  const std::string error = CheckNode(attributes);
  if (!error.empty()) return error;
  GpuNode& node = plan->node_;
  node = {attributes,
          options,
          MakeFormat(attributes.key_format),
          MakeFormat(attributes.value_format),
          MakeFormat(attributes.delta_format),
          0,
          0,
          {}};
  MakeJobs(&node);
  for (const auto* permutation : {&attributes.key_permutation, &attributes.value_permutation}) {
    for (const int64_t head : *permutation) node.table.push_back(static_cast<int32_t>(head));
  }
  return "";
}

std::string GpuPlan::CheckType(TensorId id, const Tensors& tensors) {
  const ElementType type = tensors[id].type, exact = tensors[TensorId::kExactKey].type;
  if (id == TensorId::kQuery && !IsHalf(type)) {
    return std::string("the model is of type ") + ElementTypeName(type) +
           ", the CUDA kernels take float16 and bfloat16";
  }
  if (id == TensorId::kExactKey && !IsHalf(type)) {
    return std::string("input 'past_exact_key' has type ") + ElementTypeName(type) +
           ", the CUDA kernels take float16 and bfloat16";
  }
  if (id == TensorId::kRetainedKey && type != exact) {
    return std::string("input 'past_retained_key' has type ") + ElementTypeName(type) +
           ", the CUDA kernels want that of past_exact_key, " + ElementTypeName(exact);
  }
  return "";
}

std::string GpuPlan::CheckCall(const Tensors& tensors, const CallShape& shape) const {
  if (shape.capacity >= kMostTokens) {
    return "the capacity is " + std::to_string(shape.capacity) +
           " tokens, the CUDA kernels take less than " + std::to_string(kMostTokens);
  }
  if (node_.framed() && shape.segments * node_.a.segment_length >= kMostTokens) {
    return "input 'past_evicted' is for texts of " +
           std::to_string(shape.segments * node_.a.segment_length) +
           " tokens, the CUDA kernels take less than " + std::to_string(kMostTokens);
  }
  std::string wrong = CheckType(TensorId::kQuery, tensors);
  if (wrong.empty()) wrong = CheckType(TensorId::kExactKey, tensors);
  if (wrong.empty() && node_.a.retains()) wrong = CheckType(TensorId::kRetainedKey, tensors);
  return wrong;
}

int64_t GpuPlan::ScratchBytes(const CallShape& shape) const {
  return ScratchLayout(node_, shape).bytes;
}

std::vector<Launch> GpuPlan::Launches(const Tensors& tensors, const CallShape& shape,
                                      uint64_t table, uint64_t scratch) const {
  std::vector<Launch> launches;
  if (shape.batch == 0 || shape.new_tokens == 0) return launches;
  const ScratchLayout layout(node_, shape);
  const GpuCall call = {node_, tensors, shape, layout, table, scratch};
  // Every read of a state precedes every write: a node may run twice with the same lengths.
  AddAttention(call, &launches);
  if (node_.a.writes()) AddWrites(call, &launches);
  return launches;
}

}  // namespace minicache
