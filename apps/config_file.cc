#include "apps/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>

namespace vayu {
namespace {

Error config_error(const std::string& path, const std::string& what) {
  return make_error(ErrorKind::kInvalidArgument, "{}: {}", path, what);
}

// One YAML entry as command-line words.
Status append_flag(const std::string& path, const std::string& flag, const YAML::Node& value,
                   std::vector<std::string>& words) {
  if (value.IsSequence()) {
    for (const YAML::Node& item : value) {
      if (!item.IsScalar()) return config_error(path, flag + ": a list may hold only plain values");
      words.push_back(flag + "=" + item.as<std::string>());
    }
    return {};
  }
  if (value.IsNull()) return {};
  if (!value.IsScalar()) return config_error(path, flag + ": expected a plain value or a list");
  const std::string text = value.as<std::string>();
  const bool quoted = value.Tag() == "!";
  if (!quoted && text == "false") return {};
  words.push_back(!quoted && text == "true" ? flag : flag + "=" + text);
  return {};
}

bool names_flag(const std::string& word, const std::string& flag) {
  return word == flag || word.rfind(flag + "=", 0) == 0;
}

}  // namespace

Result<std::vector<std::string>> expand_config_file(std::vector<std::string> args) {
  std::string path;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!names_flag(args[i], "--config")) continue;
    const bool joined = args[i].size() > 8;
    if (!joined && i + 1 == args.size()) return make_error(ErrorKind::kInvalidArgument, "--config needs a file name");
    path = joined ? args[i].substr(9) : args[i + 1];
    args.erase(args.begin() + i, args.begin() + i + (joined ? 1 : 2));
    break;
  }
  if (path.empty()) return args;

  YAML::Node root;
  try {
    root = YAML::LoadFile(path);
  } catch (const YAML::BadFile&) {
    return config_error(path, "cannot be read");
  } catch (const YAML::Exception& e) {
    return config_error(path, e.what());
  }
  if (!root.IsMap()) return config_error(path, "expected `flag: value` lines");
  std::vector<std::string> words;
  for (const auto& entry : root) {
    std::string key = entry.first.as<std::string>();
    std::replace(key.begin(), key.end(), '_', '-');
    const std::string flag = "--" + key;
    const bool given = std::any_of(args.begin(), args.end(), [&](const std::string& a) { return names_flag(a, flag); });
    if (given) continue;
    if (key == "model") {  // the positional argument
      words.push_back(entry.second.as<std::string>());
      continue;
    }
    VAYU_RETURN_IF_ERROR(append_flag(path, flag, entry.second, words));
  }
  args.insert(args.end(), words.begin(), words.end());
  return args;
}

}  // namespace vayu
