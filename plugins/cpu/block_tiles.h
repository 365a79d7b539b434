// Attention of many rows (prefill) over a block of tokens: the products of a pass of rows are made
// by register tiles from packed operands, and a tile is left out where none of its rows sees a
// token.
#pragma once

#include "cpu/panels.h"
#include "cpu/weights.h"

namespace minicache {
namespace MINICACHE_ISA {

// Scores of a pass stay in the first cache between the two products.
constexpr int kPassTiles = kLanes == 16 ? 4 : 8;
constexpr int64_t kPassRows = kPassTiles * kManyTileRows;

// What a block of a task multiplies.
struct BlockOperands {
  const float* queries;  // interleaved, see InterleaveRows
  int64_t depth;         // of queries and keys
  const float* keys;     // panels
  const float* values;   // panels
  int64_t width;         // of values
  float* output;         // [rows, widths.output], at the columns that the values go to
};

// The vectors of the next block, fetched row by row while this one computes: they lie a page apart,
// where the hardware foresees nothing.
struct BlockAhead {
  const char* key;
  const char* value;
  int64_t stride;
  int64_t bytes;  // of a row
  int64_t left;   // rows, of keys and values alike

  void FetchRows(int64_t count) {
    for (; count > 0 && left > 0; count--, left--) {
      for (int64_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(key + i, 0, 2);
        __builtin_prefetch(value + i, 0, 2);
      }
      key += stride;
      value += stride;
    }
  }
};

// The rows of a register tile, and the tokens of the block that any of them sees.
struct RowTile {
  int64_t first;
  int32_t rows;
  int32_t begin;
  int32_t end;
};

static inline int64_t PositionOf(const AttendTask& task, int64_t row) {
  return task.past + task.new_begin + (int32_t)row / task.heads;
}

static inline RowTile MakeTile(const AttendTask& task, const BlockView& block, int64_t first,
                               int64_t rows) {
  const int64_t left = rows - first;
  RowTile tile = {first, left < kManyTileRows ? (int32_t)left : kManyTileRows, block.begin,
                  block.end};
  if (block.run->positions) return tile;
  int begin = tile.begin, end = tile.end;
  Narrow(task, block, PositionOf(task, first), &tile.begin, &end);
  Narrow(task, block, PositionOf(task, first + tile.rows - 1), &begin, &tile.end);
  return tile;
}

// Scores of a row of a tile become weights, 0 for those of the tile's tokens that it does not see.
static inline void WeighTileRow(const AttendTask& task, const BlockView& block,
                                const TokenFactors* factors, const RowTile& tile, int64_t row,
                                float* s, const Softmax& softmax) {
  const int64_t position = PositionOf(task, row);
  const int first = tile.begin / kLanes * kLanes, last = tile.end;
  const bool gaps = factors || block.run->positions;
  int begin = tile.begin, end = tile.end;
  if (!block.run->positions) Narrow(task, block, position, &begin, &end);
  if (factors) ScaleScores(*factors, first, last, s);
  if (task.softcap > 0.f) CapScores(task.softcap, first, last, s);
  if (task.bias) AddBias(task, block, row, begin, end, s);

  const Floats hidden = Set(-__builtin_inff());
  Floats best = hidden;
  for (int t = first; t < last; t += kLanes) {
    Floats score = Load(s + t);
    if (gaps || t < begin || t + kLanes > end) {
      score = Visible(task, block, factors, position, t, begin, end) ? score : hidden;
      Store(s + t, score);
    }
    best = Max(best, score);
  }
  RaiseMaximum(task, row, Maximum(best), softmax);
  const float maximum = softmax.maximum[row];
  // With nothing seen so far any base will do: all weights are 0.
  const Floats base = Set(maximum == -__builtin_inff() ? 0.f : maximum);
  Floats total = {};
  for (int t = first; t < last; t += kLanes) {
    Floats weight = Exp(Load(s + t) - base);
    total += weight;
    if (factors) weight *= Load(factors->value + t);
    Store(s + t, weight);
  }
  softmax.total[row] += Sum(total);
}

static inline void AttendTiles(const AttendTask& task, const BlockView& block,
                               const TokenFactors* factors, int64_t rows, const BlockOperands& x,
                               BlockAhead ahead, const Softmax& softmax) {
  const int64_t tile_count = (rows + kManyTileRows - 1) / kManyTileRows;
  const int64_t fetched = ahead.left / (tile_count * (kBlockTokens / kPanel)) + 1;
  for (int64_t pass = 0; pass < rows; pass += kPassRows) {
    const int64_t stop = pass + kPassRows < rows ? pass + kPassRows : rows;
    RowTile tiles[kPassTiles];
    int count = 0;
    for (int64_t r = pass; r < stop; r += kManyTileRows) {
      tiles[count] = MakeTile(task, block, r, rows);
      count += tiles[count].begin < tiles[count].end;
    }
    const auto scores = [&](int64_t row) { return softmax.scores + (row - pass) * kBlockTokens; };
    for (int t = 0; t < kBlockTokens; t += kPanel) {
      for (int i = 0; i < count; i++) {
        const RowTile& tile = tiles[i];
        if (tile.end <= t || tile.begin >= t + kPanel) continue;
        ahead.FetchRows(fetched);
        ScoreTile(tile.rows, x.queries + tile.first * x.depth, x.keys + t * x.depth, x.depth,
                  scores(tile.first) + t);
      }
    }
    for (int i = 0; i < count; i++) {
      for (int64_t r = tiles[i].first; r < tiles[i].first + tiles[i].rows; r++) {
        WeighTileRow(task, block, factors, tiles[i], r, scores(r), softmax);
      }
    }
    for (int64_t n = 0; n < x.width; n += kPanel) {
      const int vectors = PanelVectors(x.width, n);
      for (int i = 0; i < count; i++) {
        const RowTile& tile = tiles[i];
        ValueTile(tile.rows, vectors, scores(tile.first) + tile.begin,
                  x.values + n * kBlockTokens + tile.begin * vectors * kLanes,
                  tile.end - tile.begin, x.output + tile.first * task.widths.output + n,
                  task.widths.output);
      }
    }
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
