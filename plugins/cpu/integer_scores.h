// Scores of key codes in the tile layout with integer queries: decode's few rows.
#pragma once

#include "cpu/integer_operands.h"

namespace minicache {
namespace MINICACHE_ISA {

// Vectors of tokens that share a query's words: with AVX2 they fill the register file (8 sums).
constexpr int kScoreVectors = 2;

static inline const char* TileOf(const CodeFormat& f, const CodeBlock& block, int t) {
  return block.data + (int64_t)(t / 16 * 16) * f.bytes + t % 16 * 4;
}

// sums[r, v] += q[r] . the fields of segment s, for the kLanes tokens at each of `tiles`.
template <int kBits, bool kBytes, int kRows, int kVectors>
static inline void AddScores(const CodeSegment& s, const char* const* tiles, const int32_t* q,
                             Ahead* ahead, Ints (&sums)[kRows][kVectors]) {
  Ahead next = *ahead;  // in registers: each fetch would else wait for the one before to be stored
  constexpr int kPlanes = 8 / kBits, kHalves = kBytes ? 1 : 2;
  constexpr int kMost = kBytes ? MostSums((1 << kBits) - 1, 127) / kPlanes : 1 << 20;
  const int groups = SegmentGroups(s);
  for (int first = 0; first < groups; first += kMost) {
    Ints part[kRows][kVectors];
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) {
      MINICACHE_UNROLL
      for (int v = 0; v < kVectors; v++) part[r][v] = kBytes ? Ints{} : sums[r][v];
    }
    const int end = groups - first < kMost ? groups : first + kMost;
    for (int g = first; g < end; g++, q += kPlanes * kHalves * kRows) {
      Words x[kVectors];
      MINICACHE_UNROLL
      for (int v = 0; v < kVectors; v++) x[v] = LoadWords(tiles[v] + s.first_byte * 16 + g * 64);
      for (int i = 0; i < (kVectors * kLanes + 15) / 16; i++) next.FetchNext();
      MINICACHE_UNROLL
      for (int i = 0; i < kPlanes * kHalves; i++) {
        const int shift = i / kHalves * kBits;
        Words field[kVectors];
        MINICACHE_UNROLL
        for (int v = 0; v < kVectors; v++) {
          field[v] =
              kBytes ? ByteField<kBits>(x[v], shift) : PairField<kBits>(x[v], shift, i % kHalves);
        }
        MINICACHE_UNROLL
        for (int r = 0; r < kRows; r++) {
          const Ints word = Broadcast(q[i * kRows + r]);
          MINICACHE_UNROLL
          for (int v = 0; v < kVectors; v++) {
            if (kBytes) {
              AddBytes(&part[r][v], field[v], (Words)word);
            } else {
              AddPairs(&part[r][v], field[v], word);
            }
          }
        }
      }
    }
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) {
      MINICACHE_UNROLL
      for (int v = 0; v < kVectors; v++) {
        sums[r][v] = kBytes ? sums[r][v] + FlushBytes(part[r][v]) : part[r][v];
      }
    }
  }
  *ahead = next;
}

template <Maths kMaths, int kRows, int kVectors>
static inline void ScoreIntegerTokens(const CodeFormat& f, const CodeBlock& block, int t,
                                      const IntegerQueries& q, int64_t row, float* scores,
                                      Ahead* ahead) {
  const char* tiles[kVectors];
  for (int v = 0; v < kVectors; v++) tiles[v] = TileOf(f, block, t + v * kLanes);
  const int32_t* words = q.words + row * q.stride;
  Floats score[kRows][kVectors];
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    MINICACHE_UNROLL
    for (int v = 0; v < kVectors; v++) score[r][v] = Floats{};
  }
  for (int i = 0; i < f.segment_count; i++) {
    const CodeSegment& s = f.segments[i];
    const Grid* grids = q.grids + row * CodeFormat::kMaxSegments + i;
    Ints sums[kRows][kVectors];
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) {
      MINICACHE_UNROLL
      for (int v = 0; v < kVectors; v++) {
        sums[r][v] = Broadcast(grids[r * CodeFormat::kMaxSegments].start);
      }
    }
    const auto add = [&](auto bits) __attribute__((always_inline)) {
      constexpr int kBits = decltype(bits)::value;
      AddScores<kBits, TakesBytes(kMaths, kBits)>(s, tiles, words, ahead, sums);
    };
    if (s.bits == 8) add(Constant<8>());
    if (s.bits == 4) add(Constant<4>());
    if (s.bits == 2) add(Constant<2>());
    words += SegmentWords(s, kMaths) * kRows;
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) {
      const Grid& grid = grids[r * CodeFormat::kMaxSegments];
      MINICACHE_UNROLL
      for (int v = 0; v < kVectors; v++) {
        score[r][v] += (ToFloats((Words)sums[r][v]) + Set(grid.rest)) * Set(grid.scale);
      }
    }
  }
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    MINICACHE_UNROLL
    for (int v = 0; v < kVectors; v++) {
      Store(scores + r * kBlockTokens + t + v * kLanes, score[r][v]);
    }
  }
}

// Not inlined: the two kinds of maths and the numbers of rows would share one frame of registers.
template <Maths kMaths, int kRows>
static __attribute__((noinline)) void ScoreIntegerRows(const CodeFormat& f, const CodeBlock& block,
                                                       const IntegerQueries& q, int64_t row,
                                                       float* scores, Ahead ahead) {
  constexpr int kStep = kScoreVectors * kLanes;
  // Whole tiles of 16 tokens lie in memory, and no more than that behind the last token.
  int t = block.begin / 16 * 16;
  const int end = (block.end + 15) / 16 * 16;
  for (; t + kStep <= end; t += kStep) {
    ScoreIntegerTokens<kMaths, kRows, kScoreVectors>(f, block, t, q, row, scores, &ahead);
  }
  for (; t < end; t += kLanes) {
    ScoreIntegerTokens<kMaths, kRows, 1>(f, block, t, q, row, scores, &ahead);
  }
}

template <Maths kMaths>
static inline void ScoreIntegers(const CodeFormat& f, const CodeBlock& block,
                                 const IntegerQueries& q, int64_t rows, float* scores,
                                 Ahead ahead) {
  for (int64_t r = 0; r < rows; r += kIntegerRows, ahead.bytes = 0) {
    float* target = scores + r * kBlockTokens;
    switch (rows - r) {
      case 1:
        ScoreIntegerRows<kMaths, 1>(f, block, q, r, target, ahead);
        break;
      case 2:
        ScoreIntegerRows<kMaths, 2>(f, block, q, r, target, ahead);
        break;
      case 3:
        ScoreIntegerRows<kMaths, 3>(f, block, q, r, target, ahead);
        break;
      default:
        ScoreIntegerRows<kMaths, 4>(f, block, q, r, target, ahead);
        break;
    }
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
