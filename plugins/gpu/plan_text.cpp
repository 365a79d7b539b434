#include "gpu/plan_text.h"

#include <cinttypes>
#include <cstdio>
#include <map>
#include <sstream>

#include "gpu/plan.h"
#include "minicache/read_attributes.h"

namespace minicache {
namespace {

std::vector<int64_t> Numbers(const std::string& text) {
  std::vector<int64_t> numbers;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) numbers.push_back(std::stoll(part));
  return numbers;
}

// Reads attributes or options from words by name.
class WordReader {
 public:
  void Set(const std::string& name, const std::string& word) { words_[name] = word; }
  void Read(const char* name, int64_t* value) const {
    if (const std::string* word = Find(name)) *value = std::stoll(*word);
  }
  void Read(const char* name, float* value) const {
    if (const std::string* word = Find(name)) *value = std::stof(*word);
  }
  void Read(const char* name, std::string* value) const {
    if (const std::string* word = Find(name)) *value = *word;
  }
  void Read(const char* name, std::vector<int64_t>* value) const {
    if (const std::string* word = Find(name)) *value = Numbers(*word);
  }

 private:
  const std::string* Find(const char* name) const {
    const auto found = words_.find(name);
    return found == words_.end() ? nullptr : &found->second;
  }
  std::map<std::string, std::string> words_;
};

struct Request {
  WordReader attributes;
  GpuOptions options;
  std::map<std::string, Tensor> tensors;
  uint64_t table = 0;
  uint64_t scratch = 0;
};

ElementType TypeOf(const std::string& text) {
  const std::map<std::string, ElementType> types = {{"float32", ElementType::kFloat32},
                                                    {"float16", ElementType::kFloat16},
                                                    {"bfloat16", ElementType::kBfloat16},
                                                    {"int8", ElementType::kInt8},
                                                    {"int32", ElementType::kInt32}};
  const auto found = types.find(text);
  return found == types.end() ? ElementType::kOther : found->second;
}

Request Parse(const std::string& text) {
  Request request;
  WordReader options;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::stringstream words(line);
    std::string kind, name, value, shape, address;
    words >> kind >> name >> value >> shape >> address;
    if (kind == "table") request.table = std::stoull(name);
    if (kind == "scratch") request.scratch = std::stoull(name);
    if (kind == "attribute") request.attributes.Set(name, value);
    if (kind == "option") options.Set(name, value);
    if (kind != "tensor") continue;
    Tensor& tensor = request.tensors[name];
    tensor.type = TypeOf(value);
    tensor.data = reinterpret_cast<char*>(std::stoull(address));
    for (const int64_t size : Numbers(shape)) {
      if (tensor.rank < 5) tensor.shape[tensor.rank++] = size;
    }
  }
  options.Read("multiprocessors", &request.options.multiprocessors);
  options.Read("split_tokens", &request.options.split_tokens);
  options.Read("scratch_bytes", &request.options.scratch_bytes);
  return request;
}

std::string Json(const LaunchArgument& argument) {
  char text[64] = {};
  switch (argument.kind) {
    case LaunchArgument::kPointer:
      std::snprintf(text, sizeof text, "[\"p\", %" PRIu64 "]", argument.pointer);
      break;
    case LaunchArgument::kInt32:
      std::snprintf(text, sizeof text, "[\"i\", %" PRId32 "]", argument.int32);
      break;
    case LaunchArgument::kInt64:
      std::snprintf(text, sizeof text, "[\"l\", %" PRId64 "]", argument.int64);
      break;
    case LaunchArgument::kFloat32:
      std::snprintf(text, sizeof text, "[\"f\", %.9g]", static_cast<double>(argument.float32));
      break;
  }
  return text;
}

template <class List, class Body>
std::string JsonList(const List& list, const Body& body) {
  std::string text;
  for (const auto& item : list) text += (text.empty() ? "" : ", ") + body(item);
  return "[" + text + "]";
}

std::string Json(const Launch& launch) {
  const auto number = [](uint32_t n) { return std::to_string(n); };
  const auto argument = [](const LaunchArgument& a) { return Json(a); };
  return "{\"key\": \"" + launch.key + "\", \"grid\": " + JsonList(launch.grid, number) +
         ", \"arguments\": " + JsonList(launch.arguments, argument) + "}";
}

std::string Error(const std::string& what) {
  std::string text;
  for (const char c : what)
    text += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return "{\"error\": \"" + text + "\"}";
}

// Fills `tensors` with those of a request; returns the name of one that is missing.
std::string Place(const Request& request, const Attributes& a, const std::vector<Slot>& slots,
                  Tensors* tensors) {
  tensors->new_keys.resize(static_cast<size_t>(a.group_size - 1));
  tensors->new_values.resize(static_cast<size_t>(a.group_size - 1));
  for (const Slot& slot : slots) {
    const auto found = request.tensors.find(slot.name);
    if (found == request.tensors.end()) return slot.name;
    tensors->at(slot) = found->second;
  }
  const auto found = request.tensors.find("attention");
  if (found == request.tensors.end()) return "attention";
  tensors->attention = found->second;
  return "";
}

std::string Answer(const Request& request) {
  Attributes attributes = {};
  std::string wrong = CheckAttributes(ReadRawAttributes(request.attributes), &attributes);
  GpuPlan plan;
  if (wrong.empty()) wrong = GpuPlan::Make(attributes, request.options, &plan);
  if (!wrong.empty()) return Error(wrong);
  const std::vector<Slot> slots = InputSlots(attributes);
  Tensors tensors;
  const std::string missing = Place(request, attributes, slots, &tensors);
  if (!missing.empty()) return Error("the request has no tensor '" + missing + "'");
  CallShape shape;
  wrong = CheckTensors(attributes, slots, tensors, &shape);
  if (wrong.empty()) wrong = plan.CheckCall(tensors, shape);
  if (!wrong.empty()) return Error(wrong);
  const auto launches = plan.Launches(tensors, shape, request.table, request.scratch);
  return "{\"table\": " + JsonList(plan.table(), [](int32_t n) { return std::to_string(n); }) +
         ", \"scratch\": " + std::to_string(plan.ScratchBytes(shape)) + ", \"launches\": " +
         JsonList(launches, [](const Launch& launch) { return Json(launch); }) + "}";
}

}  // namespace

std::string PlanText(const std::string& request) {
  try {
    return Answer(Parse(request));
  } catch (const std::exception& error) {  // a number that is none
    return Error(std::string("the request cannot be read: ") + error.what());
  }
}

}  // namespace minicache
