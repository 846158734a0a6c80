#include "ops/cuda/device_choice.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace vayu::ops {
namespace {

namespace fs = std::filesystem;

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

DeviceInfo device(std::string name, int32_t major, int32_t minor) {
  DeviceInfo info;
  info.name = std::move(name);
  info.compute_major = major;
  info.compute_minor = minor;
  return info;
}

TEST(DeviceChoice, HopperAloneIsTaken) {
  EXPECT_TRUE(check_device(device("NVIDIA H200", 9, 0)).ok());
  struct Case {
    const char* name;
    int32_t major, minor;
    const char* said;
  };
  for (const Case& c : {Case{"Tesla V100", 7, 0, "older"}, Case{"NVIDIA A100", 8, 0, "older"},
                        Case{"NVIDIA L40S", 8, 9, "older"}, Case{"NVIDIA H200", 9, 1, "newer"},
                        Case{"NVIDIA B200", 10, 0, "newer"}, Case{"RTX PRO 6000", 12, 0, "newer"}}) {
    const Status refused = check_device(device(c.name, c.major, c.minor));
    ASSERT_FALSE(refused.ok()) << c.name;
    EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
    const std::string& text = refused.error().message;
    EXPECT_TRUE(has(text, c.name) &&
                has(text, fmt::format("capability {}.{}, {} than Hopper (9.0)", c.major, c.minor, c.said)))
        << text;
    EXPECT_TRUE(has(text, "--device cpu")) << text;
  }
}

TEST(DeviceChoice, DriversThatWork) {
  EXPECT_TRUE(check_driver({.driver_version = 13000, .runtime_version = 13000, .num_devices = 1}).ok());
  EXPECT_TRUE(check_driver({.driver_version = 13010, .runtime_version = 13000, .num_devices = 8}).ok());
}

TEST(DeviceChoice, NoDriverIsToldFromOneThatFails) {
  struct Case {
    DriverAnswer answer;
    ErrorKind kind;
    std::vector<const char*> said;
  };
  const Case cases[] = {
      {{.runtime_version = 13000, .error = "CUDA driver version is insufficient for CUDA runtime version"},
       ErrorKind::kNotFound,
       {"no CUDA device", "no NVIDIA driver", "insufficient"}},
      {{.driver_version = 13000, .runtime_version = 13000, .no_device = true, .error = "no CUDA-capable device"},
       ErrorKind::kNotFound,
       {"no CUDA device (no CUDA-capable device)"}},
      {{.driver_version = 13000, .runtime_version = 13000}, ErrorKind::kNotFound, {"the driver lists none"}},
      {{.driver_version = 12040, .runtime_version = 13000, .error = "CUDA driver version is insufficient"},
       ErrorKind::kUnavailable,
       {"serves CUDA 12.4", "built with 13.0", "update the driver"}},
      {{.driver_version = 13000, .runtime_version = 13000, .error = "system not yet initialized"},
       ErrorKind::kUnavailable,
       {"the CUDA driver fails: system not yet initialized"}},
      {{.driver_version = 13000, .runtime_version = 13000, .num_devices = 1, .error = "unknown error"},
       ErrorKind::kUnavailable,
       {"unknown error"}},
  };
  for (const Case& c : cases) {
    const Status checked = check_driver(c.answer);
    ASSERT_FALSE(checked.ok()) << c.said.front();
    EXPECT_EQ(checked.error().kind, c.kind) << checked.error().message;
    for (const char* part : c.said) EXPECT_TRUE(has(checked.error().message, part)) << checked.error().message;
    EXPECT_TRUE(has(checked.error().message, "CUDA") && has(checked.error().message, "--device cpu"));
  }
}

TEST(DeviceChoice, OnlyAMachineWithAGpuIsWarned) {
  const Error none = make_error(ErrorKind::kNotFound, "no CUDA device (x)");
  const Error fails = make_error(ErrorKind::kUnavailable, "the CUDA driver fails: y");
  const Error old = make_error(ErrorKind::kUnsupported, "an A100 is older than Hopper");
  const CpuNotice laptop = cpu_notice(none, "");
  EXPECT_FALSE(laptop.is_warning);
  EXPECT_EQ(laptop.text, "running on the CPU: no CUDA device (x)");
  EXPECT_FALSE(cpu_notice(make_error(ErrorKind::kUnsupported, "built without CUDA"), "").is_warning);

  EXPECT_TRUE(cpu_notice(fails, "").is_warning) << "a driver that fails is there";
  for (const Error& why : {none, fails, old}) {
    const CpuNotice notice = cpu_notice(why, "/dev/nvidia0");
    EXPECT_TRUE(notice.is_warning) << why.message;
    EXPECT_TRUE(has(notice.text, "--device auto") && has(notice.text, "/dev/nvidia0") && has(notice.text, why.message))
        << notice.text;
  }
}

class Root {
 public:
  Root() : path_(fs::temp_directory_path() / fmt::format("vayu_device_choice_{}", getpid())) {
    fs::create_directories(path_);
  }
  ~Root() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }
  void add(const std::string& file) const {
    fs::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << "x";
  }

 private:
  fs::path path_;
};

TEST(DeviceChoice, SignsOfAGpuAreFound) {
  const Root root;
  EXPECT_EQ(find_device_node(root.path()), "");
  for (const char* other :
       {"dev/null", "dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia", "dev/nvidia0x", "dev/dri/card0"}) {
    root.add(other);
    EXPECT_EQ(find_device_node(root.path()), "") << other;
  }
  root.add("proc/driver/nvidia/version");
  EXPECT_EQ(find_device_node(root.path()), "/proc/driver/nvidia/version");
  root.add("dev/nvidia3");
  EXPECT_EQ(find_device_node(root.path()), "/dev/nvidia3");
  root.add("dev/nvidia1");
  EXPECT_EQ(find_device_node(root.path()), "/dev/nvidia1");
}

}  // namespace
}  // namespace vayu::ops
