// Where the tokens that are left lie: docs/operator.md, "Eviction".
#pragma once

#include <cstdint>

namespace minicache {

// The slots of codes of one batch row, or in mode 'exact' of its exact tokens.
struct SlotMap {
  const int32_t* evicted;  // [segments + 1] of the row; nullptr: a slot is a position
  int64_t segments;        // n
  int64_t length;          // L; 0: one segment
  int64_t sinks;           // N; 0 in mode 'exact'

  // E: all that is evicted.
  int64_t total() const { return evicted ? evicted[segments] : 0; }
  // First slot of a segment; of the segment n: behind the last one's, where texts end.
  int64_t Start(int64_t segment) const {
    return segment * length - (evicted ? evicted[segment] : 0);
  }
  // Of a token that is left.
  int64_t SlotOf(int64_t position) const;
};

}  // namespace minicache
