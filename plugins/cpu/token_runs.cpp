#include "cpu/token_runs.h"

namespace minicache {
namespace {

// Positions [from, to) of a ring of `size` slots whose first slot `base` has position `base`.
void AddRing(TokenRuns* runs, const TokenRun& run, int64_t base, int64_t size, int64_t from,
             int64_t to) {
  while (from < to) {
    const int64_t slot = base + (from - base) % size;
    const int64_t count = std::min(to - from, base + size - slot);
    TokenRun piece = run;
    piece.key += slot * run.stride;
    piece.value += slot * run.stride;
    piece.end = count;
    piece.first_position = from;
    runs->Add(piece);
    from += count;
  }
}

}  // namespace

int64_t TokenRuns::BlockCount() const {
  int64_t blocks = 0;
  for (int32_t i = 0; i < count; i++) {
    blocks += (list[i].end + kBlockTokens - 1) / kBlockTokens - list[i].begin / kBlockTokens;
  }
  return blocks;
}

TokenRunMaker::TokenRunMaker(const Call& call) : call_(call), a_(call.attributes) {
  if (a_.retains()) GatherRetained();
}

void TokenRunMaker::GatherRetained() {
  const int64_t m = call_.shape.retained;
  const auto* position =
      reinterpret_cast<const int32_t*>(call_.tensor(TensorId::kRetainedPosition).data);
  auto* memory = static_cast<int32_t*>(
      call_.host.Allocate(static_cast<size_t>(3 * m * call_.shape.batch + 1) * sizeof(int32_t)));
  for (int64_t row = 0; row < call_.shape.batch; row++) {
    const int64_t end = call_.spans[static_cast<size_t>(row)].coded_end;
    Retained found = {memory, memory + m, memory + 2 * m, 0, 0};
    const bool all = m == MostActive(call_);
    const std::vector<Candidate> unmarked =
        all ? std::vector<Candidate>() : FindUnmarked(row, position);
    auto next = unmarked.begin();
    for (int64_t slot = 0; slot < m; slot++) {
      if (position[slot] < a_.sinks || position[slot] >= end) continue;
      if (next != unmarked.end() && next->slot == slot) {
        found.unmarked[found.unmarked_count++] =
            static_cast<int32_t>(call_.SlotOf(row, position[slot]));
        ++next;
      } else if (!all && !IsMarked(call_, row, position[slot])) {
        continue;
      }
      found.slots[found.count] = static_cast<int32_t>(slot);
      found.positions[found.count++] = position[slot];
    }
    retained_.push_back(found);
    memory += 3 * m;
    position += m;
  }
}

// The active tokens (docs/operator.md) without a mark, by slot. Marks are of the end of codes that
// the last call left. Going back from there, tokens that it marked stay active, and the least
// similar others take the places of those that were dropped.
std::vector<Candidate> TokenRunMaker::FindUnmarked(int64_t row, const int32_t* position) const {
  const int64_t m = call_.shape.retained, end = call_.spans[static_cast<size_t>(row)].coded_end;
  const auto* similarities =
      reinterpret_cast<const float*>(call_.tensor(TensorId::kRetainedSimilarity).data) + row * m;
  std::vector<Candidate> unmarked;
  int64_t marked = 0;
  for (int64_t slot = 0; slot < m; slot++) {
    if (position[slot] < a_.sinks || position[slot] >= end) continue;
    if (IsMarked(call_, row, position[slot])) {
      marked++;
    } else {
      unmarked.push_back({similarities[slot], position[slot], slot});
    }
  }
  const int64_t room = std::max<int64_t>(0, MostActive(call_) - marked);
  LeastSimilarFirst(room, &unmarked);
  if (room < static_cast<int64_t>(unmarked.size())) unmarked.resize(static_cast<size_t>(room));
  std::sort(unmarked.begin(), unmarked.end(),
            [](const Candidate& a, const Candidate& b) { return a.slot < b.slot; });
  return unmarked;
}

// At this layer and head of [B, G, Hk, slots, D] tensors.
TokenRun TokenRunMaker::Vectors(TensorId key, TensorId value, Dtype dtype, int64_t slots,
                                int64_t row, int64_t head) const {
  TokenRun run = {};
  run.kind = TokenRun::Kind::kVectors;
  run.dtype = dtype;
  run.stride = a_.head_size * ElementSize(dtype);
  const int64_t at = ((row * a_.group_size + a_.slot) * a_.kv_heads + head) * slots * run.stride;
  run.key = call_.tensor(key).data + at;
  run.value = call_.tensor(value).data + at;
  return run;
}

TokenRun TokenRunMaker::Codes(int64_t row, int64_t head) const {
  TokenRun run = {};
  run.kind = TokenRun::Kind::kCodes;
  run.begin = a_.sinks;
  run.end = call_.spans[static_cast<size_t>(row)].coded_end -
            call_.maps[static_cast<size_t>(row)].total();
  run.magnitude_stride = a_.magnitude_count;
  const auto place = [&](bool values, const char** code, const uint16_t** magnitude,
                         DeltaRun* delta) {
    const auto& permutation = values ? a_.value_permutation : a_.key_permutation;
    const auto first = permutation.begin() + a_.slot * a_.kv_heads;
    // Slot s holds head permutation[s] of this layer, and kv_heads / code_heads slots share a code.
    const int64_t s = std::find(first, first + a_.kv_heads, head) - first;
    const int64_t h = s * a_.code_heads / a_.kv_heads;
    const int64_t token = (row * a_.code_heads + h) * call_.shape.capacity;
    const Tensor& codes = call_.tensor(values ? TensorId::kValueCode : TensorId::kKeyCode);
    *code = codes.data + token * (values ? a_.value_format : a_.key_format).bytes;
    const TensorId id = values ? TensorId::kValueMagnitude : TensorId::kKeyMagnitude;
    *magnitude = reinterpret_cast<const uint16_t*>(call_.tensor(id).data) +
                 token * a_.magnitude_count + (a_.magnitude_count > 1 ? a_.slot : 0);
    if (!a_.has_delta()) return;
    const TensorId ratio = values ? TensorId::kValueDeltaRatio : TensorId::kKeyDeltaRatio;
    delta->code = call_.tensor(values ? TensorId::kValueDelta : TensorId::kKeyDelta).data +
                  token * a_.delta_format.bytes;
    delta->ratio = reinterpret_cast<const uint16_t*>(call_.tensor(ratio).data) + token;
    if (a_.delta_rank == 0) return;
    const Tensor& basis =
        call_.tensor(values ? TensorId::kValueDeltaBasis : TensorId::kKeyDeltaBasis);
    delta->basis = TableOf(basis, h);
    delta->basis_dtype = RealType(basis.type);
  };
  place(false, &run.key, &run.key_magnitude, &run.key_delta);
  place(true, &run.value, &run.value_magnitude, &run.value_delta);
  return run;
}

// The new tokens of this layer, straight from its inputs.
TokenRun TokenRunMaker::Fresh(int64_t row, int64_t head) const {
  TokenRun run = {};
  run.kind = TokenRun::Kind::kVectors;
  run.dtype = call_.model_dtype;
  const int64_t size = a_.head_size * ElementSize(call_.model_dtype);
  const int64_t at = (row * call_.shape.new_tokens * a_.kv_heads + head) * size;
  run.key = call_.tensor(TensorId::kKey).data + at;
  run.value = call_.tensor(TensorId::kValue).data + at;
  run.stride = a_.kv_heads * size;
  run.first_position = call_.spans[static_cast<size_t>(row)].past;
  return run;
}

TokenRuns TokenRunMaker::Make(int64_t row, int64_t head, int64_t fresh_end) const {
  const Span& span = call_.spans[static_cast<size_t>(row)];
  const int64_t slots = call_.shape.slots;
  TokenRuns runs;
  TokenRun exact =
      Vectors(TensorId::kExactKey, TensorId::kExactValue, call_.exact_dtype, slots, row, head);
  if (a_.coded()) {
    TokenRun codes = Codes(row, head);
    if (a_.retains()) {
      const Retained& found = retained_[static_cast<size_t>(row)];
      codes.skipped = found.unmarked;
      codes.skipped_count = found.unmarked_count;
    }
    runs.Add(codes);
    if (a_.retains()) {
      TokenRun run = Vectors(TensorId::kRetainedKey, TensorId::kRetainedValue, call_.retained_dtype,
                             call_.shape.retained, row, head);
      const Retained& found = retained_[static_cast<size_t>(row)];
      const int64_t first = found.count > 0 ? found.slots[0] : 0;
      if (found.count > 0 && found.slots[found.count - 1] - first == found.count - 1) {
        // Without gaps, as they mostly are: read in place.
        run.key += first * run.stride;
        run.value += first * run.stride;
      } else {
        run.slots = found.slots;
      }
      run.positions = found.positions;
      run.end = found.count;
      runs.Add(run);
    }
    TokenRun sinks = exact;
    sinks.end = std::min(a_.sinks, span.past);
    runs.Add(sinks);
    AddRing(&runs, exact, a_.sinks, a_.ring_slots, std::max(span.coded_end, a_.sinks), span.past);
  } else if (a_.local_window > 0) {
    // Older tokens are hidden to all, and their slots may be taken.
    const int64_t first = span.past - std::min(slots, a_.local_window - 1);
    AddRing(&runs, exact, 0, slots, std::max<int64_t>(0, first), span.past);
  } else {
    exact.end = span.past - call_.maps[static_cast<size_t>(row)].total();
    runs.Add(exact);
  }
  TokenRun fresh = Fresh(row, head);
  fresh.end = std::min(span.fresh, fresh_end);
  runs.Add(fresh);
  return runs;
}

}  // namespace minicache
