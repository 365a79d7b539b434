// One call, as the parts of the plan see it.
#pragma once

#include <algorithm>
#include <vector>

#include "gpu/launch_builder.h"
#include "gpu/node.h"
#include "gpu/scratch_layout.h"

namespace minicache {

struct GpuCall {
  const GpuNode& node;
  const Tensors& tensors;
  const CallShape& shape;
  const ScratchLayout& layout;
  uint64_t table;    // address of the node's table
  uint64_t scratch;  // address of the scratch

  // nullptr where the node has no such tensor.
  const void* data(TensorId id) const { return tensors[id].data; }
  ElementType type(TensorId id) const { return tensors[id].type; }
  uint64_t at(int64_t bytes) const { return scratch + static_cast<uint64_t>(bytes); }
  uint64_t entry(int64_t index) const { return table + 4 * static_cast<uint64_t>(index); }

  ElementType model() const { return type(TensorId::kQuery); }
  ElementType exact() const { return type(TensorId::kExactKey); }
  int64_t pairs() const { return node.framed() ? tensors[TensorId::kRopeFrequencies].shape[0] : 0; }
  // Keys without a frame lie in one segment that no position leaves.
  int64_t segment_length() const {
    return node.framed() ? node.a.segment_length : int64_t{1} << 30;
  }
};

// How exact tokens lie and are read: `MODE` of the kernels.
enum ExactMode : int64_t { kAllExact = 0, kSliding = 1, kBesideCodes = 2 };

inline ExactMode ModeOf(const Attributes& a) {
  return a.coded() ? kBesideCodes : a.local_window > 0 ? kSliding : kAllExact;
}

// Whether exact tokens are evicted: those beside codes stay where they are.
inline bool EvictsExact(const Attributes& a) { return a.evicts && !a.coded(); }

// How kernels know the tokens that are read from the side buffer: `MARKS` and `RETAINS` of them.
enum Retains : int64_t { kNothing = 0, kByPosition = 1, kByFlag = 2 };

inline Retains RetainsOf(const Attributes& a) {
  if (!a.retains()) return kNothing;
  return a.retention == Retention::kBudget ? kByFlag : kByPosition;
}

// Slots that exact tokens go round in, sinks apart.
inline int64_t RingOf(const GpuCall& call) {
  return call.node.a.coded() ? call.node.a.ring_slots : call.shape.slots;
}

// Layers whose new keys and values one launch takes.
constexpr int64_t kLayersPerLaunch = 8;

inline int64_t LayersFrom(const GpuCall& call, int64_t first_layer) {
  return std::min(kLayersPerLaunch, call.node.a.group_size - first_layer);
}

void AddLayers(const GpuCall& call, int64_t first_layer, LaunchBuilder* launch);

inline void AddLengths(const GpuCall& call, LaunchBuilder* launch) {
  launch->Pointer(call.data(TensorId::kPastLengths)).Pointer(call.data(TensorId::kTotalLengths));
}

// Lengths, and the table by which kernels with EVICTS find slots (plugins/triton/slots.py).
inline void AddEvicted(const GpuCall& call, LaunchBuilder* launch) {
  AddLengths(call, launch);
  launch->TablePointer(call.data(TensorId::kEvicted));
}

inline void AddFormat(const GpuFormat& format, LaunchBuilder* launch) {
  for (const int64_t size : format.sizes) launch->HintedInt(size);
  for (int i = 1; i < 4; i++) launch->HintedInt(format.starts[i]);
  launch->HintedInt(format.bytes);
}

// Launches before the first write of a state, and those that write, on a writer.
void AddAttention(const GpuCall& call, std::vector<Launch>* launches);
void AddWrites(const GpuCall& call, std::vector<Launch>* launches);

// After the attention of the new tokens [first, first + count): what its observed queries attended
// to.
void AddObserve(const GpuCall& call, int64_t first, int64_t count, std::vector<Launch>* launches);

// Retention: which tokens attention reads in full, and what the writer keeps.
void AddActive(const GpuCall& call, std::vector<Launch>* launches);
void AddRetention(const GpuCall& call, std::vector<Launch>* launches);

}  // namespace minicache
