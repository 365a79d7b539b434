// Queries and weights as integers, for their products with codes.
//
// x is near `scale` * word, and a code's value is k - (2^b - 1) / 2, so a sum of products is
//   scale * (sum word * k - (2^b - 1) / 2 * sum word).
// The second term is known before any code is read: sums start from it, halves rounded down
// (`start`), and end with what the rounding took (`rest`, 0 or a half).
#pragma once

#include "cpu/integer_lanes.h"
#include "cpu/products.h"

namespace minicache {
namespace MINICACHE_ISA {

struct Grid {
  float scale;
  int32_t start;
  float rest;
};

static inline Grid MakeGrid(float scale, int64_t word_sum, int64_t twice_middle) {
  const int64_t doubled = -twice_middle * word_sum;
  return {scale, (int32_t)(doubled >> 1), doubled & 1 ? 0.5f : 0.f};
}

// Bytes need half of the operations of pairs. Fields of 8 bits take pairs everywhere: without the
// fused instruction two products overflow int16, and with it the accuracy that 8 bits are for is
// lost.
static constexpr bool TakesBytes(Maths maths, int bits) {
  return maths == Maths::kInt8 && bits < 8;
}

static inline int SegmentGroups(const CodeSegment& s) { return (SegmentBytes(s) + 3) / 4; }

// Fields of a byte, without the division: operands are made once more for each segment of keys.
static inline int Planes(int bits) { return 8 >> __builtin_ctz((unsigned)bits); }

static inline int64_t SegmentWords(const CodeSegment& s, Maths maths) {
  return (int64_t)SegmentGroups(s) * Planes(s.bits) * (TakesBytes(maths, s.bits) ? 1 : 2);
}

// Words of one query; PutPairs writes up to three groups behind the last one.
static inline int64_t QueryWords(const Widths& n) { return n.key / 2 + 64; }

static inline bool UsesIntegers(Maths maths, const CodeFormat& format, int64_t rows) {
  return maths != Maths::kFloat32 && rows <= kFewRows && format.layout == Layout::kTile &&
         IsVectorisable(format);
}

// Rows that a kernel takes at once.
constexpr int kIntegerRows = 4;

// Queries of one segment of positions as words, in the order in which score kernels consume them:
// segment of the code, group of four bytes, plane, half, then the rows that are taken at once.
struct IntegerQueries {
  int32_t* words;  // `stride` per row
  int64_t stride;
  Grid* grids;  // [rows, CodeFormat::kMaxSegments]
};

static inline void QuantiseSegment(const CodeSegment& s, Maths maths, const float* q,
                                   int32_t* words, int64_t rows, Grid* grid) {
  const bool bytes = TakesBytes(maths, s.bits);
  const int planes = Planes(s.bits), span = SegmentBytes(s), twice_middle = (1 << s.bits) - 1;
  Floats best = {}, sizes = {};
  for (int c = 0; c < s.count; c += kLanes) {
    Floats x = Abs(Load(q + c));
    if (s.count - c < kLanes) x = LaneIndex() < s.count - c ? x : Floats{};
    best = Max(best, x);
    sizes += x;
  }
  const float largest = Maximum(best), total = Sum(sizes);
  // No sum overflows: sum |word| (2^b - 1) <= 2^30, where each word is rounded by half a unit.
  const float most = (float)(1 << 30) / (float)twice_middle - (float)s.count;
  float scale = largest / (bytes ? 127.f : 32767.f);
  if (total > most * scale) scale = total / most;
  const Floats inverse = Set(scale > 0.f ? 1.f / scale : 0.f);
  Ints sum = {};
  for (int p = 0; p < planes; p++) {
    for (int j = 0; j < span; j += kLanes) {
      Floats x = Load(q + p * span + j);
      if (span - j < kLanes) x = LaneIndex() < span - j ? x : Floats{};
      const Ints word = Round(x * inverse);
      sum += word;
      const int64_t at = (int64_t)(j / 4) * planes + p;
      if (bytes) {
        PutBytes(word, words + at * rows, planes * rows);
      } else {
        PutPairs(word, words + 2 * at * rows, 2 * planes * rows, rows);
      }
    }
  }
  *grid = MakeGrid(scale, Sum(sum), twice_middle);
  // What is not finite stays so.
  if (!__builtin_isfinite(total)) grid->rest = __builtin_nanf("");
}

// Queries have room behind them (CodeFormat::room) or end with a whole vector.
static inline void QuantiseQueries(const CodeFormat& f, Maths maths, const float* q,
                                   int64_t q_stride, int64_t rows, const IntegerQueries& out) {
  for (int64_t r = 0; r < rows; r++) {
    const int64_t first = r / kIntegerRows * kIntegerRows;
    const int64_t together = rows - first < kIntegerRows ? rows - first : kIntegerRows;
    int32_t* words = out.words + first * out.stride + r - first;
    for (int i = 0; i < f.segment_count; i++) {
      const CodeSegment& s = f.segments[i];
      QuantiseSegment(s, maths, q + r * q_stride + s.first_component, words, together,
                      out.grids + r * CodeFormat::kMaxSegments + i);
      words += SegmentWords(s, maths) * together;
    }
  }
}

// Weights of a block as words: pairs and bytes, as the segments of the code take them.
struct IntegerWeights {
  static constexpr int kPairs = kBlockTokens / 2, kBytes = kBlockTokens / 4;
  int32_t* pairs;  // [rows, kPairs]: quad of tokens, half
  int32_t* bytes;  // [rows, kBytes]
  float* scales;   // [rows, 2]: of pairs, of bytes
  int32_t* sums;   // [rows, 2]
};

constexpr int64_t kGridFloats = sizeof(Grid) / sizeof(float);

static inline IntegerWeights PlaceWeights(float* memory, int64_t rows) {
  IntegerWeights w;
  w.pairs = (int32_t*)memory;
  w.bytes = w.pairs + rows * IntegerWeights::kPairs;
  w.sums = w.bytes + rows * IntegerWeights::kBytes;
  w.scales = (float*)(w.sums + 2 * rows);
  return w;
}

// Floats of a row's query and its grids.
static inline int64_t QueryScratch(const Widths& n) {
  return QueryWords(n) + CodeFormat::kMaxSegments * kGridFloats;
}

// Floats of a row's integer operands: query, grids, weights.
static inline int64_t IntegerScratch(const Widths& n) {
  return QueryScratch(n) + IntegerWeights::kPairs + IntegerWeights::kBytes + 4;
}

// Weights are not negative: pairs take 15 bits of them, bytes 8. Hidden tokens' zeros stay zeros.
template <bool kAsBytes, int kRows>
static inline void QuantiseWeights(const float* weights, const float* largest, int64_t row,
                                   const IntegerWeights& out) {
  constexpr float kMost = kAsBytes ? 255.f : 32767.f;
  constexpr int kStride = kAsBytes ? IntegerWeights::kBytes : IntegerWeights::kPairs;
  int32_t* words = (kAsBytes ? out.bytes : out.pairs) + row * kStride;
  Ints total[4] = {};
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    const Floats inverse = Set(largest[r] > 0.f ? kMost / largest[r] : 0.f);
    for (int t = 0; t < kBlockTokens; t += 4 * kLanes) {
      Ints word[4];
      MINICACHE_UNROLL
      for (int i = 0; i < 4; i++) {
        word[i] = Round(Load(weights + r * kBlockTokens + t + i * kLanes) * inverse);
        total[r] += word[i];
      }
      if (kAsBytes) {
        PutBytesInOrder(word, words + r * kStride + t / 4);
      } else {
        PutPairsInOrder(word, words + r * kStride + t / 2);
      }
    }
  }
  // Exact in fp32: 64 words of 15 bits.
  const auto whole = [&](int r) { return ToFloats((Words)total[r]); };
  float sums[4];
  StoreSums(whole(0), whole(1), whole(2), whole(3), sums);
  for (int r = 0; r < kRows; r++) {
    out.scales[2 * (row + r) + kAsBytes] = largest[r] / kMost;
    out.sums[2 * (row + r) + kAsBytes] = (int32_t)sums[r];
  }
}

template <bool kAsBytes>
static inline void QuantiseAllWeights(const float* weights, const float* largest, int64_t rows,
                                      const IntegerWeights& out) {
  for (int64_t r = 0; r < rows; r += kIntegerRows) {
    const float* source = weights + r * kBlockTokens;
    switch (rows - r) {
      case 1:
        QuantiseWeights<kAsBytes, 1>(source, largest + r, r, out);
        break;
      case 2:
        QuantiseWeights<kAsBytes, 2>(source, largest + r, r, out);
        break;
      case 3:
        QuantiseWeights<kAsBytes, 3>(source, largest + r, r, out);
        break;
      default:
        QuantiseWeights<kAsBytes, 4>(source, largest + r, r, out);
        break;
    }
  }
}

// `largest` [rows]: of each row's weights.
static inline void QuantiseWeightRows(const CodeFormat& f, Maths maths, const float* weights,
                                      const float* largest, int64_t rows,
                                      const IntegerWeights& out) {
  bool bytes = false, pairs = false;
  for (int i = 0; i < f.segment_count; i++) {
    (TakesBytes(maths, f.segments[i].bits) ? bytes : pairs) = true;
  }
  if (pairs) QuantiseAllWeights<false>(weights, largest, rows, out);
  if (bytes) QuantiseAllWeights<true>(weights, largest, rows, out);
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
