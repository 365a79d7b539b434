// Which maths a node's products with codes use: the user's word, and a rule where there is none.
#pragma once

#include <string>

#include "minicache/attend.h"
#include "minicache/kernels.h"

namespace minicache {

enum class MathsSetting { kAuto, kFloat32, kInt16, kInt8 };

// Reads "fp32", "int16", "int8", or "" for the rule; the environment variable MINICACHE_CPU_MATH,
// where it is set, overrides `option`. Returns what is wrong, or an empty string.
std::string ReadMaths(const std::string& option, MathsSetting* setting);

// The maths of the keys or the values of a node.
Maths ChooseMaths(MathsSetting setting, const KernelTable& kernels, const CodeFormat& format);

}  // namespace minicache
