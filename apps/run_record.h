// What a file of results says about the run it came from, so that the run can be repeated.
#pragma once

#include <string>

namespace vayu {

std::string command_line();  // as it was typed, quoted for a shell; keys are blanked
std::string hardware();      // CPU name and hardware threads
std::string utc_now();       // 2026-01-31T12:00:00Z

}  // namespace vayu
