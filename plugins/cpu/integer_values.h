// Sums of value codes in the tile layout with integer weights: decode's few rows.
#pragma once

#include "cpu/byte_values.h"

namespace minicache {
namespace MINICACHE_ISA {

// out[r, c] += sum_t weight[r, t] * value code t for kColumns vectors of components: planes of one
// run of kLanes bytes from `plane` on, or, at 8 bits, runs side by side.
template <int kBits, bool kBytes, int kRows, int kColumns>
static inline void AddColumns(const CodeFormat& f, const CodeSegment& s, const CodeBlock& block,
                              int lane, int plane, const IntegerWeights& w, int64_t row, float* out,
                              int64_t out_stride, Ahead* ahead) {
  Ahead next = *ahead;  // in registers
  constexpr int kHalves = kBytes ? 1 : 2, kLoads = kBits == 8 ? kColumns : 1;
  constexpr int kStride = kBytes ? IntegerWeights::kBytes : IntegerWeights::kPairs;
  constexpr int kMost = kBytes ? MostSums((1 << kBits) - 1, 255) : 1 << 20;
  const int32_t* words = (kBytes ? w.bytes : w.pairs) + row * kStride;
  const int span = SegmentBytes(s), shift = kBits * plane;
  // A single column of pairs has too few chains of additions to hide their latency: two, then.
  constexpr int kChains = kColumns == 1 ? kHalves : 1, kSums = kColumns * kChains;
  Ints sums[kRows][kSums];
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    MINICACHE_UNROLL
    for (int c = 0; c < kSums; c++) sums[r][c] = Ints{};
  }
  const char* bytes = block.data + s.first_byte * 4 + lane * 4;
  const int last = (block.end + 3) / 4;
  for (int first = block.begin / 4; first < last; first += kMost) {
    Ints part[kRows][kSums];
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) {
      MINICACHE_UNROLL
      for (int c = 0; c < kSums; c++) part[r][c] = kBytes ? Ints{} : sums[r][c];
    }
    const int end = last - first < kMost ? last : first + kMost;
    for (int quad = first; quad < end; quad++) {
      const char* source = bytes + (int64_t)quad * 4 * f.bytes;
      Words x[kLoads];
      MINICACHE_UNROLL
      for (int c = 0; c < kLoads; c++) {
        x[c] = LoadBytesOfQuad(source + c * kLanes * 4, span - lane - c * kLanes);
      }
      next.FetchNext();
      MINICACHE_UNROLL
      for (int half = 0; half < kHalves; half++) {
        Words field[kColumns];
        MINICACHE_UNROLL
        for (int c = 0; c < kColumns; c++) {
          const Words from = x[kBits == 8 ? c : 0];
          const int at = kBits == 8 ? 0 : shift + c * kBits;
          field[c] = kBytes ? ByteField<kBits>(from, at) : PairField<kBits>(from, at, half);
        }
        MINICACHE_UNROLL
        for (int r = 0; r < kRows; r++) {
          const Ints word = Broadcast(words[r * kStride + quad * kHalves + half]);
          MINICACHE_UNROLL
          for (int c = 0; c < kColumns; c++) {
            if (kBytes) {
              AddBytes(&part[r][c * kChains + half % kChains], (Words)word, field[c]);
            } else {
              AddPairs(&part[r][c * kChains + half % kChains], field[c], word);
            }
          }
        }
      }
    }
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) {
      MINICACHE_UNROLL
      for (int c = 0; c < kSums; c++) {
        sums[r][c] = kBytes ? sums[r][c] + FlushBytes(part[r][c]) : part[r][c];
      }
    }
  }
  *ahead = next;
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    const int64_t at = 2 * (row + r) + kBytes;
    const Grid grid = MakeGrid(w.scales[at], w.sums[at], (1 << kBits) - 1);
    MINICACHE_UNROLL
    for (int c = 0; c < kColumns; c++) {
      const int j = lane + (kBits == 8 ? c * kLanes : 0), p = kBits == 8 ? 0 : plane + c;
      float* target = out + r * out_stride + s.first_component + p * span + j;
      Ints sum = sums[r][c * kChains] + Broadcast(grid.start);
      if (kChains == 2) sum += sums[r][c * kChains + kChains - 1];
      Floats more = (ToFloats((Words)sum) + Set(grid.rest)) * Set(grid.scale);
      if (span - j < kLanes) more = LaneIndex() < span - j ? more : Floats{};
      Store(target, Load(target) + more);
    }
  }
}

template <int kBits, bool kBytes, int kRows>
static inline void AddSegmentValues(const CodeFormat& f, const CodeSegment& s,
                                    const CodeBlock& block, const IntegerWeights& w, int64_t row,
                                    float* out, int64_t stride, Ahead* ahead) {
  const int span = SegmentBytes(s);
  int lane = 0;
  if constexpr (kBytes && kHasByteDots) {
    AddByteValues<kBits, kRows>(f, s, block, w, row, out, stride, ahead);
  } else if constexpr (kBits == 8) {
    for (; lane + kLanes < span; lane += 2 * kLanes) {
      AddColumns<8, kBytes, kRows, 2>(f, s, block, lane, 0, w, row, out, stride, ahead);
    }
    if (lane < span) {
      AddColumns<8, kBytes, kRows, 1>(f, s, block, lane, 0, w, row, out, stride, ahead);
    }
  } else {
    for (; lane < span; lane += kLanes) {
      MINICACHE_UNROLL
      for (int plane = 0; plane < 8 / kBits; plane += 2) {
        AddColumns<kBits, kBytes, kRows, 2>(f, s, block, lane, plane, w, row, out, stride, ahead);
      }
    }
  }
}

template <Maths kMaths, int kRows>
static __attribute__((noinline)) void AddIntegerRows(const CodeFormat& f, const CodeBlock& block,
                                                     const IntegerWeights& w, int64_t row,
                                                     float* out, int64_t stride, Ahead ahead) {
  for (int i = 0; i < f.segment_count; i++) {
    const CodeSegment& s = f.segments[i];
    const auto add = [&](auto bits) __attribute__((always_inline)) {
      constexpr int kBits = decltype(bits)::value;
      constexpr bool kBytes = TakesBytes(kMaths, kBits);
      AddSegmentValues<kBits, kBytes, kRows>(f, s, block, w, row, out, stride, &ahead);
    };
    if (s.bits == 8) add(Constant<8>());
    if (s.bits == 4) add(Constant<4>());
    if (s.bits == 2) add(Constant<2>());
  }
}

// out[r] += sum_t weight[r, t] * value of code t.
template <Maths kMaths>
static inline void AddIntegerValues(const CodeFormat& f, const CodeBlock& block,
                                    const IntegerWeights& w, int64_t rows, float* out,
                                    int64_t stride, Ahead ahead) {
  for (int64_t r = 0; r < rows; r += kIntegerRows, ahead.bytes = 0) {
    float* target = out + r * stride;
    switch (rows - r) {
      case 1:
        AddIntegerRows<kMaths, 1>(f, block, w, r, target, stride, ahead);
        break;
      case 2:
        AddIntegerRows<kMaths, 2>(f, block, w, r, target, stride, ahead);
        break;
      case 3:
        AddIntegerRows<kMaths, 3>(f, block, w, r, target, stride, ahead);
        break;
      default:
        AddIntegerRows<kMaths, 4>(f, block, w, r, target, stride, ahead);
        break;
    }
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
