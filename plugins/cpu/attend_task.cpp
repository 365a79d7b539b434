#include "cpu/attend_task.h"

namespace minicache {

AttendTask MakeAttendTask(const Call& call, int64_t row, int64_t head, int64_t begin,
                          int64_t count) {
  const Attributes& a = call.attributes;
  const int64_t bytes = ElementSize(call.model_dtype), per_kv = a.heads / a.kv_heads;
  const int64_t width = a.heads * a.head_size;
  AttendTask task = {};
  task.query = call.tensor(TensorId::kQuery).data +
               (row * call.shape.new_tokens * width + head * per_kv * a.head_size) * bytes;
  task.dtype = call.model_dtype;
  task.query_stride = width;
  task.heads = static_cast<int32_t>(per_kv);
  task.new_begin = static_cast<int32_t>(begin);
  task.new_count = static_cast<int32_t>(count);
  task.head_size = static_cast<int32_t>(a.head_size);
  task.widths = a.widths();
  task.scale = a.scale;
  task.softcap = a.softcap;
  task.local_window = a.local_window;
  task.past = call.spans[static_cast<size_t>(row)].past;
  if (a.has_bias) {
    const Tensor& bias = call.tensor(TensorId::kAttentionBias);
    task.bias_token_stride = bias.shape[3];
    task.bias_head_stride = bias.shape[2] * bias.shape[3];
    const int64_t bias_row = bias.shape[0] > 1 ? row : 0;
    task.bias = bias.data + (bias_row * a.heads + head * per_kv) * task.bias_head_stride * bytes;
  }
  if (a.coded()) {
    task.key_format = &a.key_format;
    task.value_format = &a.value_format;
    task.key_maths = ChooseMaths(call.maths, call.kernels, a.key_format);
    task.value_maths = ChooseMaths(call.maths, call.kernels, a.value_format);
  }
  if (a.has_delta()) {
    task.delta_format = &a.delta_format;
    task.delta_maths = ChooseMaths(call.maths, call.kernels, a.delta_format);
    task.delta_sign = a.slot == 0 ? 1.f : -1.f;
  }
  task.rotation = &call.rotation;
  task.map = &call.maps[static_cast<size_t>(row)];
  if (a.has_decoder) {
    const Tensor& decoder = call.tensor(TensorId::kKeyDecoder);
    task.key_decoder = TableOf(decoder, head);
    task.key_decoder_dtype = RealType(decoder.type);
    task.first_segment = call.rotation.SegmentOf(a.sinks);
  }
  return task;
}

}  // namespace minicache
