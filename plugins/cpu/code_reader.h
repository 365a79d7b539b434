// Block readers of codes: turn a block of coded tokens into fp32 directions, whatever the segments
// and the layout. Magnitudes stay outside: they multiply scores and probabilities.
#pragma once

#include "cpu/code_loads.h"

namespace minicache {
namespace MINICACHE_ISA {

// Up to so many rows a kernel reads codes and keys as they lie in memory: decode.
constexpr int64_t kFewRows = 8;

// Tokens [begin, end) of the block whose codes start at `data` (a multiple of 64 tokens).
struct CodeBlock {
  const char* data;
  int32_t begin;
  int32_t end;
};

static inline float Middle(int bits) { return bits == 16 ? 0.f : (float)((1 << bits) - 1) * 0.5f; }

static inline int SegmentBytes(const CodeSegment& s) { return s.count * s.bits / 8; }

// Whether lanes can run along the bytes of every segment, and along tokens in fours of bytes. Rows
// with room behind them take whole vectors where a segment ends amidst one: zeros stand for
// what lies behind it, and what that writes belongs to the next plane or segment, or to the room,
// and is written after it.
static inline bool IsVectorisable(const CodeFormat& format) {
  for (int i = 0; i < format.segment_count; i++) {
    const CodeSegment& s = format.segments[i];
    const int unit = s.bits == 16 ? 2 * kLanes : kLanes;
    const bool whole = SegmentBytes(s) % unit == 0 || (s.bits != 16 && format.room >= kLanes - 1);
    if (!whole || s.first_byte % 4 != 0) return false;
  }
  return true;
}

// Byte j of token t, in either layout: for the shapes that vectors do not fit, and for tails.
static inline uint8_t ByteAt(const CodeFormat& f, bool values, const char* block, int t, int j) {
  const int64_t bytes = f.bytes;
  if (f.layout == Layout::kRow) return (uint8_t)block[t * bytes + j];
  if (values) return (uint8_t)block[t / 4 * 4 * bytes + j * 4 + t % 4];
  return (uint8_t)block[t / 16 * 16 * bytes + j / 4 * 64 + t % 16 * 4 + j % 4];
}

static inline void ReadToken(const CodeFormat& f, bool values, const char* block, int t,
                             float* out) {
  for (int i = 0; i < f.segment_count; i++) {
    const CodeSegment& s = f.segments[i];
    for (int c = 0; c < s.count; c++) {
      float* target = out + s.first_component + c;
      if (s.bits == 16) {
        const int j = s.first_byte + 2 * c;
        const int low = ByteAt(f, values, block, t, j), high = ByteAt(f, values, block, t, j + 1);
        *target = HalfToFloat((uint16_t)(low | high << 8));
      } else {
        const int span = SegmentBytes(s), plane = c / span;
        const int byte = ByteAt(f, values, block, t, s.first_byte + c - plane * span);
        *target = (float)((byte >> (s.bits * plane)) & ((1 << s.bits) - 1)) - Middle(s.bits);
      }
    }
  }
}

template <int kBits>
static inline void ReadRowSegment(const CodeSegment& s, const char* row, float* out) {
  const char* bytes = row + s.first_byte;
  float* target = out + s.first_component;
  if constexpr (kBits == 16) {
    Widen<Float16>(bytes, s.count, target);
  } else {
    using B = Bits<kBits>;
    const int span = s.count / B::kPlanes;
    for (int p = 0; p < B::kPlanes; p++) {
      for (int j = 0; j < span; j += kLanes) {
        Store(target + j + p * span, MidRise<kBits>(LoadBytes(bytes + j, span - j), kBits * p));
      }
    }
  }
}

template <int kBits>
static inline void ReadQuadSegment(const CodeSegment& s, const char* quad, float* out,
                                   int64_t stride) {
  const char* bytes = quad + s.first_byte * 4;
  float* target = out + s.first_component;
  if constexpr (kBits == 16) {
    for (int c = 0; c < s.count; c += kLanes) {
      Floats v[4];
      LoadHalfQuad(bytes + c * 8, v);
      for (int t = 0; t < 4; t++) Store(target + t * stride + c, v[t]);
    }
  } else {
    using B = Bits<kBits>;
    const int span = s.count / B::kPlanes;
    for (int p = 0; p < B::kPlanes; p++) {
      for (int j = 0; j < span; j += kLanes) {
        const Words x = LoadBytesOfQuad(bytes + j * 4, span - j);
        for (int t = 0; t < 4; t++) {
          Store(target + t * stride + j + p * span, MidRise<kBits>(x, 8 * t + kBits * p));
        }
      }
    }
  }
}

// [tokens, stride] directions of a block. Writes whole quads of values tiles.
static inline void ReadCodes(const CodeFormat& f, bool values, const CodeBlock& block, float* out,
                             int64_t stride) {
  const bool vector = IsVectorisable(f);
  if (vector && f.layout == Layout::kTile && values) {
    for (int t = block.begin / 4 * 4; t < block.end; t += 4) {
      const char* quad = block.data + (int64_t)t * f.bytes;
      float* target = out + t * stride;
      for (int i = 0; i < f.segment_count; i++) {
        const CodeSegment& s = f.segments[i];
        if (s.bits == 16) ReadQuadSegment<16>(s, quad, target, stride);
        if (s.bits == 8) ReadQuadSegment<8>(s, quad, target, stride);
        if (s.bits == 4) ReadQuadSegment<4>(s, quad, target, stride);
        if (s.bits == 2) ReadQuadSegment<2>(s, quad, target, stride);
      }
    }
    return;
  }
  for (int t = block.begin; t < block.end; t++) {
    float* target = out + t * stride;
    if (!vector || f.layout == Layout::kTile) {
      ReadToken(f, values, block.data, t, target);
      continue;
    }
    for (int i = 0; i < f.segment_count; i++) {
      const CodeSegment& s = f.segments[i];
      const char* row = block.data + (int64_t)t * f.bytes;
      if (s.bits == 16) ReadRowSegment<16>(s, row, target);
      if (s.bits == 8) ReadRowSegment<8>(s, row, target);
      if (s.bits == 4) ReadRowSegment<4>(s, row, target);
      if (s.bits == 2) ReadRowSegment<2>(s, row, target);
    }
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
