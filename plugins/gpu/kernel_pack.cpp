#include "gpu/kernel_pack.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "minicache/launcher.h"

namespace minicache::gpu {
namespace {

constexpr char kMagic[] = "MCKERNEL";  // without its zero
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 40;
constexpr size_t kMaxCount = 1 << 20;  // of anything: more is garbage
constexpr std::string_view kHinted = "|hint=1", kPlain = "|hint=0";

// CRC-32 of zlib.
uint32_t Checksum(const char* data, size_t size) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < 256; i++) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; bit++) value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0u);
      made[i] = value;
    }
    return made;
  }();
  uint32_t sum = ~0u;
  for (size_t i = 0; i < size; i++) {
    sum = (sum >> 8) ^ table[(sum ^ static_cast<unsigned char>(data[i])) & 0xFF];
  }
  return ~sum;
}

[[noreturn]] void Refuse(const std::string& path, const std::string& what) {
  throw GpuError("kernel pack '" + path + "' " + what +
                 "; export the model again, or build the pack again with python -m "
                 "minicache.plugins.triton.build");
}

// Reads little-endian numbers and texts in order. The processors that drive these GPUs are
// little-endian as well.
class Reader {
 public:
  Reader(const std::string& path, const char* data, size_t size)
      : path_(path), data_(data), left_(size) {}

  template <typename Number>
  Number Take() {
    Number value;
    std::memcpy(&value, Bytes(sizeof value), sizeof value);
    return value;
  }
  std::string Text() {
    const size_t size = Count();
    return std::string(Bytes(size), size);
  }
  size_t Count() {
    const auto count = Take<uint32_t>();
    if (count > kMaxCount) Refuse(path_, "has a damaged table");
    return count;
  }

 private:
  const char* Bytes(size_t count) {
    if (count > left_) Refuse(path_, "has a damaged table");
    const char* at = data_;
    data_ += count;
    left_ -= count;
    return at;
  }
  const std::string& path_;
  const char* data_;
  size_t left_;
};

LaunchArgument::Kind ReadKind(Reader& reader, const std::string& path) {
  const auto kind = reader.Take<char>();
  switch (kind) {
    case LaunchArgument::kPointer:
    case LaunchArgument::kInt32:
    case LaunchArgument::kInt64:
    case LaunchArgument::kFloat32:
      return static_cast<LaunchArgument::Kind>(kind);
    default:
      Refuse(path, "has an argument of unknown kind");
  }
}

Kernel ReadKernel(Reader& reader, const std::string& path, const std::vector<char>& bytes) {
  Kernel kernel;
  kernel.key = reader.Text();
  kernel.symbol = reader.Text();
  kernel.null_pointers = static_cast<uint32_t>(reader.Count());
  kernel.arguments.resize(reader.Count());
  for (KernelArgument& argument : kernel.arguments) {
    argument.name = reader.Text();
    argument.kind = ReadKind(reader, path);
    argument.divisor = reader.Take<uint8_t>();
    if (argument.divisor == 0) Refuse(path, "has a damaged table");
  }
  kernel.images.resize(reader.Count());
  for (KernelImage& image : kernel.images) {
    image.arch = reader.Take<uint32_t>();
    image.is_ptx = reader.Take<uint32_t>() != 0;
    image.warps = reader.Take<uint32_t>();
    image.shared = reader.Take<uint32_t>();
    const auto offset = reader.Take<uint64_t>(), size = reader.Take<uint64_t>();
    image.checksum = reader.Take<uint32_t>();
    if (offset > bytes.size() || size > bytes.size() - offset || size == 0) {
      Refuse(path, "names an image beyond its end");
    }
    image.data = bytes.data() + offset;
    image.size = size;
  }
  return kernel;
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

std::string_view WithoutHint(std::string_view key) {
  const bool ends = EndsWith(key, kHinted) || EndsWith(key, kPlain);
  return ends ? key.substr(0, key.size() - kHinted.size()) : key;
}

}  // namespace

std::vector<char> ReadPackFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) Refuse(path, "cannot be read: " + std::string(std::strerror(errno)));
  std::vector<char> bytes(static_cast<size_t>(file.tellg()));
  file.seekg(0);
  if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    Refuse(path, "cannot be read");
  }
  return bytes;
}

KernelPack::KernelPack(std::string name, std::vector<char> bytes)
    : name_(std::move(name)), bytes_(std::move(bytes)) {
  if (bytes_.size() < kHeaderBytes || std::memcmp(bytes_.data(), kMagic, 8) != 0) {
    Refuse(name_, "is no kernel pack");
  }
  Reader header(name_, bytes_.data() + 8, kHeaderBytes - 8);
  const auto version = header.Take<uint32_t>();
  if (version != kVersion) {
    Refuse(name_, "has version " + std::to_string(version) + ", this library reads version " +
                      std::to_string(kVersion));
  }
  const size_t count = header.Count();
  const auto table_bytes = header.Take<uint64_t>(), file_bytes = header.Take<uint64_t>();
  const auto checksum = header.Take<uint32_t>();
  if (file_bytes != bytes_.size()) {
    Refuse(name_, "has " + std::to_string(bytes_.size()) + " bytes instead of " +
                      std::to_string(file_bytes) + ": it was cut or changed");
  }
  if (table_bytes > bytes_.size() - kHeaderBytes ||
      Checksum(bytes_.data() + kHeaderBytes, table_bytes) != checksum) {
    Refuse(name_, "has a damaged table");
  }
  Reader table(name_, bytes_.data() + kHeaderBytes, table_bytes);
  kernels_.reserve(count);
  for (size_t i = 0; i < count; i++) kernels_.push_back(ReadKernel(table, name_, bytes_));
  for (const Kernel& kernel : kernels_) {
    KernelTwins& twins = twins_[WithoutHint(kernel.key)];
    (EndsWith(kernel.key, kPlain) ? twins.plain : twins.hinted) = &kernel;
  }
}

KernelTwins KernelPack::Find(std::string_view key) const {
  const auto found = twins_.find(WithoutHint(key));
  return found == twins_.end() ? KernelTwins{} : found->second;
}

void KernelPack::CheckImage(const Kernel& kernel, const KernelImage& image) const {
  const bool ends = !image.is_ptx || image.data[image.size - 1] == '\0';
  if (!ends || Checksum(image.data, image.size) != image.checksum) {
    Refuse(name_, "has a damaged image of kernel '" + kernel.key + "' for sm_" +
                      std::to_string(image.arch));
  }
}

}  // namespace minicache::gpu
