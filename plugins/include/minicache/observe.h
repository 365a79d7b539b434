// What the kernel reads and writes that tells which tokens got how much attention: plain data, like
// attend.h.
#pragma once

#include "minicache/attend.h"

namespace minicache {

// The weights of one kv head's query heads, added up over the task's new tokens.
struct ObserveTask {
  const AttendTask*
      attend;        // queries, runs and scratch of AttendScratchFloats; nothing else is set
  const char* sink;  // [heads], nullptr: none
  float share;       // of a query head's weights: 1 / H
  float* scores;     // scratch: [rows, stride]
  int64_t stride;    // tokens of all runs, rounded up to 16
  float* gained;     // [stride], in the order of the runs
  float* scratch;    // ObserveScratchFloats
};

}  // namespace minicache
