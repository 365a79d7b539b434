// One call of the operator, shared by its steps: attend, encode, retain, write.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "minicache/kernels.h"
#include "minicache/operator.h"
#include "minicache/slot_map.h"

namespace minicache {

// Lengths of one batch row, and the borders that follow (docs/operator.md).
struct Span {
  int64_t past;
  int64_t total;
  int64_t fresh;         // valid new tokens
  int64_t coded_end;     // c0: positions [sinks, c0) are read as codes
  int64_t encode_begin;  // positions [encode_begin, encode_end) are encoded by this call
  int64_t encode_end;
};

struct Call {
  const Attributes& attributes;
  const Tensors& tensors;
  CallShape shape;
  std::vector<Span> spans;    // [B]
  std::vector<SlotMap> maps;  // [B]
  const KernelTable& kernels;
  MathsSetting maths;
  Host& host;

  Dtype model_dtype;
  Dtype exact_dtype;
  Dtype retained_dtype;
  Rotation rotation;  // with a decoder: of every segment that the call touches

  float* Floats(int64_t count) const {
    return static_cast<float*>(host.Allocate(static_cast<size_t>(count) * sizeof(float)));
  }
  const Tensor& tensor(TensorId id) const { return tensors[id]; }
  // Slot of a row's codes, or in mode 'exact' of its exact state, where a position lies.
  int64_t SlotOf(int64_t row, int64_t position) const {
    return maps[static_cast<size_t>(row)].SlotOf(position);
  }
  // Slot of the exact state where a position lies.
  int64_t ExactSlot(int64_t row, int64_t position) const {
    const Attributes& a = attributes;
    if (!a.coded()) return a.local_window > 0 ? position % shape.slots : SlotOf(row, position);
    return position < a.sinks ? position : a.sinks + (position - a.sinks) % a.ring_slots;
  }
};

inline Dtype RealType(ElementType type) {
  if (type == ElementType::kFloat16) return Dtype::kFloat16;
  return type == ElementType::kBfloat16 ? Dtype::kBfloat16 : Dtype::kFloat32;
}

inline int64_t ElementSize(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

// One head's part of a table [heads, rows, columns].
inline const char* TableOf(const Tensor& table, int64_t head) {
  const int64_t elements = table.shape[1] * table.shape[2];
  return table.data + head * elements * ElementSize(RealType(table.type));
}

// Runs body(i, worker) for each i < count, handing items out one by one: their costs differ.
template <class Body>
void ForEach(Host& host, int64_t count, int64_t workers, const Body& body) {
  struct Shared {
    std::atomic<int64_t> next;
    int64_t count;
    const Body& body;
  } shared = {{0}, count, body};
  const auto run = [](void* data, size_t worker) {
    Shared& s = *static_cast<Shared*>(data);
    for (int64_t i; (i = s.next.fetch_add(1, std::memory_order_relaxed)) < s.count;) {
      s.body(i, static_cast<int64_t>(worker));
    }
  };
  if (workers <= 1) {
    run(&shared, 0);
  } else {
    host.ParallelFor(static_cast<size_t>(workers), run, &shared);
  }
}

// How many workers, each with scratch of its own, `count` items can use.
inline int64_t WorkerCount(int64_t count) {
  const auto threads = static_cast<int64_t>(std::thread::hardware_concurrency());
  return std::clamp<int64_t>(count, 1, std::max<int64_t>(1, threads));
}

SlotMap MakeSlotMap(const Attributes& attributes, const Tensors& tensors, int64_t row);
// What is wrong with the table of a row, or an empty string. Codes end at `coded_end`.
std::string CheckSlotMap(const SlotMap& map, int64_t coded_end);
// Likewise of its side buffer: the codes of its tokens are looked up by their positions.
std::string CheckRetained(const Attributes& attributes, const Tensors& tensors, const SlotMap& map,
                          int64_t row, int64_t coded_end);

// The steps, in this order.
void AttendCall(const Call& call);
void ObserveCall(const Call& call);
void EncodeCall(const Call& call);
void EncodeSubspaceCall(const Call& call);
// Similarities are those of the positions [encode_begin, encode_end) of the row.
void RetainRow(const Call& call, int64_t row, const float* similarities);
void WriteExact(const Call& call);

// The rotations of the segments that a call touches.
Rotation MakeRotation(const Call& call);

// What an encoder of one batch row's keys or values reads and writes, positions and format apart.
// `layers` outlives the task.
EncodeTask MakeEncodeTask(const Call& call, bool values, int64_t row,
                          std::vector<LayerVectors>* layers);

// Copies the full vector of one layer's kv head, cached or new, to `target`.
void CopyVector(const Call& call, bool values, int64_t row, int64_t layer, int64_t head,
                int64_t position, Dtype target_dtype, char* target);

// The new keys or values of a layer of the group.
inline const Tensor& Fresh(const Call& call, bool values, int64_t layer) {
  if (layer == call.attributes.slot) {
    return call.tensor(values ? TensorId::kValue : TensorId::kKey);
  }
  const auto i = static_cast<size_t>(layer);
  return values ? call.tensors.new_values[i] : call.tensors.new_keys[i];
}

}  // namespace minicache
