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
  for (int64_t i = 0; i < segments * rotation.pairs; i++) {
    const auto offset = static_cast<double>(i / rotation.pairs * a.segment_length);
    const double angle = -offset * static_cast<double>(frequencies[i % rotation.pairs]);
    cosine[i] = static_cast<float>(std::cos(angle));
    sine[i] = static_cast<float>(std::sin(angle));
  }
  rotation.cosine = cosine;
  rotation.sine = sine;
  return rotation;
}

}  // namespace minicache
