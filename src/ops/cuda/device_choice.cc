#include "ops/cuda/device_choice.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace vayu::ops {
namespace {

constexpr const char* kDriverLibrary = "libcuda.so.1";
constexpr int32_t kMajor = 9, kMinor = 0;  // sm_90a: code of the "a" kind runs on no other

std::string version_text(int32_t version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// nvidia0, nvidia1, ...
bool is_device_node(const std::string& name) {
  constexpr std::string_view kStem = "nvidia";
  return name.starts_with(kStem) && name.size() > kStem.size() &&
         std::all_of(name.begin() + kStem.size(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

Status check_driver(const DriverAnswer& answer) {
  const std::string error = answer.error.empty() ? "the driver lists none" : answer.error;
  if (answer.driver_version == 0) {
    return make_error(ErrorKind::kNotFound,
                      "no CUDA device: there is no NVIDIA driver ({}); --device cpu runs without one", error);
  }
  if (answer.no_device || (answer.error.empty() && answer.num_devices == 0)) {
    return make_error(ErrorKind::kNotFound, "no CUDA device ({}); --device cpu runs without one", error);
  }
  if (answer.error.empty()) return {};
  if (answer.driver_version < answer.runtime_version) {
    return make_error(ErrorKind::kUnavailable,
                      "the NVIDIA driver serves CUDA {}, this binary is built with {} ({}): update the driver, or use "
                      "--device cpu",
                      version_text(answer.driver_version), version_text(answer.runtime_version), error);
  }
  return make_error(ErrorKind::kUnavailable, "the CUDA driver fails: {}; --device cpu runs without it", error);
}

Status check_device(const DeviceInfo& info) {
  if (info.compute_major == kMajor && info.compute_minor == kMinor) return {};
  const bool older = info.compute_major < kMajor;
  return make_error(ErrorKind::kUnsupported,
                    "{} has compute capability {}.{}, {} than Hopper ({}.{}), which the CUDA backend is built for; use "
                    "--device cpu",
                    info.name, info.compute_major, info.compute_minor, older ? "older" : "newer", kMajor, kMinor);
}

std::string find_device_node(const std::string& root) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path base(root);
  std::string found;
  for (fs::directory_iterator it(base / "dev", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::string path = "/dev/" + name;
    if (is_device_node(name) && (found.empty() || path < found)) found = path;
  }
  if (!found.empty()) return found;
  // The nodes are made when somebody with the rights first uses the device.
  return fs::exists(base / "proc/driver/nvidia/version", error) ? "/proc/driver/nvidia/version" : "";
}

std::string find_device_sign() {
  if (std::string node = find_device_node("/"); !node.empty()) return node;
  void* library = dlopen(kDriverLibrary, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "";
  dlclose(library);
  return kDriverLibrary;
}

CpuNotice cpu_notice(const Error& why, const std::string& sign) {
  const bool news = !sign.empty() || why.kind == ErrorKind::kUnavailable;
  if (!news) return {false, fmt::format("running on the CPU: {}", why.message)};
  const std::string there = sign.empty() ? "" : fmt::format(" although there is {}", sign);
  return {true, fmt::format("--device auto: running on the CPU{}: {}", there, why.message)};
}

}  // namespace vayu::ops
