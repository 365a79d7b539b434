// The methods that a network is built with, as drive_plugin.cpp calls them.
#pragma once

#include "plugin_words.h"

namespace verbs {

using nvinfer1::DataType;
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using words::Count;
using words::ReadAll;
using words::Require;
using words::Words;

struct Size : nvinfer1::IDimensionExpr {};
struct Builder : nvinfer1::IExprBuilder {};

inline std::string Aliases(nvinfer1::IPluginV3OneBuildV2* build) {
  std::string text;
  for (int32_t i = 0; i < build->getNbOutputs(); i++) {
    text += (i > 0 ? " " : "") + std::to_string(build->getAliasedInput(i));
  }
  return text;
}

inline std::string Types(nvinfer1::IPluginV3OneBuildV2* build, const Words& rest) {
  std::vector<DataType> outputs(std::stoul(rest.at(0))), inputs;
  for (size_t i = 1; i < rest.size(); i++) inputs.push_back(words::Types().at(rest[i]));
  Require(build->getOutputDataTypes(outputs.data(), Count(outputs), inputs.data(), Count(inputs)) ==
          0);
  std::string text;
  for (const DataType type : outputs) text += (text.empty() ? "" : " ") + words::TypeName(type);
  return text;
}

// Sizes are told apart by their addresses: a plugin that asks them anything would crash.
inline std::string Shapes(nvinfer1::IPluginV3OneBuildV2* build, const Words& rest) {
  static Size sizes[64][8];
  std::vector<DimsExprs> outputs(std::stoul(rest.at(0))), inputs(rest.size() - 1);
  std::map<const nvinfer1::IDimensionExpr*, std::string> names;
  for (size_t i = 0; i < inputs.size(); i++) {
    inputs[i].nbDims = std::stoi(rest[1 + i]);
    for (int d = 0; d < inputs[i].nbDims; d++) {
      inputs[i].d[d] = &sizes[i][d];
      names[&sizes[i][d]] = std::to_string(i) + "." + std::to_string(d);
    }
  }
  Builder builder;
  Require(build->getOutputShapes(inputs.data(), Count(inputs), nullptr, 0, outputs.data(),
                                 Count(outputs), builder) == 0);
  std::string text;
  for (const DimsExprs& output : outputs) {
    text += text.empty() ? "" : " ";
    for (int d = 0; d < output.nbDims; d++) text += (d > 0 ? "," : "") + names.at(output.d[d]);
  }
  return text;
}

inline std::string Supports(nvinfer1::IPluginV3OneBuildV2* build, const Words& rest) {
  std::vector<DynamicPluginTensorDesc> tensors;
  for (size_t i = 2; i < rest.size(); i++) tensors.push_back(words::ReadDynamic(rest[i]));
  const int32_t inputs = std::stoi(rest.at(0)), position = std::stoi(rest.at(1));
  const int32_t outputs = Count(tensors) - inputs;
  return build->supportsFormatCombination(position, tensors.data(), inputs, outputs) ? "yes" : "no";
}

inline std::string Configure(nvinfer1::IPluginV3OneBuildV2* build, const Words& rest) {
  const auto inputs = ReadAll<DynamicPluginTensorDesc>(rest, 1, words::ReadDynamic);
  const std::vector<DynamicPluginTensorDesc> outputs(std::stoul(rest.at(0)));
  Require(build->configurePlugin(inputs.data(), Count(inputs), outputs.data(), Count(outputs)) ==
          0);
  return "";
}

inline std::string Workspace(nvinfer1::IPluginV3OneBuildV2* build, const Words& rest) {
  const auto inputs = ReadAll<DynamicPluginTensorDesc>(rest, 0, words::ReadDynamic);
  return std::to_string(build->getWorkspaceSize(inputs.data(), Count(inputs), nullptr, 0));
}

}  // namespace verbs
