// Encoding of `subspace`: the joint vector of a code head's layers and slots, its components, and
// their levels.
#include "cpu/code_reader.h"
#include "cpu/code_writer.h"
#include "cpu/isa_kernels.h"
#include "cpu/tables.h"

namespace minicache {
namespace MINICACHE_ISA {
namespace {

// Layers outermost, then the slots of the code head, then D.
void Join(const JointTask& task, int64_t position, float* joint) {
  const EncodeTask& t = *task.tokens;
  const Dtype dtype = position >= t.past ? t.fresh_dtype : t.exact_dtype;
  const int64_t first = (int64_t)task.code_head * task.slots_per_code;
  for (int64_t g = 0; g < t.layer_count; g++) {
    for (int64_t j = 0; j < task.slots_per_code; j++, joint += t.head_size) {
      ToFloat(dtype, VectorOf(t, t.layers[g], first + j, position), t.head_size, joint);
      if (task.rotation) Turn(*task.rotation, task.rotation->SegmentOf(position), joint);
    }
  }
}

// The length of y; 0 where it is not finite.
double Length(int64_t n, const float* y) {
  double square = 0.0;
  for (int64_t i = 0; i < n; i++) square += (double)y[i] * (double)y[i];
  return __builtin_isfinite(square) ? __builtin_sqrt(square) : 0.0;
}

void Quantise(const CodeSegment& s, const float* y, const float* step, double length,
              uint8_t* bytes) {
  const int offset = 1 << (s.bits - 1), span = SegmentBytes(s);
  const double last = 2 * offset - 1;
  for (int c = 0; c < s.count; c++) {
    double k = offset;
    if (length > 0.0) k += __builtin_floor((double)y[c] / length / (double)step[c]);
    const int level = !(k > 0.0) ? 0 : (int)(k > last ? last : k);
    const int plane = c / span;
    bytes[s.first_byte + c - plane * span] |= (uint8_t)(level << (s.bits * plane));
  }
}

}  // namespace

int64_t JointScratch(int64_t tokens, int64_t joint) {
  return (tokens + kTableRows) * ((joint + 15) / 16 * 16);
}

void ProjectJoint(const JointTask& task) {
  const EncodeTask& t = *task.tokens;
  const int64_t joint = (int64_t)t.layer_count * task.slots_per_code * t.head_size;
  const int64_t stride = (joint + 15) / 16 * 16, count = t.end - t.begin;
  for (int64_t i = 0; i < count; i++) Join(task, t.begin + i, task.joint + i * stride);
  ClearTails(task.joint, stride, 0, count, joint, stride);
  ProjectRows(task.joint, stride, count, task.encoder, task.encoder_dtype, joint, joint,
              task.component_begin, task.component_end, task.joint + count * stride, task.projected,
              t.format->components);
}

void QuantiseJoint(const JointTask& task) {
  const EncodeTask& t = *task.tokens;
  const CodeFormat& format = *t.format;
  uint8_t* bytes = (uint8_t*)task.joint;
  for (int64_t p = t.begin; p < t.end; p++) {
    const float* y = task.projected + (p - t.begin) * format.components;
    const double length = Length(format.components, y);
    memset(bytes, 0, (size_t)format.bytes);
    for (int i = 0; i < format.segment_count; i++) {
      const CodeSegment& s = format.segments[i];
      Quantise(s, y + s.first_component, task.step + s.first_component, length, bytes);
    }
    StoreCode(t, task.code_head, p, bytes);
    t.magnitude[task.code_head * t.capacity + p] =
        FloatToHalf((float)(length < 65504.0 ? length : 65504.0));
  }
}

}  // namespace MINICACHE_ISA
}  // namespace minicache
