// Live numbers as a few lines of text.
#pragma once

#include <string>

#include "base/result.h"
#include "core/engine_client.h"

namespace vayu::chat {

Result<std::string> format_server_stats(const std::string& json_text);  // body of GET /stats
std::string format_engine_stats(const EngineStats& stats);

}  // namespace vayu::chat
