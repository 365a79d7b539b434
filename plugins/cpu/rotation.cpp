#include <cmath>

#include "cpu/call.h"

namespace minicache {

Rotation MakeRotation(const Call& call) {
  const Attributes& a = call.attributes;
  Rotation rotation = {nullptr, nullptr, 0, a.segment_length, a.rotary_interleaved};
  int64_t end = 0;
  for (const Span& span : call.spans) end = std::max({end, span.coded_end, span.encode_end});
  const int64_t segments = end > 0 ? rotation.SegmentOf(end - 1) + 1 : 0;
  if (segments < 2) return rotation;  // the first segment's keys stay as they are
  const Tensor& table = call.tensor(TensorId::kRopeFrequencies);
  const auto* frequencies = reinterpret_cast<const float*>(table.data);
  rotation.pairs = table.shape[0];
  float* cosine = call.Floats(2 * segments * rotation.pairs);
  float* sine = cosine + segments * rotation.pairs;
  // Each segment turns on from the one before by the same angle: products in double precision cost
  // a tenth of sines, and stay far below what a float shows.
  for (int64_t i = 0; i < rotation.pairs; i++) {
    const double angle =
        -static_cast<double>(a.segment_length) * static_cast<double>(frequencies[i]);
    const double step_x = std::cos(angle), step_y = std::sin(angle);
    double x = 1.0, y = 0.0;
    for (int64_t s = 0; s < segments; s++) {
      cosine[s * rotation.pairs + i] = static_cast<float>(x);
      sine[s * rotation.pairs + i] = static_cast<float>(y);
      const double turned = x * step_x - y * step_y;
      y = x * step_y + y * step_x;
      x = turned;
    }
  }
  rotation.cosine = cosine;
  rotation.sine = sine;
  return rotation;
}

}  // namespace minicache
