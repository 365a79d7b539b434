// The plan for other languages: text in, JSON out. The exporter asks which kernels a node launches,
// and tests run the launches without a GPU.
#pragma once

#include <string>

namespace minicache {

// Lines of a request:
//   attribute NAME VALUE          as on the node; lists with commas
//   option NAME VALUE             of GpuOptions
//   tensor NAME TYPE SHAPE ADDRESS  an input of the node by its name in exporter/schemas.py, and
//                                 `attention`; states are those that the node writes
//   table ADDRESS, scratch ADDRESS
// The answer is {"error": "..."}, or {"table": [...], "scratch": bytes, "launches": [{"key": "...",
// "grid": [x, y, z], "arguments": [["p", 123], ["i", 4], ["f", 0.5]]}]}.
std::string PlanText(const std::string& request);

}  // namespace minicache
