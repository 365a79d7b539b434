// The writer's part of a call: encode the tokens that leave the window, then store the new ones.
#include <limits>

#include "cpu/call.h"

namespace minicache {
namespace {

constexpr int64_t kTokensPerTask = 16;

struct Piece {
  int64_t row;
  int64_t begin;
  int64_t end;
  float* sums;  // [end - begin] of the cosines
  float* minima;
};

void EncodePiece(const Call& call, bool values, const Piece& piece, float* scratch,
                 std::vector<LayerVectors>* layers) {
  EncodeTask task = MakeEncodeTask(call, values, piece.row, layers);
  task.begin = piece.begin;
  task.end = piece.end;
  task.scratch = scratch;
  task.cosine_sum = piece.sums;
  task.cosine_minimum = piece.minima;
  call.kernels.encode(task);
}

// From sums and minima to the similarity of each token.
void Reduce(const Attributes& a, int64_t count, float* sums, const float* minima) {
  const int64_t pairs = 2 * a.kv_heads * (a.group_size - 1);
  for (int64_t i = 0; i < count; i++) {
    if (a.any_head) {
      sums[i] = minima[i];
    } else {
      sums[i] = pairs > 0 ? sums[i] / static_cast<float>(pairs) : 1.f;
    }
  }
}

}  // namespace

EncodeTask MakeEncodeTask(const Call& call, bool values, int64_t row,
                          std::vector<LayerVectors>* layers) {
  const Attributes& a = call.attributes;
  const auto& permutation = values ? a.value_permutation : a.key_permutation;
  const Tensor& exact = call.tensor(values ? TensorId::kExactValue : TensorId::kExactKey);
  const int64_t layer_bytes =
      a.kv_heads * call.shape.slots * a.head_size * ElementSize(call.exact_dtype);
  const int64_t row_bytes =
      call.shape.new_tokens * a.kv_heads * a.head_size * ElementSize(call.model_dtype);
  layers->resize(static_cast<size_t>(a.group_size));
  for (int64_t g = 0; g < a.group_size; g++) {
    (*layers)[static_cast<size_t>(g)] = {exact.data + (row * a.group_size + g) * layer_bytes,
                                         Fresh(call, values, g).data + row * row_bytes,
                                         permutation.data() + g * a.kv_heads};
  }
  const CodeFormat& format = values ? a.value_format : a.key_format;
  const int64_t tokens = row * a.code_heads * call.shape.capacity;
  EncodeTask task = {};
  task.layers = layers->data();
  task.layer_count = static_cast<int32_t>(a.group_size);
  task.heads = static_cast<int32_t>(a.kv_heads);
  task.head_size = static_cast<int32_t>(a.head_size);
  task.padded_size = static_cast<int32_t>(a.padded_size());
  task.exact_dtype = call.exact_dtype;
  task.fresh_dtype = call.model_dtype;
  task.slots = call.shape.slots;
  task.sinks = a.sinks;
  task.ring_slots = a.ring_slots;
  task.past = call.spans[static_cast<size_t>(row)].past;
  task.capacity = call.shape.capacity;
  task.evicted = call.maps[static_cast<size_t>(row)].total();
  task.slerp_t = a.slerp_t;
  task.magnitude_rule = a.magnitude_rule;
  task.values = values;
  task.format = &format;
  task.code =
      call.tensor(values ? TensorId::kValueCode : TensorId::kKeyCode).data + tokens * format.bytes;
  const TensorId magnitude = values ? TensorId::kValueMagnitude : TensorId::kKeyMagnitude;
  task.magnitude =
      reinterpret_cast<uint16_t*>(call.tensor(magnitude).data) + tokens * a.magnitude_count;
  task.magnitude_count = static_cast<int32_t>(a.magnitude_count);
  if (a.has_delta()) {
    const Tensor& delta = call.tensor(values ? TensorId::kValueDelta : TensorId::kKeyDelta);
    const TensorId ratio = values ? TensorId::kValueDeltaRatio : TensorId::kKeyDeltaRatio;
    task.delta_format = &a.delta_format;
    task.delta = delta.data + tokens * a.delta_format.bytes;
    task.delta_ratio = reinterpret_cast<uint16_t*>(call.tensor(ratio).data) + tokens;
  }
  if (a.delta_rank > 0) {
    const Tensor& basis =
        call.tensor(values ? TensorId::kValueDeltaBasis : TensorId::kKeyDeltaBasis);
    task.basis = basis.data;
    task.basis_dtype = RealType(basis.type);
  }
  if (a.aligned()) {
    const Tensor& encoder = call.tensor(values ? TensorId::kValueEncoder : TensorId::kKeyEncoder);
    task.encoder = encoder.data;
    task.encoder_dtype = RealType(encoder.type);
    task.rotation = values ? nullptr : &call.rotation;
  }
  return task;
}

void EncodeCall(const Call& call) {
  const Attributes& a = call.attributes;
  std::vector<Piece> pieces;
  std::vector<float*> similarities;  // [B]
  for (int64_t row = 0; row < call.shape.batch; row++) {
    const Span& span = call.spans[static_cast<size_t>(row)];
    const int64_t count = span.encode_end - span.encode_begin;
    float* sums = call.Floats(2 * count + 1);
    similarities.push_back(sums);
    std::fill(sums, sums + count, 0.f);
    std::fill(sums + count, sums + 2 * count, 1.f);
    // Pieces end at multiples of 16 tokens: no two threads write into one cache line of a tile.
    for (int64_t begin = span.encode_begin; begin < span.encode_end;) {
      const int64_t end =
          std::min(begin / kTokensPerTask * kTokensPerTask + kTokensPerTask, span.encode_end);
      float* mine = sums + (begin - span.encode_begin);
      pieces.push_back({row, begin, end, mine, mine + count});
      begin = end;
    }
  }
  const auto count = static_cast<int64_t>(pieces.size());
  const int64_t workers = WorkerCount(count);
  const int64_t floats = call.kernels.encode_scratch(a.group_size, a.padded_size());
  float* scratch = call.Floats(workers * floats);
  std::vector<std::vector<LayerVectors>> layers(static_cast<size_t>(workers));
  ForEach(call.host, count, workers, [&](int64_t i, int64_t worker) {
    const Piece& piece = pieces[static_cast<size_t>(i)];
    auto* mine = &layers[static_cast<size_t>(worker)];
    EncodePiece(call, false, piece, scratch + worker * floats, mine);
    EncodePiece(call, true, piece, scratch + worker * floats, mine);
  });
  if (!a.retains()) return;
  for (int64_t row = 0; row < call.shape.batch; row++) {
    const Span& span = call.spans[static_cast<size_t>(row)];
    if (span.fresh == 0) continue;  // a row without new tokens leaves its state untouched
    float* sums = similarities[static_cast<size_t>(row)];
    const int64_t tokens = span.encode_end - span.encode_begin;
    Reduce(a, tokens, sums, sums + tokens);
    RetainRow(call, row, sums);
  }
}

void CopyVector(const Call& call, bool values, int64_t row, int64_t layer, int64_t head,
                int64_t position, Dtype target_dtype, char* target) {
  const Attributes& a = call.attributes;
  const Span& span = call.spans[static_cast<size_t>(row)];
  CopyTask task = {nullptr, target, call.exact_dtype, target_dtype, a.head_size};
  if (position >= span.past) {
    const int64_t token = row * call.shape.new_tokens + position - span.past;
    task.source_dtype = call.model_dtype;
    task.source = Fresh(call, values, layer).data +
                  (token * a.kv_heads + head) * a.head_size * ElementSize(call.model_dtype);
  } else {
    const Tensor& exact = call.tensor(values ? TensorId::kExactValue : TensorId::kExactKey);
    const int64_t at = ((row * a.group_size + layer) * a.kv_heads + head) * call.shape.slots;
    task.source = exact.data + (at + call.ExactSlot(row, position)) * a.head_size *
                                   ElementSize(call.exact_dtype);
  }
  call.kernels.copy(task);
}

void WriteExact(const Call& call) {
  const Attributes& a = call.attributes;
  const int64_t per_row = a.group_size * a.kv_heads, slots = call.shape.slots;
  const int64_t size = a.head_size * ElementSize(call.exact_dtype);
  const int64_t count = call.shape.batch * per_row;
  int64_t tokens = 0;
  for (const Span& span : call.spans) tokens += span.fresh;
  const int64_t workers = tokens < 64 ? 1 : WorkerCount(count);  // a fork costs more than that
  ForEach(call.host, count, workers, [&](int64_t i, int64_t) {
    const int64_t row = i / per_row, layer = i % per_row / a.kv_heads, head = i % a.kv_heads;
    const Span& span = call.spans[static_cast<size_t>(row)];
    const int64_t recent = span.total - (a.coded() ? a.ring_slots : slots);
    for (int64_t p = span.past; p < span.total; p++) {
      const bool sink = a.coded() && p < a.sinks;
      if (p < recent && !sink) {
        p = std::min(recent, span.total) - 1;  // on to the next one that stays
        if (a.coded() && p < a.sinks) p = a.sinks - 1;
        continue;
      }
      const int64_t slot = i * slots + call.ExactSlot(row, p);
      char* key = call.tensor(TensorId::kExactKey).data + slot * size;
      char* value = call.tensor(TensorId::kExactValue).data + slot * size;
      CopyVector(call, false, row, layer, head, p, call.exact_dtype, key);
      CopyVector(call, true, row, layer, head, p, call.exact_dtype, value);
    }
  });
}

}  // namespace minicache
