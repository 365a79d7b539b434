// Turns kLanes vectors of kLanes numbers: columns become rows, `stride` floats apart.
#pragma once

#include "cpu/elements.h"

namespace minicache {
namespace MINICACHE_ISA {

#if defined(__AVX512F__)
static inline void TransposeTile(const Floats* in, float* out, int64_t stride) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps((__m512)in[i], (__m512)in[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps((__m512)in[i], (__m512)in[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // b[i + j]: 128-bit lane L holds column 4L + j of rows i..i+3
    b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int j = 0; j < 4; j++) {
    const __m512 low01 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x88);
    const __m512 odd01 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xdd);
    const __m512 low23 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x88);
    const __m512 odd23 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xdd);
    _mm512_storeu_ps(out + j * stride, _mm512_shuffle_f32x4(low01, low23, 0x88));
    _mm512_storeu_ps(out + (4 + j) * stride, _mm512_shuffle_f32x4(odd01, odd23, 0x88));
    _mm512_storeu_ps(out + (8 + j) * stride, _mm512_shuffle_f32x4(low01, low23, 0xdd));
    _mm512_storeu_ps(out + (12 + j) * stride, _mm512_shuffle_f32x4(odd01, odd23, 0xdd));
  }
}
#elif defined(__AVX2__)
static inline void TransposeTile(const Floats* in, float* out, int64_t stride) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps((__m256)in[i], (__m256)in[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps((__m256)in[i], (__m256)in[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int j = 0; j < 4; j++) {
    _mm256_storeu_ps(out + j * stride, _mm256_permute2f128_ps(b[j], b[4 + j], 0x20));
    _mm256_storeu_ps(out + (4 + j) * stride, _mm256_permute2f128_ps(b[j], b[4 + j], 0x31));
  }
}
#else
static inline void TransposeTile(const Floats* in, float* out, int64_t stride) {
  for (int j = 0; j < kLanes; j++) {
    Store(out + j * stride, Floats{in[0][j], in[1][j], in[2][j], in[3][j]});
  }
}
#endif

}  // namespace MINICACHE_ISA
}  // namespace minicache
