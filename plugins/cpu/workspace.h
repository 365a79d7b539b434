// A task's scratch: queries and blocks as the kernels read them, and the state of its softmax.
#pragma once

#include "cpu/block_tiles.h"
#include "cpu/code_reader.h"
#if defined(__AVX2__)
#include "cpu/integer_operands.h"
#endif

namespace minicache {
namespace MINICACHE_ISA {

struct Queries {
  const float* data;
  int64_t stride;
};

struct Workspace {
  Queries query;
  Queries code_query;  // as they meet the key codes of `segment`
  int64_t segment;
  float* queries;    // [rows, widths.vector]: what `query` reads
  float* vectors;    // [kBlockTokens, widest]: keys or values; key codes also turned
  float* rotated;    // [rows, widths.vector], with a decoder
  float* projected;  // [rows, widths.key], likewise
  // Of many rows: the queries as tiles read them, keys and values of a block likewise.
  float* interleaved;       // [rows, widths.vector]
  float* code_interleaved;  // [rows, widths.key]; the same ones without a decoder
  float* key_panels;        // [widest, kBlockTokens]
  float* value_panels;
  float* delta_vectors;  // [kBlockTokens, widths.delta]
  // Of few rows.
  float* delta_scores;  // [rows, kBlockTokens]
  float* delta_query;   // [rows, widths.delta]
  float* delta_sums;    // likewise
#if defined(__AVX2__)
  int64_t quantised;  // segment whose queries `integer_query` holds
  IntegerQueries integer_query;
  IntegerQueries delta_integers;
  IntegerWeights integer_weights;
#endif
  Softmax softmax;
};

static inline int64_t Widest(const Widths& n) {
  const int64_t code = n.key > n.value ? n.key : n.value;
  return code > n.vector ? code : n.vector;
}

static inline bool HasDecoder(const Widths& n) { return n.output > n.vector; }

// Floats of scratch of a task with so many rows.
static inline int64_t WorkspaceFloats(int64_t rows, const Widths& n) {
  const int64_t block = Widest(n) * kBlockTokens;
  const int64_t coded = HasDecoder(n) ? n.vector + n.key : 0;
  if (rows > kFewRows) {
    const int64_t interleaved = n.vector + (HasDecoder(n) ? n.key : 0);
    return 3 * block + kPassRows * kBlockTokens + rows * (n.vector + coded + interleaved) +
           kBlockTokens * n.delta;
  }
  int64_t each = n.vector + coded + kBlockTokens;
#if defined(__AVX2__)
  each += IntegerScratch(n) + (n.delta > 0 ? QueryScratch(n) : 0);
#endif
  if (n.delta > 0) each += kBlockTokens + 2 * n.delta;
  return block + rows * each;
}

// Every part is a multiple of 16 floats: all begin a cache line if the first one does.
static inline Workspace PlaceWorkspace(const AttendTask& task, int64_t rows) {
  const Widths& n = task.widths;
  float* next = task.scratch;
  const auto take = [&](int64_t count) {
    float* const taken = next;
    next += count;
    return taken;
  };
  const int64_t block = Widest(n) * kBlockTokens;
  Workspace w = {};
  w.vectors = take(block);
  w.queries = take(rows * n.vector);
  w.query = w.code_query = {w.queries, n.vector};
  w.segment = -1;
  if (HasDecoder(n)) {
    w.rotated = take(rows * n.vector);
    w.projected = take(rows * n.key);
  }
  if (rows > kFewRows) {
    w.key_panels = take(block);
    w.value_panels = take(block);
    w.delta_vectors = take(kBlockTokens * n.delta);
    w.softmax.scores = take(kPassRows * kBlockTokens);
    w.interleaved = w.code_interleaved = take(rows * n.vector);
    if (HasDecoder(n)) w.code_interleaved = take(rows * n.key);
  } else {
    w.softmax.scores = take(rows * kBlockTokens);
    if (n.delta > 0) {
      w.delta_scores = take(rows * kBlockTokens);
      w.delta_query = take(rows * n.delta);
      w.delta_sums = take(rows * n.delta);
    }
#if defined(__AVX2__)
    w.quantised = -2;
    const auto take_queries = [&] {
      IntegerQueries q = {(int32_t*)take(rows * QueryWords(n)), QueryWords(n), nullptr};
      q.grids = (Grid*)take(rows * CodeFormat::kMaxSegments * kGridFloats);
      return q;
    };
    w.integer_query = take_queries();
    if (n.delta > 0) w.delta_integers = take_queries();
    w.integer_weights = PlaceWeights(next, rows);
#endif
  }
  w.softmax.maximum = task.maximum;
  w.softmax.total = task.sum;
  w.softmax.output = task.output;
  return w;
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
