#include "trt/node.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "minicache/read_attributes.h"

namespace minicache::trt {
namespace {

void Require(const std::string& wrong) {
  if (!wrong.empty()) throw std::runtime_error(wrong);
}

template <class Value>
void Print(const Value& value, std::ostream& text) {
  text << value;
}

void Print(const std::vector<int64_t>& values, std::ostream& text) {
  for (size_t i = 0; i < values.size(); i++) text << (i > 0 ? "," : "") << values[i];
}

}  // namespace

Node::Node(std::string name, const FieldReader& fields)
    : name_(std::move(name)), raw_(ReadRawAttributes(fields)) {
  fields.Read(kCarriesKernels, &carries_kernels_);
  Require(CheckAttributes(raw_, &attributes_));
  Require(GpuPlan::Make(attributes_, {}, &plan_));
  slots_ = InputSlots(attributes_);
  const auto is_state = [](const Slot& slot) { return IsState(slot.id); };
  const auto first = std::find_if(slots_.begin(), slots_.end(), is_state);
  first_state_ = static_cast<size_t>(first - slots_.begin());
  states_ = static_cast<size_t>(std::count_if(first, slots_.end(), is_state));
  std::ostringstream text;
  VisitAttributes(
      [&](const char* attribute, const auto* value) {
        text << (text.tellp() > 0 ? " " : "") << attribute << "=";
        Print(*value, text);
      },
      &raw_);
  description_ = text.str();
}

void Node::CheckInputs(int32_t count) const {
  if (count >= 0 && static_cast<size_t>(count) == slots_.size()) return;
  std::string names;
  for (const Slot& slot : slots_) names += (names.empty() ? "" : ", ") + slot.name;
  throw std::runtime_error("the node has " + std::to_string(count) +
                           " inputs, its attributes ask for " + std::to_string(slots_.size()) +
                           ": " + names);
}

void Node::CheckOutputs(int32_t count) const {
  if (count >= 0 && static_cast<size_t>(count) == outputs()) return;
  throw std::runtime_error("the node has " + std::to_string(count) +
                           " outputs, on TensorRT it returns the attention and " +
                           std::to_string(states_) + " states");
}

Tensors Node::Empty() const {
  Tensors tensors;
  tensors.new_keys.resize(static_cast<size_t>(attributes_.group_size - 1));
  tensors.new_values.resize(static_cast<size_t>(attributes_.group_size - 1));
  return tensors;
}

CallShape Node::Check(const Tensors& tensors) const {
  CallShape shape;
  Require(CheckTensors(attributes_, slots_, tensors, &shape));
  Require(plan_.CheckCall(tensors, shape));
  return shape;
}

void Node::AddFields(FieldList* fields) const {
  VisitAttributes([&](const char* name, const auto* value) { fields->Add(name, value); }, &raw_);
  fields->Add(kCarriesKernels, &carries_kernels_);
}

}  // namespace minicache::trt
