#include "trt/fields.h"

#include <cstring>
#include <stdexcept>

namespace minicache::trt {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

[[noreturn]] void Refuse(const PluginField& field, const char* wanted) {
  throw std::runtime_error("field '" + std::string(field.name) + "' is no " + wanted +
                           " (field type " + std::to_string(static_cast<int>(field.type)) + ", " +
                           std::to_string(field.length) + " entries)");
}

// Graphs bring int32, engines int64.
bool ReadInts(const PluginField& field, std::vector<int64_t>* values) {
  if (field.length < 0 || (field.length > 0 && field.data == nullptr)) return false;
  if (field.type == PluginFieldType::kINT64) {
    const auto* data = static_cast<const int64_t*>(field.data);
    values->assign(data, data + field.length);
    return true;
  }
  if (field.type == PluginFieldType::kINT32) {
    const auto* data = static_cast<const int32_t*>(field.data);
    values->assign(data, data + field.length);
    return true;
  }
  return false;
}

}  // namespace

const PluginField* FieldReader::Find(const char* name) const {
  for (int32_t i = 0; i < fields_.nbFields; i++) {
    const PluginField& field = fields_.fields[i];
    if (field.name != nullptr && std::strcmp(field.name, name) == 0) return &field;
  }
  return nullptr;
}

void FieldReader::Read(const char* name, int64_t* value) const {
  const PluginField* field = Find(name);
  if (field == nullptr) return;
  std::vector<int64_t> values;
  if (!ReadInts(*field, &values) || values.size() != 1) Refuse(*field, "integer");
  *value = values[0];
}

void FieldReader::Read(const char* name, std::vector<int64_t>* value) const {
  const PluginField* field = Find(name);
  if (field != nullptr && !ReadInts(*field, value)) Refuse(*field, "list of integers");
}

void FieldReader::Read(const char* name, float* value) const {
  const PluginField* field = Find(name);
  if (field == nullptr) return;
  if (field->type != PluginFieldType::kFLOAT32 || field->length != 1 || field->data == nullptr) {
    Refuse(*field, "float");
  }
  std::memcpy(value, field->data, sizeof *value);
}

void FieldReader::Read(const char* name, std::string* value) const {
  const PluginField* field = Find(name);
  if (field == nullptr) return;
  if (field->type != PluginFieldType::kCHAR || field->length < 0 || field->data == nullptr) {
    Refuse(*field, "text");
  }
  // With its terminating zero or without.
  const auto* data = static_cast<const char*>(field->data);
  value->assign(data, strnlen(data, static_cast<size_t>(field->length)));
}

void FieldReader::Read(const char* name, std::vector<char>* value) const {
  const PluginField* field = Find(name);
  if (field == nullptr) return;
  if (field->type != PluginFieldType::kUNKNOWN || field->length < 0 || field->data == nullptr) {
    Refuse(*field, "block of bytes");
  }
  const auto* data = static_cast<const char*>(field->data);
  value->assign(data, data + field->length);
}

void FieldList::Add(const char* name, const int64_t* value) {
  fields_.emplace_back(name, value, PluginFieldType::kINT64, 1);
}

void FieldList::Add(const char* name, const float* value) {
  fields_.emplace_back(name, value, PluginFieldType::kFLOAT32, 1);
}

void FieldList::Add(const char* name, const std::string* value) {
  fields_.emplace_back(name, value->data(), PluginFieldType::kCHAR,
                       static_cast<int32_t>(value->size()));
}

void FieldList::Add(const char* name, const std::vector<int64_t>* value) {
  // An empty list is the default of every list.
  if (value->empty()) return;
  fields_.emplace_back(name, value->data(), PluginFieldType::kINT64,
                       static_cast<int32_t>(value->size()));
}

void FieldList::Add(const char* name, const std::vector<char>* value) {
  if (value->size() > INT32_MAX) throw std::runtime_error("more than 2 GiB of kernels");
  fields_.emplace_back(name, value->data(), PluginFieldType::kUNKNOWN,
                       static_cast<int32_t>(value->size()));
}

const nvinfer1::PluginFieldCollection* FieldList::Collection() {
  collection_.nbFields = static_cast<int32_t>(fields_.size());
  collection_.fields = fields_.data();
  return &collection_;
}

}  // namespace minicache::trt
