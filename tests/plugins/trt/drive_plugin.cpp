// Drives the plugin library that it is given by lines on standard input, as TensorRT would, and
// answers each with "ok ...", or with "failed ..." and what was logged. NAME is the driver's, of a
// plugin:
//   creator                          name, version, namespace, and the fields with their types
//   create NAME LAYER build|runtime FIELD...
//   clone OLD NEW, attach OLD NEW, drop NAME
//   capabilities NAME                those of a plugin: name, version, namespace
//   aliases NAME                     of each output, the input whose memory it has, or -1
//   types NAME OUTPUTS TYPE...       of the outputs, from those of the inputs
//   shapes NAME OUTPUTS RANK...      of the outputs' sizes, which input's size each is
//   supports NAME INPUTS POSITION TENSOR...
//   configure NAME OUTPUTS TENSOR..., workspace NAME TENSOR...
//   describe NAME, fields NAME       what is serialised
//   revive OLD NEW [without FIELD | damage FIELD]   a runtime plugin from the fields of another
//   reshape NAME TENSOR..., enqueue NAME WORKSPACE STREAM TENSOR... > ADDRESS...
//   context N                        makes one of the fake driver current
//   logger off                       the library forgets the logger
#include <dlfcn.h>

#include <iostream>
#include <iterator>
#include <map>
#include <memory>

#include "build_verbs.h"
#include "plugin_words.h"

using namespace nvinfer1;  // the interfaces' own names read best here
using words::Count;
using words::Require;
using words::Words;

namespace {

class Logger : public ILogger, public ILoggerFinder {
 public:
  void log(Severity, const char* text) noexcept override { said += std::string(" ") + text; }
  ILogger* findLogger() override { return this; }
  std::string said;
};

class Driven {
 public:
  explicit Driven(const char* path) : library_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    int32_t count = 0;
    const auto creators = Find<IPluginCreatorInterface* const*(int32_t&)>("getCreators")(count);
    if (count != 1) throw std::runtime_error("not one creator");
    creator_ = static_cast<IPluginCreatorV3One*>(creators[0]);
    Find<void(ILoggerFinder*)>("setLoggerFinder")(&logger);
  }

  // The answer; throws where a method failed.
  std::string Do(std::istream& line) {
    std::string verb, name;
    line >> verb;
    if (verb == "creator") return Creator();
    if (verb == "logger") return Find<void(ILoggerFinder*)>("setLoggerFinder")(nullptr), "";
    if (verb == "context") return CallDriver("cuCtxSetCurrent", line);
    line >> name;
    const Words rest{std::istream_iterator<std::string>(line), {}};
    if (verb == "create") return Create(name, rest);
    IPluginV3* const plugin = plugins_.at(name).get();
    auto* const core = As<IPluginV3OneCore>(plugin, PluginCapabilityType::kCORE);
    auto* const build = As<IPluginV3OneBuildV2>(plugin, PluginCapabilityType::kBUILD);
    auto* const runtime = As<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
    if (verb == "clone") return Keep(rest.at(0), plugin->clone());
    if (verb == "attach") return Keep(rest.at(0), runtime->attachToContext(nullptr));
    if (verb == "drop") return plugins_.erase(name), "";
    if (verb == "capabilities") return Identity(*core);
    if (verb == "aliases") return verbs::Aliases(build);
    if (verb == "types") return verbs::Types(build, rest);
    if (verb == "shapes") return verbs::Shapes(build, rest);
    if (verb == "supports") return verbs::Supports(build, rest);
    if (verb == "configure") return verbs::Configure(build, rest);
    if (verb == "workspace") return verbs::Workspace(build, rest);
    if (verb == "describe") return build->getMetadataString();
    if (verb == "fields") return PrintFields(runtime);
    if (verb == "revive") return Revive(runtime, rest);
    if (verb == "reshape") return Reshape(runtime, rest);
    if (verb == "enqueue") return Enqueue(runtime, rest);
    throw std::runtime_error("no such verb: " + verb);
  }

  Logger logger;

 private:
  template <class Function>
  Function* Find(const char* name) const {
    void* const found = dlsym(library_, name);
    if (found == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<Function*>(found);
  }
  template <class Capability>
  static Capability* As(IPluginV3* plugin, PluginCapabilityType type) {
    return static_cast<Capability*>(plugin->getCapabilityInterface(type));
  }
  static std::string CallDriver(const char* name, std::istream& line) {
    size_t context = 0;
    line >> context;
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == nullptr) throw std::runtime_error("no driver");
    reinterpret_cast<int (*)(void*)>(dlsym(driver, name))(reinterpret_cast<void*>(context));
    return "";
  }
  template <class Named>
  static std::string Identity(const Named& named) {
    return std::string(named.getPluginName()) + " " + named.getPluginVersion() + " " +
           named.getPluginNamespace();
  }

  std::string Creator() {
    std::string text = Identity(*creator_);
    const PluginFieldCollection& fields = *creator_->getFieldNames();
    for (int32_t i = 0; i < fields.nbFields; i++) {
      const auto type = static_cast<int>(fields.fields[i].type);
      text += std::string(" ") + fields.fields[i].name + ":" + std::to_string(type);
    }
    return text;
  }

  std::string Keep(const std::string& name, IPluginV3* plugin) {
    Require(plugin != nullptr);
    plugins_[name].reset(plugin);
    return "";
  }

  std::string Create(const std::string& name, const Words& rest) {
    const words::Fields fields(Words(rest.begin() + 2, rest.end()));
    const PluginFieldCollection collection = fields.Collection();
    const TensorRTPhase phase =
        rest.at(1) == "build" ? TensorRTPhase::kBUILD : TensorRTPhase::kRUNTIME;
    return Keep(name, creator_->createPlugin(rest.at(0).c_str(), &collection, phase));
  }

  static std::string PrintFields(IPluginV3OneRuntime* runtime) {
    const PluginFieldCollection* const fields = runtime->getFieldsToSerialize();
    Require(fields != nullptr);
    std::string text;
    for (int32_t i = 0; i < fields->nbFields; i++) {
      text += (i > 0 ? " " : "") + words::Fields::Print(fields->fields[i]);
    }
    return text;
  }

  std::string Revive(IPluginV3OneRuntime* runtime, const Words& rest) {
    const bool without = rest.size() > 1 && rest[1] == "without";
    words::Fields fields(*runtime->getFieldsToSerialize(), without ? rest.at(2) : "");
    if (rest.size() > 1 && rest[1] == "damage") fields.Damage(rest.at(2));
    const PluginFieldCollection collection = fields.Collection();
    IPluginV3* const made = creator_->createPlugin("revived", &collection, TensorRTPhase::kRUNTIME);
    fields.Wipe();
    return Keep(rest.at(0), made);
  }

  static std::string Reshape(IPluginV3OneRuntime* runtime, const Words& rest) {
    std::vector<PluginTensorDesc> inputs;
    for (const std::string& word : rest) inputs.push_back(words::ReadTensor(word).description);
    Require(runtime->onShapeChange(inputs.data(), Count(inputs), nullptr, 0) == 0);
    return "";
  }

  static std::string Enqueue(IPluginV3OneRuntime* runtime, const Words& rest) {
    const auto number = [](const std::string& word) {
      return reinterpret_cast<void*>(std::stoull(word, nullptr, 16));
    };
    std::vector<PluginTensorDesc> descriptions;
    std::vector<void*> inputs, outputs;
    size_t i = 2;
    for (; rest.at(i) != ">"; i++) {
      const words::Placed placed = words::ReadTensor(rest[i]);
      descriptions.push_back(placed.description);
      inputs.push_back(placed.address);
    }
    for (i++; i < rest.size(); i++) outputs.push_back(number(rest[i]));
    Require(runtime->enqueue(descriptions.data(), nullptr, inputs.data(), outputs.data(),
                             number(rest.at(0)),
                             static_cast<cudaStream_t>(number(rest.at(1)))) == 0);
    return "";
  }

  void* const library_;
  IPluginCreatorV3One* creator_ = nullptr;
  std::map<std::string, std::unique_ptr<IPluginV3>> plugins_;
};

}  // namespace

int main(int, char** arguments) {
  Driven driven(arguments[1]);
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream line(text);
    driven.logger.said.clear();
    std::string answer;
    try {
      answer = "ok " + driven.Do(line);
    } catch (const std::exception& error) {
      answer = std::string("failed ") + error.what();
    }
    std::cout << answer << driven.logger.said << std::endl;
  }
}
