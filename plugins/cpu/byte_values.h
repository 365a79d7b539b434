// Sums of value codes of 4 or 2 bits with weights of 8 bits, where one instruction adds four
// products: what is left to save are the instructions that bring fields into place.
//
// Fields stay where they are in their bytes: plane p counts 2^(p * bits) times. The uppermost one
// is the sign of a byte; its bit is turned, which takes 128 off.
#pragma once

#include "cpu/integer_operands.h"

namespace minicache {
namespace MINICACHE_ISA {

// Runs of kLanes bytes that are taken at once: sixteen sums with four rows.
template <int kBits>
constexpr int kByteRuns = kBits / 2;

static inline Words EachByte(int x) { return (Words)Broadcast(0x1010101 * x); }

template <int kBits>
static inline __attribute__((always_inline)) Words FieldInPlace(Words x, int plane) {
  const Words field = x & EachByte(((1 << kBits) - 1) << (kBits * plane));
  return plane == 8 / kBits - 1 ? field ^ EachByte(0x80) : field;
}

// out[r, c] += sum_t weight[r, t] * value code t for all planes of kRuns runs from `lane` on.
template <int kBits, int kRows, int kRuns>
static inline void AddRuns(const CodeFormat& f, const CodeSegment& s, const CodeBlock& block,
                           int lane, const IntegerWeights& w, int64_t row, float* out,
                           int64_t out_stride, Ahead* ahead) {
  constexpr int kPlanes = 8 / kBits, kSums = kRuns * kPlanes;
  Ahead next = *ahead;  // in registers
  const int32_t* words = w.bytes + row * IntegerWeights::kBytes;
  const int span = SegmentBytes(s), last = (block.end + 3) / 4;
  Ints sums[kRows][kSums];
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    MINICACHE_UNROLL
    for (int c = 0; c < kSums; c++) sums[r][c] = Ints{};
  }
  const char* bytes = block.data + s.first_byte * 4 + lane * 4;
  for (int quad = block.begin / 4; quad < last; quad++) {
    const char* source = bytes + (int64_t)quad * 4 * f.bytes;
    Words field[kSums];
    MINICACHE_UNROLL
    for (int run = 0; run < kRuns; run++) {
      const Words x = LoadBytesOfQuad(source + run * kLanes * 4, span - lane - run * kLanes);
      MINICACHE_UNROLL
      for (int p = 0; p < kPlanes; p++) field[run * kPlanes + p] = FieldInPlace<kBits>(x, p);
    }
    for (int i = 0; i < kSums / 2; i++) next.FetchNext();
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) {
      const Words word = (Words)Broadcast(words[r * IntegerWeights::kBytes + quad]);
      MINICACHE_UNROLL
      for (int c = 0; c < kSums; c++) AddBytes(&sums[r][c], word, field[c]);
    }
  }
  *ahead = next;
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    const int64_t at = 2 * (row + r) + 1;
    const float sum = (float)w.sums[at];  // at most 255 for each of 64 tokens: all is exact in fp32
    MINICACHE_UNROLL
    for (int c = 0; c < kSums; c++) {
      const int p = c % kPlanes, j = lane + c / kPlanes * kLanes, unit = 1 << (kBits * p);
      const float turned = p == kPlanes - 1 ? 128.f : 0.f;
      const float middle = sum * ((float)(unit * ((1 << kBits) - 1)) / 2 - turned);
      const float scale = w.scales[at] / (float)unit;
      float* target = out + r * out_stride + s.first_component + p * span + j;
      Floats more = (ToFloats((Words)sums[r][c]) - Set(middle)) * Set(scale);
      if (span - j < kLanes) more = LaneIndex() < span - j ? more : Floats{};
      Store(target, Load(target) + more);
    }
  }
}

template <int kBits, int kRows>
static inline void AddByteValues(const CodeFormat& f, const CodeSegment& s, const CodeBlock& block,
                                 const IntegerWeights& w, int64_t row, float* out, int64_t stride,
                                 Ahead* ahead) {
  constexpr int kRuns = kByteRuns<kBits>;
  const int span = SegmentBytes(s);
  int lane = 0;
  for (; lane + (kRuns - 1) * kLanes < span; lane += kRuns * kLanes) {
    AddRuns<kBits, kRows, kRuns>(f, s, block, lane, w, row, out, stride, ahead);
  }
  if (lane < span) AddRuns<kBits, kRows, 1>(f, s, block, lane, w, row, out, stride, ahead);
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
