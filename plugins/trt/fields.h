// Attributes as TensorRT's plugin fields: from a graph, from an engine, and back into an engine.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "minicache/attributes.h"

namespace minicache::trt {

// Reads fields by name; absent ones leave the value as it is. Throws std::runtime_error where a
// field has another type or length than asked for.
class FieldReader {
 public:
  explicit FieldReader(const nvinfer1::PluginFieldCollection& fields) : fields_(fields) {}

  void Read(const char* name, int64_t* value) const;
  void Read(const char* name, float* value) const;
  void Read(const char* name, std::string* value) const;
  void Read(const char* name, std::vector<int64_t>* value) const;
  // Bytes of any kind.
  void Read(const char* name, std::vector<char>* value) const;

 private:
  const nvinfer1::PluginField* Find(const char* name) const;

  const nvinfer1::PluginFieldCollection& fields_;
};

// Fields that refer to values, which must outlive it.
class FieldList {
 public:
  void Add(const char* name, const int64_t* value);
  void Add(const char* name, const float* value);
  void Add(const char* name, const std::string* value);
  void Add(const char* name, const std::vector<int64_t>* value);
  void Add(const char* name, const std::vector<char>* value);
  void Clear() { fields_.clear(); }

  // Valid until the list changes.
  const nvinfer1::PluginFieldCollection* Collection();

 private:
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_{};
};

}  // namespace minicache::trt
