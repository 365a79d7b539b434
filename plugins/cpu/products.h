// Register-tiled products over vectors in memory.
//
//   AddProduct  C[r, n] += sum_k A[r, k] * B[k, n]   lanes run along n: weights * values, and
//                                                    queries * transposed keys
//   Dots        S[r, t]  = sum_d Q[r, d] * K[t, d]   lanes run along d: few queries, keys as stored
#pragma once

#include "cpu/elements.h"

namespace minicache {
namespace MINICACHE_ISA {

// Accumulators fit the register file: 24 of 32 with AVX-512, 12 of 16 else.
constexpr int kTileRows = 6;
constexpr int kTileVectors = kLanes == 16 ? 4 : 2;

template <class E, int kRows, int kVectors>
static inline void AddTile(const float* a, int64_t a_stride, const char* b, int64_t b_stride,
                           int64_t depth, float* c, int64_t c_stride, const char* ahead) {
  Floats sums[kRows][kVectors];
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    MINICACHE_UNROLL
    for (int v = 0; v < kVectors; v++) sums[r][v] = Load(c + r * c_stride + v * kLanes);
  }
  constexpr int kBytes = kVectors * kLanes * E::kBytes;
  for (int64_t k = 0; k < depth; k++) {
    for (int i = 0; i < kBytes && ahead; i += 64) __builtin_prefetch(ahead + k * kBytes + i);
    Floats x[kVectors];
    MINICACHE_UNROLL
    for (int v = 0; v < kVectors; v++) x[v] = E::Lanes(b + k * b_stride + v * kLanes * E::kBytes);
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) {
      const Floats w = Set(a[r * a_stride + k]);
      MINICACHE_UNROLL
      for (int v = 0; v < kVectors; v++) sums[r][v] += w * x[v];
    }
  }
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    MINICACHE_UNROLL
    for (int v = 0; v < kVectors; v++) Store(c + r * c_stride + v * kLanes, sums[r][v]);
  }
}

template <class E, int kRows>
static inline void AddRows(const float* a, int64_t a_stride, const char* b, int64_t b_stride,
                           int64_t depth, int64_t width, float* c, int64_t c_stride,
                           const char* ahead) {
  int64_t n = 0;
  for (; n + kTileVectors * kLanes <= width; n += kTileVectors * kLanes) {
    AddTile<E, kRows, kTileVectors>(a, a_stride, b + n * E::kBytes, b_stride, depth, c + n,
                                    c_stride, ahead ? ahead + n * E::kBytes * depth : nullptr);
  }
  for (; n < width; n += kLanes) {
    AddTile<E, kRows, 1>(a, a_stride, b + n * E::kBytes, b_stride, depth, c + n, c_stride, nullptr);
  }
}

// `width` is a multiple of kLanes; strides of A and C in floats, of B in bytes. From `ahead`, if
// not null, as many bytes as B has are prefetched, in the order of memory: strips of its rows, as B
// is read, would jump from page to page.
template <class E>
static inline void AddProduct(const float* a, int64_t a_stride, const char* b, int64_t b_stride,
                              int64_t rows, int64_t depth, int64_t width, float* c,
                              int64_t c_stride, const char* ahead = nullptr) {
  int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    AddRows<E, kTileRows>(a + r * a_stride, a_stride, b, b_stride, depth, width, c + r * c_stride,
                          c_stride, ahead);
    ahead = nullptr;
  }
  a += r * a_stride;
  c += r * c_stride;
  switch (rows - r) {
    case 5:
      return AddRows<E, 5>(a, a_stride, b, b_stride, depth, width, c, c_stride, ahead);
    case 4:
      return AddRows<E, 4>(a, a_stride, b, b_stride, depth, width, c, c_stride, ahead);
    case 3:
      return AddRows<E, 3>(a, a_stride, b, b_stride, depth, width, c, c_stride, ahead);
    case 2:
      return AddRows<E, 2>(a, a_stride, b, b_stride, depth, width, c, c_stride, ahead);
    case 1:
      return AddRows<E, 1>(a, a_stride, b, b_stride, depth, width, c, c_stride, ahead);
    default:
      return;
  }
}

// Four horizontal sums at once.
static inline void StoreSums(Floats a, Floats b, Floats c, Floats d, float* target) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const auto narrow = [](Floats v) __attribute__((always_inline)) {
    return _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
  };
#else
  const auto narrow = [](Floats v) __attribute__((always_inline)) { return (__m256)v; };
#endif
  const __m256 x = _mm256_hadd_ps(narrow(a), narrow(b)), y = _mm256_hadd_ps(narrow(c), narrow(d));
  const __m256 sums = _mm256_hadd_ps(x, y);  // of the low and of the high half
  _mm_storeu_ps(target, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
#else
  target[0] = Sum(a);
  target[1] = Sum(b);
  target[2] = Sum(c);
  target[3] = Sum(d);
#endif
}

#if defined(__AVX512F__)
// Sums of four vectors each, sums[r][t], to target[r * stride + t]: the vectors are added while
// they are transposed, first within quarters, then across them, in half the steps of four
// StoreSums.
static inline void StoreSquare(const Floats (&sums)[4][4], float* target, int64_t stride) {
  const auto pairs = [](Floats a, Floats b) __attribute__((always_inline)) {
    return _mm512_add_ps(_mm512_unpacklo_ps((__m512)a, (__m512)b),
                         _mm512_unpackhi_ps((__m512)a, (__m512)b));
  };
  const auto fours = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  };
  const auto quarters = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  __m512 row[4];
  MINICACHE_UNROLL
  for (int r = 0; r < 4; r++) {
    row[r] = fours(pairs(sums[r][0], sums[r][1]), pairs(sums[r][2], sums[r][3]));
  }
  const __m512 all = quarters(quarters(row[0], row[1]), quarters(row[2], row[3]));
  _mm_storeu_ps(target, _mm512_castps512_ps128(all));
  _mm_storeu_ps(target + stride, _mm512_extractf32x4_ps(all, 1));
  _mm_storeu_ps(target + 2 * stride, _mm512_extractf32x4_ps(all, 2));
  _mm_storeu_ps(target + 3 * stride, _mm512_extractf32x4_ps(all, 3));
}
#endif

template <class E, int kRows, int kTokens>
static inline void DotTile(const float* q, int64_t q_stride, const char* k, int64_t k_stride,
                           int64_t depth, float* s, int64_t s_stride) {
  Floats sums[kRows][kTokens];
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    MINICACHE_UNROLL
    for (int t = 0; t < kTokens; t++) sums[r][t] = Floats{};
  }
  for (int64_t d = 0; d < depth; d += kLanes) {
    Floats x[kTokens];
    MINICACHE_UNROLL
    for (int t = 0; t < kTokens; t++) {
      x[t] = E::Lanes(k + t * k_stride + d * E::kBytes);
      if (kRows > 1) KeepInRegister(&x[t]);
    }
    MINICACHE_UNROLL
    for (int r = 0; r < kRows; r++) {
      const Floats w = Load(q + r * q_stride + d);
      MINICACHE_UNROLL
      for (int t = 0; t < kTokens; t++) sums[r][t] += w * x[t];
    }
  }
#if defined(__AVX512F__)
  if constexpr (kRows == 4 && kTokens == 4) return StoreSquare(sums, s, s_stride);
#endif
  MINICACHE_UNROLL
  for (int r = 0; r < kRows; r++) {
    if constexpr (kTokens % 4 == 0) {
      MINICACHE_UNROLL
      for (int t = 0; t < kTokens; t += 4) {
        StoreSums(sums[r][t], sums[r][t + 1], sums[r][t + 2], sums[r][t + 3], s + r * s_stride + t);
      }
    } else {
      s[r * s_stride] = Sum(sums[r][0]);
    }
  }
}

// What a pass over K prefetches meanwhile: bytes [begin, end) of each row of `rows`, if not null.
struct RowsAhead {
  const char* rows;
  int64_t begin, end;
};

template <class E, int kRows>
static inline void DotRows(const float* q, int64_t q_stride, const char* k, int64_t k_stride,
                           int64_t tokens, int64_t depth, float* s, int64_t s_stride,
                           const RowsAhead& ahead) {
  int64_t t = 0;
  // A single row has four chains of additions only, too few to hide their latency.
  for (; kRows == 1 && !ahead.rows && t + 8 <= tokens; t += 8) {
    DotTile<E, kRows, 8>(q, q_stride, k + t * k_stride, k_stride, depth, s + t, s_stride);
  }
  for (; t + 4 <= tokens; t += 4) {
    for (int64_t i = 0; i < 4 && ahead.rows; i++) {
      for (int64_t line = ahead.begin; line < ahead.end; line += 64) {
        __builtin_prefetch(ahead.rows + (t + i) * k_stride + line);
      }
    }
    DotTile<E, kRows, 4>(q, q_stride, k + t * k_stride, k_stride, depth, s + t, s_stride);
  }
  for (; t < tokens; t++) {
    DotTile<E, kRows, 1>(q, q_stride, k + t * k_stride, k_stride, depth, s + t, s_stride);
  }
}

constexpr int kDotRows = kLanes == 16 ? 4 : 2;  // times 4 tokens of accumulators

// `depth` is a multiple of kLanes; `ahead`, if not null, is prefetched at the same strides, a share
// by each pass: what one pass asks for at once, the others would wait for.
template <class E>
static inline void Dots(const float* q, int64_t q_stride, const char* k, int64_t k_stride,
                        int64_t rows, int64_t tokens, int64_t depth, float* s, int64_t s_stride,
                        const char* ahead) {
  const int64_t bytes = depth * E::kBytes;
  const auto share = [&](int64_t row) { return row < rows ? row * bytes / rows / 64 * 64 : bytes; };
  for (int64_t r = 0; r < rows; r += kDotRows) {
    const float* qr = q + r * q_stride;
    float* sr = s + r * s_stride;
    const int64_t left = rows - r;
    const RowsAhead part = {ahead, share(r), share(r + kDotRows)};
    if constexpr (kDotRows == 4) {
      if (left >= 4) {
        DotRows<E, 4>(qr, q_stride, k, k_stride, tokens, depth, sr, s_stride, part);
        continue;
      }
      if (left == 3) {
        DotRows<E, 3>(qr, q_stride, k, k_stride, tokens, depth, sr, s_stride, part);
        continue;
      }
    }
    if (left >= 2) {
      DotRows<E, 2>(qr, q_stride, k, k_stride, tokens, depth, sr, s_stride, part);
    } else {
      DotRows<E, 1>(qr, q_stride, k, k_stride, tokens, depth, sr, s_stride, part);
    }
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
