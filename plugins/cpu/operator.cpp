#include "minicache/operator.h"

#include "cpu/call.h"

namespace minicache {
namespace {

Span MakeSpan(const Attributes& a, int64_t past, int64_t total) {
  Span span = {past, total, total - past, 0, 0, 0};
  if (!a.coded()) return span;
  span.coded_end = std::min(std::max(a.sinks, past - a.window), past);
  // Sinks are never encoded, also when this call brings them.
  span.encode_begin = std::max(span.coded_end, a.sinks);
  span.encode_end = std::min(std::max(a.sinks, total - a.window), total);
  span.encode_end = std::max(span.encode_end, span.encode_begin);
  return span;
}

std::string CheckRow(const Attributes& a, const Tensors& tensors, const CallShape& shape,
                     int64_t row, int64_t past, int64_t total) {
  const std::string where = "row " + std::to_string(row) + ": past_lengths is " +
                            std::to_string(past) + " and total_lengths is " + std::to_string(total);
  if (past < 0) return where + ", but a length is not negative";
  if (total < past) return where + ", but total is past plus the valid new tokens";
  if (total - past > shape.new_tokens) {
    return where + ", but the call brings " + std::to_string(shape.new_tokens) +
           " new tokens at most";
  }
  const bool slides = !a.coded() && a.local_window > 0;
  const SlotMap map = MakeSlotMap(a, tensors, row);
  if (a.evicts && map.length > 0 && total > map.segments * map.length) {
    return where + ", but evicted has " + std::to_string(map.segments) + " segments of " +
           std::to_string(map.length) + " tokens";
  }
  const int64_t coded_end = a.coded() ? MakeSpan(a, past, total).coded_end : past;
  std::string error = CheckSlotMap(map, coded_end);
  if (error.empty()) error = CheckRetained(a, tensors, map, row, coded_end);
  if (!error.empty()) return where + ", but " + error;
  if (!slides && total - map.total() > shape.capacity) {
    return where + ", but the cache holds " + std::to_string(shape.capacity) + " tokens";
  }
  // A ring that the capacity made shorter than the window would have lost tokens still visible.
  if (slides && shape.slots < a.local_window && total > shape.slots) {
    return where + ", but the cache holds " + std::to_string(shape.slots) +
           " tokens, less than the sliding window of " + std::to_string(a.local_window);
  }
  if (a.has_bias && total > tensors[TensorId::kAttentionBias].shape[3]) {
    return where + ", but attention_bias covers " +
           std::to_string(tensors[TensorId::kAttentionBias].shape[3]) + " positions";
  }
  return "";
}

const int32_t* Lengths(const Tensors& tensors, TensorId id) {
  return reinterpret_cast<const int32_t*>(tensors[id].data);
}

}  // namespace

std::string Check(const Attributes& attributes, const std::vector<Slot>& slots,
                  const Tensors& tensors, CallShape* shape) {
  std::string error = CheckTensors(attributes, slots, tensors, shape);
  if (!error.empty()) return error;
  const int32_t* past = Lengths(tensors, TensorId::kPastLengths);
  const int32_t* total = Lengths(tensors, TensorId::kTotalLengths);
  for (int64_t row = 0; row < shape->batch && error.empty(); row++) {
    error = CheckRow(attributes, tensors, *shape, row, past[row], total[row]);
  }
  return error;
}

void Run(const Attributes& attributes, MathsSetting maths, const Tensors& tensors,
         const CallShape& shape, Host& host) {
  Call call = {attributes,
               tensors,
               shape,
               {},
               {},
               Kernels(),
               maths,
               host,
               RealType(tensors[TensorId::kQuery].type),
               RealType(tensors[TensorId::kExactKey].type),
               RealType(tensors[TensorId::kRetainedKey].type),
               {}};
  const int32_t* past = Lengths(tensors, TensorId::kPastLengths);
  const int32_t* total = Lengths(tensors, TensorId::kTotalLengths);
  for (int64_t row = 0; row < shape.batch; row++) {
    call.spans.push_back(MakeSpan(attributes, past[row], total[row]));
    call.maps.push_back(MakeSlotMap(attributes, tensors, row));
  }
  if (attributes.has_decoder) call.rotation = MakeRotation(call);
  // Every read of the state precedes every write: a node may run twice with the same lengths.
  AttendCall(call);
  if (!attributes.writes()) return;
  if (attributes.observes != 0) ObserveCall(call);
  if (attributes.mode == Mode::kSlerp) EncodeCall(call);
  if (attributes.subspace()) EncodeSubspaceCall(call);
  WriteExact(call);
}

}  // namespace minicache
