// Drives the launcher by lines on standard input, and answers each with "ok ..." or "error: ...":
//   pack PATH                       makes a launcher
//   context N, destroy N            of the fake driver; 0 is none
//   launch KEY X Y Z ARGUMENT...    ARGUMENT: p:HEX, i:N, l:N or f:X; the stream is 0x51
//   prepare KEY X Y Z ARGUMENT...
//   require KEY X Y Z ARGUMENT...
//   copy HEX HEX BYTES              to, from
//   driver                          asks for the driver
//   table N...                      makes a device table; the answer is its address
//   threads N TIMES launch...       N threads, in the contexts 1 and 2 by turns
//   close                           destroys tables, then the launcher
#include <dlfcn.h>

#include <iostream>
#include <list>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "minicache/device_table.h"
#include "minicache/launcher.h"

using minicache::Launch;
using minicache::LaunchArgument;
using minicache::gpu::DeviceTable;
using minicache::gpu::Launcher;

namespace {

void CallDriver(const char* name, size_t context) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  using Function = int (*)(void*);
  reinterpret_cast<Function>(dlsym(library, name))(reinterpret_cast<void*>(context));
}

LaunchArgument ReadArgument(const std::string& word) {
  LaunchArgument argument = {static_cast<LaunchArgument::Kind>(word[0]), {0}};
  const std::string value = word.substr(2);
  switch (argument.kind) {
    case LaunchArgument::kPointer:
      argument.pointer = std::stoull(value, nullptr, 16);
      break;
    case LaunchArgument::kInt32:
      argument.int32 = std::stoi(value);
      break;
    case LaunchArgument::kInt64:
      argument.int64 = std::stoll(value);
      break;
    default:
      argument.float32 = std::stof(value);
  }
  return argument;
}

Launch ReadLaunch(std::istream& words) {
  Launch launch = {};
  words >> launch.key >> launch.grid[0] >> launch.grid[1] >> launch.grid[2];
  std::string word;
  while (words >> word) launch.arguments.push_back(ReadArgument(word));
  return launch;
}

class Driven {
 public:
  std::string Do(const std::string& line) {
    std::istringstream words(line);
    std::string verb, text;
    size_t number = 0;
    words >> verb;
    if (verb == "pack") {
      words >> text;
      launcher_ = std::make_unique<Launcher>(text);
    } else if (verb == "context" || verb == "destroy") {
      words >> number;
      CallDriver(verb == "context" ? "cuCtxSetCurrent" : "cuCtxDestroy_v2", number);
    } else if (launcher_ == nullptr) {
      return "no launcher";
    } else if (verb == "launch") {
      launcher_->Enqueue(ReadLaunch(words), stream());
    } else if (verb == "prepare") {
      launcher_->Prepare(ReadLaunch(words));
    } else if (verb == "require") {
      launcher_->Require(ReadLaunch(words));
    } else if (verb == "copy") {
      uint64_t to = 0, from = 0;
      words >> std::hex >> to >> from >> std::dec >> number;
      launcher_->Copy(to, from, number, stream());
    } else if (verb == "driver") {
      launcher_->RequireDriver();
    } else if (verb == "table") {
      std::vector<int32_t> values;
      for (int32_t value; words >> value;) values.push_back(value);
      const auto& table = tables_.emplace_back(*launcher_, values);
      std::ostringstream address;
      address << std::hex << table.Address() << " " << table.Address();
      return address.str();
    } else if (verb == "threads") {
      size_t times = 0;
      words >> number >> times >> text;
      return Threads(number, times, ReadLaunch(words));
    } else if (verb == "close") {
      tables_.clear();
      launcher_.reset();
    }
    return "";
  }

 private:
  static minicache::gpu::Stream stream() {
    return reinterpret_cast<minicache::gpu::Stream>(size_t{0x51});
  }

  std::string Threads(size_t count, size_t times, const Launch& launch) {
    const auto& table = tables_.emplace_back(*launcher_, std::vector<int32_t>{1, 2, 3});
    std::vector<std::string> errors(count);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < count; i++) {
      threads.emplace_back([&, i] {
        try {
          CallDriver("cuCtxSetCurrent", 1 + i % 2);
          for (size_t k = 0; k < times; k++) {
            table.Address();
            launcher_->Enqueue(launch, stream());
          }
        } catch (const std::exception& error) {
          errors[i] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::string all;
    for (const std::string& error : errors) all += error;
    return all;
  }

  std::unique_ptr<Launcher> launcher_;
  std::list<DeviceTable> tables_;
};

}  // namespace

int main() {
  Driven driven;
  for (std::string line; std::getline(std::cin, line);) {
    try {
      const std::string answer = driven.Do(line);
      std::cout << "ok" << (answer.empty() ? "" : " ") << answer << std::endl;
    } catch (const minicache::gpu::GpuError& error) {
      std::cout << "error: " << error.what() << std::endl;
    }
  }
}
