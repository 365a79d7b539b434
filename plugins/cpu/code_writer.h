// Where an encoder finds the vectors of a token and where it puts the bytes of its code.
#pragma once

#include "cpu/elements.h"
#include "minicache/encode.h"

namespace minicache {
namespace MINICACHE_ISA {

// `head` counts code heads, or slots, whose codes of one format start at `codes`.
static inline void StoreCode(const EncodeTask& task, const CodeFormat& format, char* codes,
                             int64_t head, int64_t position, const uint8_t* bytes) {
  const int64_t n = format.bytes, t = position - task.evicted;
  char* code = codes + head * task.capacity * n;
  if (format.layout == Layout::kRow) {
    memcpy(code + t * n, bytes, (size_t)n);
  } else if (task.values) {
    char* quad = code + t / 4 * 4 * n + t % 4;
    for (int64_t j = 0; j < n; j++) quad[j * 4] = (char)bytes[j];
  } else {
    char* tile = code + t / 16 * 16 * n + t % 16 * 4;
    for (int64_t j = 0; j < n; j += 4) memcpy(tile + j * 16, bytes + j, 4);
  }
}

// The vector of a layer that lies in slot `head` of the matched order.
static inline const char* VectorOf(const EncodeTask& task, const LayerVectors& layer, int64_t head,
                                   int64_t position) {
  const int64_t h = layer.permutation[head], size = task.head_size;
  if (position >= task.past) {
    const int64_t token = position - task.past;
    return layer.fresh + (token * task.heads + h) * size * ElementBytes(task.fresh_dtype);
  }
  const int64_t ring = task.sinks + (position - task.sinks) % task.ring_slots;
  const int64_t slot = position < task.sinks ? position : ring;
  return layer.exact + (h * task.slots + slot) * size * ElementBytes(task.exact_dtype);
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
