#include "loader/folder.h"

#include <algorithm>
#include <filesystem>

#include "loader/gguf.h"
#include "loader/input_file.h"

namespace vayu::loader {
namespace {

namespace fs = std::filesystem;

bool is_inside(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= 255 && name.front() != '.' && std::all_of(name.begin(), name.end(), plain);
}

Result<std::vector<std::string>> list_folder(const std::string& folder) {
  std::error_code failure;
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, failure), end; !failure && it != end; it.increment(failure)) {
    names.push_back(it->path().filename().string());
  }
  if (failure) return make_error(ErrorKind::kIo, "{}: {}", folder, failure.message());
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::string> find_in_folder(const std::string& folder, const std::string& name) {
  if (!is_plain_file_name(name)) {
    return make_error(ErrorKind::kCorrupt, "{}: '{}' is no name of a file in this folder", folder, printable(name));
  }
  const fs::path path = fs::path(folder) / name;
  std::error_code failure;
  if (!fs::exists(fs::symlink_status(path, failure))) return std::string();
  const fs::path real = fs::canonical(path, failure);
  if (failure) return make_error(ErrorKind::kIo, "{}: {}", path.string(), failure.message());
  const fs::path root = fs::canonical(folder, failure);
  if (failure) return make_error(ErrorKind::kIo, "{}: {}", folder, failure.message());
  const bool hub_cache = root.parent_path().filename() == "snapshots";
  if (is_inside(real, root) || (hub_cache && is_inside(real, root.parent_path().parent_path() / "blobs"))) {
    return path.string();
  }
  return make_error(ErrorKind::kCorrupt, "{}: a link that leads out of the model's folder", path.string());
}

Result<std::string> read_from_folder(const std::string& folder, const std::string& name, int64_t max_bytes) {
  VAYU_ASSIGN_OR_RETURN(const std::string path, find_in_folder(folder, name));
  if (path.empty()) return std::string();
  VAYU_ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path));
  if (file.size() > max_bytes) return make_error(ErrorKind::kCorrupt, "{}: over {} bytes", path, max_bytes);
  std::string text(static_cast<size_t>(file.size()), '\0');
  const Status status = file.read(0, file.size(), reinterpret_cast<std::byte*>(text.data()));
  if (!status.ok()) return make_error(status.error().kind, "{}: {}", path, status.error().message);
  return text;
}

}  // namespace vayu::loader
