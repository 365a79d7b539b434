// What the test program reads and prints: TensorRT's structures as words.
#pragma once

#include <NvInferRuntime.h>

#include <cstring>
#include <list>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace words {

using nvinfer1::DataType;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

using Words = std::vector<std::string>;

// Throws where a method failed; what it logged says why.
inline void Require(bool done) {
  if (!done) throw std::runtime_error("");
}

template <class List>
int32_t Count(const List& list) {
  return static_cast<int32_t>(list.size());
}

template <class Item, class Read>
std::vector<Item> ReadAll(const Words& rest, size_t first, const Read& read) {
  std::vector<Item> items;
  for (size_t i = first; i < rest.size(); i++) items.push_back(read(rest[i]));
  return items;
}

inline std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

inline const std::map<std::string, DataType>& Types() {
  static const std::map<std::string, DataType> types = {
      {"float32", DataType::kFLOAT}, {"float16", DataType::kHALF}, {"bfloat16", DataType::kBF16},
      {"int8", DataType::kINT8},     {"int32", DataType::kINT32},  {"int64", DataType::kINT64},
      {"bool", DataType::kBOOL},     {"uint8", DataType::kUINT8},  {"fp8", DataType::kFP8},
      {"int4", DataType::kINT4},     {"fp4", DataType::kFP4}};
  return types;
}

inline std::string TypeName(DataType type) {
  for (const auto& [name, value] : Types()) {
    if (value == type) return name;
  }
  return "unknown";
}

inline nvinfer1::Dims ReadDims(const std::string& text) {
  nvinfer1::Dims dims{};
  for (const std::string& size : Split(text, 'x')) dims.d[dims.nbDims++] = std::stoll(size);
  return dims;
}

// TYPE:SIZExSIZE[@HEX]; with another format than linear TYPE/chw32:...
struct Placed {
  nvinfer1::PluginTensorDesc description{};
  void* address = nullptr;
};

inline Placed ReadTensor(const std::string& text) {
  Placed placed;
  const std::vector<std::string> parts = Split(text, ':');
  const std::vector<std::string> kind = Split(parts.at(0), '/');
  placed.description.type = Types().at(kind.at(0));
  placed.description.format =
      kind.size() > 1 ? nvinfer1::TensorFormat::kCHW32 : nvinfer1::TensorFormat::kLINEAR;
  placed.description.scale = 1.f;
  const std::vector<std::string> where = Split(parts.at(1), '@');
  placed.description.dims = ReadDims(where.at(0));
  if (where.size() > 1) {
    placed.address = reinterpret_cast<void*>(std::stoull(where[1], nullptr, 16));
  }
  return placed;
}

// TYPE:MIN;OPT;MAX, or one shape for all three.
inline nvinfer1::DynamicPluginTensorDesc ReadDynamic(const std::string& text) {
  const std::vector<std::string> parts = Split(text, ':');
  const std::vector<std::string> shapes = Split(parts.at(1), ';');
  nvinfer1::DynamicPluginTensorDesc dynamic{};
  dynamic.desc = ReadTensor(parts[0] + ":" + shapes.front()).description;
  for (int i = 0; i < dynamic.desc.dims.nbDims; i++) dynamic.desc.dims.d[i] = -1;
  dynamic.min = ReadDims(shapes.front());
  dynamic.opt = ReadDims(shapes.at(shapes.size() / 2));
  dynamic.max = ReadDims(shapes.back());
  return dynamic;
}

// Fields that own what they refer to; NAME=KIND:VALUES, where KIND is i (int32), l (int64), f, d (a
// double), s or z (text).
class Fields {
 public:
  Fields() = default;
  explicit Fields(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) Read(text);
  }
  // Copies fields, except one.
  Fields(const nvinfer1::PluginFieldCollection& fields, const std::string& without) {
    for (int32_t i = 0; i < fields.nbFields; i++) {
      const PluginField& field = fields.fields[i];
      if (field.name == without) continue;
      const auto* data = static_cast<const char*>(field.data);
      Add(field.name, field.type, field.length, data, SizeOf(field));
    }
  }

  nvinfer1::PluginFieldCollection Collection() const {
    return {static_cast<int32_t>(fields_.size()), fields_.data()};
  }
  // The last byte of a field becomes another.
  void Damage(const std::string& name) {
    size_t i = 0;
    for (std::vector<char>& bytes : bytes_) {
      if (fields_[i++].name == name) bytes.back() = static_cast<char>(bytes.back() ^ 1);
    }
  }
  // Overwrites all values, as memory that is given back may be.
  void Wipe() {
    for (std::vector<char>& bytes : bytes_) std::memset(bytes.data(), 0x7F, bytes.size());
  }

  static std::string Print(const PluginField& field) {
    std::ostringstream text;
    text << field.name << "=";
    const auto list = [&](const char* kind, const auto* values) {
      text << kind;
      for (int32_t i = 0; i < field.length; i++) text << (i > 0 ? "," : "") << values[i];
    };
    switch (field.type) {
      case PluginFieldType::kINT32:
        list("i:", static_cast<const int32_t*>(field.data));
        break;
      case PluginFieldType::kINT64:
        list("l:", static_cast<const int64_t*>(field.data));
        break;
      case PluginFieldType::kFLOAT32:
        text.precision(9);
        list("f:", static_cast<const float*>(field.data));
        break;
      case PluginFieldType::kCHAR:
        text << "s:" << std::string(static_cast<const char*>(field.data), SizeOf(field));
        break;
      default:
        text << "bytes:" << field.length;
    }
    return text.str();
  }

 private:
  static size_t SizeOf(const PluginField& field) {
    const bool eight =
        field.type == PluginFieldType::kINT64 || field.type == PluginFieldType::kFLOAT64;
    const bool four =
        field.type == PluginFieldType::kINT32 || field.type == PluginFieldType::kFLOAT32;
    return static_cast<size_t>(field.length) * (eight ? 8 : four ? 4 : 1);
  }

  void Add(const std::string& name, PluginFieldType type, int32_t length, const char* data,
           size_t size) {
    names_.push_back(name);
    bytes_.emplace_back(data, data + size);
    fields_.emplace_back(names_.back().c_str(), bytes_.back().data(), type, length);
  }

  template <class Value, class Parse>
  void AddList(const std::string& name, PluginFieldType type, const std::string& text,
               const Parse& parse) {
    std::vector<Value> values;
    for (const std::string& part : Split(text, ',')) {
      values.push_back(static_cast<Value>(parse(part)));
    }
    Add(name, type, static_cast<int32_t>(values.size()),
        reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value));
  }

  void Read(const std::string& text) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals), value = text.substr(equals + 3);
    const auto integer = [](const std::string& part) { return std::stoll(part); };
    const auto real = [](const std::string& part) { return std::stod(part); };
    switch (text.at(equals + 1)) {
      case 'i':
        return AddList<int32_t>(name, PluginFieldType::kINT32, value, integer);
      case 'l':
        return AddList<int64_t>(name, PluginFieldType::kINT64, value, integer);
      case 'f':
        return AddList<float>(name, PluginFieldType::kFLOAT32, value, real);
      case 'd':
        return AddList<double>(name, PluginFieldType::kFLOAT64, value, real);
      default: {  // s: text, z: with its terminating zero
        const std::string given = text[equals + 1] == 'z' ? value + '\0' : value;
        return Add(name, PluginFieldType::kCHAR, static_cast<int32_t>(given.size()), given.data(),
                   given.size());
      }
    }
  }

  std::list<std::string> names_;
  std::list<std::vector<char>> bytes_;
  std::vector<PluginField> fields_;
};

}  // namespace words
