// Segments among the slots of codes, where some of their tokens are evicted.
#pragma once

#include "minicache/attend.h"

namespace minicache {
namespace MINICACHE_ISA {

// A slot is never behind its position, so that its segment is no earlier than this suggests.
static inline int64_t SegmentOfSlot(const SlotMap& map, const Rotation& rotation, int64_t slot) {
  int64_t segment = rotation.SegmentOf(slot);
  if (!map.evicted || rotation.segment_length == 0) return segment;
  while (segment + 1 < map.segments && map.Start(segment + 1) <= slot) segment++;
  return segment;
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
