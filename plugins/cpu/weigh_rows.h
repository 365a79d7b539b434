// Scores of a block become softmax weights: decode's few rows. Rows of one new token are taken
// together, since the steps of one alone wait for each other.
#pragma once

#include "cpu/products.h"
#include "cpu/weights.h"

namespace minicache {
namespace MINICACHE_ISA {

// Rows that are weighed at once.
constexpr int kWeighedRows = 4;

// Whether a lane is larger than x; a NaN is not.
static inline bool AnyAbove(Floats v, float x) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(x), _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_set1_ps(x), _CMP_GT_OQ)) != 0;
#else
  bool found = false;
  for (int i = 0; i < kLanes; i++) found |= v[i] > x;
  return found;
#endif
}

// The largest lane of each of four vectors.
static inline void StoreMaxima(const Floats (&v)[kWeighedRows], float* target) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const auto narrow = [](Floats x) __attribute__((always_inline)) {
    return _mm256_max_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
  };
#else
  const auto narrow = [](Floats x) __attribute__((always_inline)) { return (__m256)x; };
#endif
  const auto fold = [](__m256 a, __m256 b) __attribute__((always_inline)) {
    return _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  };
  const __m256 x = fold(narrow(v[0]), narrow(v[1])), y = fold(narrow(v[2]), narrow(v[3]));
  const __m256 both = _mm256_max_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
  _mm_storeu_ps(target, _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
#else
  for (int i = 0; i < kWeighedRows; i++) target[i] = Maximum(v[i]);
#endif
}

// `kRows` rows of the new token at `position`. Weights are times the tokens' value magnitudes, if
// there are any; `largest` takes the largest one of each row.
template <int kRows>
static inline void WeighTogether(const AttendTask& task, const BlockView& block,
                                 const TokenFactors* factors, int64_t position, int64_t row,
                                 const Softmax& softmax, float* largest) {
  float* s = softmax.scores + row * kBlockTokens;
  int begin = block.begin, end = block.end;
  if (!block.run->positions) Narrow(task, block, position, &begin, &end);
  if (begin >= end) {
    memset(s, 0, kRows * kBlockTokens * sizeof(float));
    for (int r = 0; r < kRows; r++) largest[r] = 0.f;
    return;
  }
  const bool apart = task.softcap > 0.f || task.bias;  // what comes between magnitudes and maximum
  for (int r = 0; r < kRows && apart; r++) {
    float* scores = s + r * kBlockTokens;
    if (factors) ScaleScores(*factors, 0, kBlockTokens, scores);
    if (task.softcap > 0.f) CapScores(task.softcap, 0, kBlockTokens, scores);
    if (task.bias) AddBias(task, block, row + r, begin, end, scores);
  }

  const Floats hidden = Set(-__builtin_inff()), one = Set(1.f);
  Floats best[kRows], total[kWeighedRows] = {}, most[kWeighedRows] = {}, base[kRows];
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) best[r] = hidden;
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    const Ints visible = Visible(task, block, factors, position, t, begin, end);
    const Floats factor = factors && !apart ? Load(factors->key + t) : one;
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) {
      float* score = s + r * kBlockTokens + t;
      const Floats seen = visible ? Load(score) * factor : hidden;
      Store(score, seen);
      best[r] = Max(best[r], seen);
    }
  }
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    const float* maximum = softmax.maximum + row + r;
    if (AnyAbove(best[r], *maximum)) RaiseMaximum(task, row + r, Maximum(best[r]), softmax);
    // With nothing seen so far any base will do: all weights are 0.
    base[r] = Set(*maximum == -__builtin_inff() ? 0.f : *maximum);
  }
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    const Floats factor = factors ? Load(factors->value + t) : one;
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) {
      float* target = s + r * kBlockTokens + t;
      const Floats weight = Exp(Load(target) - base[r]);
      total[r] += weight;
      Store(target, weight * factor);
      most[r] = Max(most[r], weight * factor);
    }
  }
  float totals[kWeighedRows], maxima[kWeighedRows];
  StoreSums(total[0], total[1], total[2], total[3], totals);
  StoreMaxima(most, maxima);
  for (int r = 0; r < kRows; r++) {
    softmax.total[row + r] += totals[r];
    largest[r] = maxima[r];
  }
}

static inline void WeighRows(const AttendTask& task, const BlockView& block,
                             const TokenFactors* factors, int64_t rows, const Softmax& softmax,
                             float* largest) {
  for (int64_t first = 0; first < rows; first += task.heads) {
    const int64_t position = task.past + task.new_begin + first / task.heads;
    const int64_t stop = first + task.heads < rows ? first + task.heads : rows;
    for (int64_t r = first; r < stop; r += kWeighedRows) {
      switch (stop - r) {
        case 1:
          WeighTogether<1>(task, block, factors, position, r, softmax, largest + r);
          break;
        case 2:
          WeighTogether<2>(task, block, factors, position, r, softmax, largest + r);
          break;
        case 3:
          WeighTogether<3>(task, block, factors, position, r, softmax, largest + r);
          break;
        default:
          WeighTogether<4>(task, block, factors, position, r, softmax, largest + r);
          break;
      }
    }
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
