// Whether this process has a device that the CUDA backend runs on, and what is said when it has none: decided from what
// the driver answered and from files, so that it is tested on machines without one.
#pragma once

#include <string>

#include "base/result.h"
#include "ops/cuda/device.h"

namespace vayu::ops {

// What the runtime knows before a device is open. Versions are 1000 * major + 10 * minor.
struct DriverAnswer {
  int32_t driver_version = 0;   // of CUDA that the driver serves; 0: there is no driver
  int32_t runtime_version = 0;  // that this binary is built with
  int32_t num_devices = 0;
  bool no_device = false;  // the error is that there is none
  std::string error;       // of counting the devices; empty: there was none
};

// kNotFound without a driver or without a device; kUnavailable when there is a driver that fails.
Status check_driver(const DriverAnswer& answer);

// kUnsupported unless the kernels of this build run on it.
Status check_device(const DeviceInfo& info);

// What tells of an NVIDIA GPU without asking the driver: the path of a device node or of the kernel module's state;
// empty: there is none. root: "/", or a folder that stands for it.
std::string find_device_node(const std::string& root);
// The same, or the name of the driver's library where that can be loaded.
std::string find_device_sign();

// The line about a run on the CPU that nobody asked for.
struct CpuNotice {
  bool is_warning = false;  // somebody who has a GPU should read this
  std::string text;
};
// why: the error of opening a device; sign: as of find_device_sign.
CpuNotice cpu_notice(const Error& why, const std::string& sign);

}  // namespace vayu::ops
