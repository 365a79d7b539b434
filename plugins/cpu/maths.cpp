#include "minicache/maths.h"

#include <cstdlib>

namespace minicache {

std::string ReadMaths(const std::string& option, MathsSetting* setting) {
  const char* variable = std::getenv("MINICACHE_CPU_MATH");
  const std::string wanted = variable == nullptr || *variable == '\0' ? option : variable;
  *setting = MathsSetting::kAuto;
  if (wanted == "fp32") *setting = MathsSetting::kFloat32;
  if (wanted == "int16") *setting = MathsSetting::kInt16;
  if (wanted == "int8") *setting = MathsSetting::kInt8;
  if (*setting != MathsSetting::kAuto || wanted.empty()) return "";
  const bool from_option = wanted == option && (variable == nullptr || *variable == '\0');
  return std::string(from_option ? "the session option 'minicache.cpu_math'"
                                 : "the environment variable MINICACHE_CPU_MATH") +
         " is '" + wanted + "', not one of fp32, int16, int8";
}

namespace {

// Where nobody asks for a maths: int16 where it is faster. This counts operations per four
// components, token and four rows of queries: kernels without (with) AVX-512 take 32 (28) in fp32,
// 16 of them multiply-adds and the rest to make numbers of bits; and 20 (20, with VNNI 12) in
// int16. What a block's weights cost to round does not depend on the components, and takes back
// what few of them save; the border is an estimate.
constexpr int kLeastComponents = 32;

bool Int16Pays(const CodeFormat& format) { return format.components >= kLeastComponents; }

}  // namespace

Maths ChooseMaths(MathsSetting setting, const KernelTable& kernels, const CodeFormat& format) {
  if (setting == MathsSetting::kFloat32 || !kernels.has_integers) return Maths::kFloat32;
  // A direction of 16 bits is fp16, and a code of its own.
  for (int i = 0; i < format.segment_count; i++) {
    if (format.segments[i].bits == 16) return Maths::kFloat32;
  }
  if (setting == MathsSetting::kAuto && !Int16Pays(format)) return Maths::kFloat32;
  return setting == MathsSetting::kInt8 ? Maths::kInt8 : Maths::kInt16;
}

}  // namespace minicache
