// Products with codes in the tile layout, without a copy in fp32: decode reads each code once, for
// the few query heads of its kv head.
#pragma once

#include "cpu/code_reader.h"

namespace minicache {
namespace MINICACHE_ISA {

constexpr int kCodeRows = 4;

// Calls use(component, lanes) for each component of a group of 4 bytes, lanes along tokens.
template <int kBits, class Use>
static inline __attribute__((always_inline)) void ForComponents(const CodeSegment& s, int group,
                                                                Words x, Use use) {
  if constexpr (kBits == 16) {
    Floats low, high;
    SplitHalves(x, &low, &high);
    use(0, s.first_component + 2 * group, low);
    use(1, s.first_component + 2 * group + 1, high);
  } else {
    using B = Bits<kBits>;
    const int span = s.count / B::kPlanes;
    MINICACHE_UNROLL
    for (int i = 0; i < 4; i++) {
      MINICACHE_UNROLL
      for (int p = 0; p < B::kPlanes; p++) {
        use(i, s.first_component + 4 * group + i + p * span, MidRise<kBits>(x, 8 * i + kBits * p));
      }
    }
  }
}

// s[r, t] += q[r] . key code t, for the kLanes tokens at `tile` (offset by 4 bytes per token).
template <int kBits, int kRows>
static inline void AddKeyScores(const CodeSegment& s, const char* tile, const float* q,
                                int64_t q_stride, float* scores, const Ahead& ahead, int64_t line) {
  Floats sums[kRows][2];  // two chains hide the latency of the additions
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    sums[r][0] = Load(scores + r * kBlockTokens);
    sums[r][1] = Floats{};
  }
  const char* bytes = tile + s.first_byte * 16;
  const int groups = SegmentBytes(s) / 4;
  for (int group = 0; group < groups; group++) {
    const Words x = LoadWords(bytes + group * 64);
    ahead.Fetch(line + group);
    ForComponents<kBits>(s, group, x, [&](int i, int c, Floats v) __attribute__((always_inline)) {
      MINICACHE_UNROLL
      for (int r = 0; r < kRows; r++) sums[r][i & 1] += Set(q[r * q_stride + c]) * v;
    });
  }
  if (const int left = SegmentBytes(s) % 4; left != 0) {
    const Words x = LoadWords(bytes + groups * 64);
    ForComponents<kBits>(s, groups, x, [&](int i, int c, Floats v) __attribute__((always_inline)) {
      for (int r = 0; r < kRows && i < left; r++) sums[r][i & 1] += Set(q[r * q_stride + c]) * v;
    });
  }
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) Store(scores + r * kBlockTokens, sums[r][0] + sums[r][1]);
}

template <int kRows>
static inline void ScoreRows(const CodeFormat& f, const CodeBlock& block, const float* q,
                             int64_t q_stride, float* scores, const Ahead& ahead) {
  for (int t = block.begin / kLanes * kLanes; t < block.end; t += kLanes) {
    const char* tile = block.data + (int64_t)(t / 16 * 16) * f.bytes + t % 16 * 4;
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) Store(scores + r * kBlockTokens + t, Floats{});
    for (int i = 0; i < f.segment_count; i++) {
      const CodeSegment& s = f.segments[i];
      const int64_t line = (int64_t)(t / kLanes) * (f.bytes / 4) + s.first_byte / 4;
      if (s.bits == 16) AddKeyScores<16, kRows>(s, tile, q, q_stride, scores + t, ahead, line);
      if (s.bits == 8) AddKeyScores<8, kRows>(s, tile, q, q_stride, scores + t, ahead, line);
      if (s.bits == 4) AddKeyScores<4, kRows>(s, tile, q, q_stride, scores + t, ahead, line);
      if (s.bits == 2) AddKeyScores<2, kRows>(s, tile, q, q_stride, scores + t, ahead, line);
    }
  }
}

// scores[r, t] = q[r] . key code t.
static inline void ScoreCodes(const CodeFormat& f, const CodeBlock& block, const float* q,
                              int64_t q_stride, int64_t rows, float* scores, Ahead ahead) {
  for (int64_t r = 0; r < rows; r += kCodeRows, ahead.bytes = 0) {
    const float* qr = q + r * q_stride;
    float* sr = scores + r * kBlockTokens;
    switch (rows - r) {
      case 1:
        ScoreRows<1>(f, block, qr, q_stride, sr, ahead);
        break;
      case 2:
        ScoreRows<2>(f, block, qr, q_stride, sr, ahead);
        break;
      case 3:
        ScoreRows<3>(f, block, qr, q_stride, sr, ahead);
        break;
      default:
        ScoreRows<4>(f, block, qr, q_stride, sr, ahead);
        break;
    }
  }
}

// Keys of a tile with lanes along tokens already: [R, kBlockTokens] directions.
static inline void ReadKeysTransposed(const CodeFormat& f, const CodeBlock& block, float* out) {
  for (int t = block.begin / kLanes * kLanes; t < block.end; t += kLanes) {
    const char* tile = block.data + (int64_t)(t / 16 * 16) * f.bytes + t % 16 * 4;
    for (int i = 0; i < f.segment_count; i++) {
      const CodeSegment& s = f.segments[i];
      const int bytes = SegmentBytes(s);
      for (int group = 0; 4 * group < bytes; group++) {
        const int left = bytes - 4 * group;
        const auto put = [&](int b, int c, Floats v) __attribute__((always_inline)) {
          if (s.bits == 16 || b < left) Store(out + c * kBlockTokens + t, v);
        };
        const Words x = LoadWords(tile + s.first_byte * 16 + group * 64);
        if (s.bits == 16) ForComponents<16>(s, group, x, put);
        if (s.bits == 8) ForComponents<8>(s, group, x, put);
        if (s.bits == 4) ForComponents<4>(s, group, x, put);
        if (s.bits == 2) ForComponents<2>(s, group, x, put);
      }
    }
  }
}

// out[r, c] += sum_t p[r, t] * value code t, for one run of kLanes bytes (16 bit: of components).
template <int kBits, int kRows>
static inline void AddValueLanes(const CodeFormat& f, const CodeSegment& s, const CodeBlock& block,
                                 int lane0, const float* p, float* out, int64_t out_stride,
                                 const Ahead& ahead) {
  using B = Bits<kBits>;
  const int left = SegmentBytes(s) - lane0;
  Floats sums[kRows][B::kPlanes][2];
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    MINICACHE_UNROLL
    for (int plane = 0; plane < B::kPlanes; plane++) {
      sums[r][plane][0] = sums[r][plane][1] = Floats{};
    }
  }
  for (int t0 = block.begin / 4 * 4; t0 < block.end; t0 += 4) {
    const char* quad = block.data + (int64_t)t0 * f.bytes + s.first_byte * 4;
    const int64_t line = (int64_t)(lane0 / kLanes) * (kBlockTokens / 4) + t0 / 4;
    ahead.Fetch(2 * line);
    ahead.Fetch(2 * line + 1);
    if constexpr (kBits == 16) {
      Floats v[4];
      LoadHalfQuad(quad + lane0 * 8, v);
      MINICACHE_UNROLL
      for (int t = 0; t < 4; t++) {
        // Never-written halves may be NaN, which a weight of zero does not undo.
        if (t0 + t < block.begin || t0 + t >= block.end) v[t] = Floats{};
        MINICACHE_UNROLL
        for (int r = 0; r < kRows; r++) {
          sums[r][0][t & 1] += Set(p[r * kBlockTokens + t0 + t]) * v[t];
        }
      }
    } else {
      const Words x = LoadBytesOfQuad(quad + lane0 * 4, left);
      MINICACHE_UNROLL
      for (int t = 0; t < 4; t++) {
        MINICACHE_UNROLL
        for (int plane = 0; plane < B::kPlanes; plane++) {
          const Floats v = MidRise<kBits>(x, 8 * t + kBits * plane);
          MINICACHE_UNROLL
          for (int r = 0; r < kRows; r++) {
            sums[r][plane][t & 1] += Set(p[r * kBlockTokens + t0 + t]) * v;
          }
        }
      }
    }
  }
  const int span = s.count / B::kPlanes;
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    MINICACHE_UNROLL
    for (int plane = 0; plane < B::kPlanes; plane++) {
      float* target = out + r * out_stride + s.first_component + plane * span + lane0;
      Floats sum = sums[r][plane][0] + sums[r][plane][1];
      if (lane0 + kLanes > span) sum = LaneIndex() < span - lane0 ? sum : Floats{};
      Store(target, Load(target) + sum);
    }
  }
}

template <int kRows>
static inline void AddValueRows(const CodeFormat& f, const CodeBlock& block, const float* p,
                                float* out, int64_t stride, const Ahead& ahead) {
  for (int i = 0; i < f.segment_count; i++) {
    const CodeSegment& s = f.segments[i];
    const int lanes = s.bits == 16 ? s.count : SegmentBytes(s);
    for (int j = 0; j < lanes; j += kLanes) {
      if (s.bits == 16) AddValueLanes<16, kRows>(f, s, block, j, p, out, stride, ahead);
      if (s.bits == 8) AddValueLanes<8, kRows>(f, s, block, j, p, out, stride, ahead);
      if (s.bits == 4) AddValueLanes<4, kRows>(f, s, block, j, p, out, stride, ahead);
      if (s.bits == 2) AddValueLanes<2, kRows>(f, s, block, j, p, out, stride, ahead);
    }
  }
}

// out[r] += sum_t p[r, t] * value of code t.
static inline void AddCodedValues(const CodeFormat& f, const CodeBlock& block, const float* p,
                                  int64_t rows, float* out, int64_t stride, Ahead ahead) {
  for (int64_t r = 0; r < rows; r += kCodeRows, ahead.bytes = 0) {
    const float* pr = p + r * kBlockTokens;
    float* target = out + r * stride;
    switch (rows - r) {
      case 1:
        AddValueRows<1>(f, block, pr, target, stride, ahead);
        break;
      case 2:
        AddValueRows<2>(f, block, pr, target, stride, ahead);
        break;
      case 3:
        AddValueRows<3>(f, block, pr, target, stride, ahead);
        break;
      default:
        AddValueRows<4>(f, block, pr, target, stride, ahead);
        break;
    }
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
