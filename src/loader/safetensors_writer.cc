#include "loader/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "loader/folder.h"

namespace vayu::loader {
namespace {

using Json = nlohmann::json;

constexpr char kIndexName[] = "model.safetensors.index.json";

Error io_error(const std::string& path) { return make_error(ErrorKind::kIo, "{}: {}", path, std::strerror(errno)); }

Status write_at(int fd, const std::string& path, int64_t offset, const void* data, int64_t bytes) {
  const auto* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd, p, static_cast<size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return io_error(path);
    p += n;
    offset += n;
    bytes -= n;
  }
  return {};
}

// The header of one shard, padded so that data begins at a multiple of 8.
std::string header_of(const std::vector<CheckpointTensor>& tensors, const std::vector<size_t>& members) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t offset = 0;
  for (const size_t i : members) {
    const CheckpointTensor& tensor = tensors[i];
    header[tensor.name] = {{"dtype", std::string(format_info(tensor.format).name)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

std::vector<std::vector<size_t>> cut_in_shards(const std::vector<CheckpointTensor>& tensors, int64_t max_bytes) {
  std::vector<std::vector<size_t>> shards(1);
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (bytes + tensors[i].bytes > max_bytes && !shards.back().empty()) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(i);
    bytes += tensors[i].bytes;
  }
  return shards;
}

std::string shard_name(size_t shard, size_t of) {
  return of == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, of);
}

Status check_folder(const std::string& folder) {
  VAYU_ASSIGN_OR_RETURN(const std::vector<std::string> present, list_folder(folder));
  for (const std::string& name : present) {
    if (!name.ends_with(".safetensors") && name != kIndexName) continue;
    return make_error(ErrorKind::kInvalidArgument, "{}/{}: is there already", folder, name);
  }
  return {};
}

Status complete(std::vector<CheckpointTensor>& tensors) {
  std::set<std::string_view> names;
  for (CheckpointTensor& tensor : tensors) {
    const FormatInfo& info = format_info(tensor.format);
    if (info.block_size != 1) {
      return make_error(ErrorKind::kUnsupported, "tensor '{}': safetensors have no {}", tensor.name, info.name);
    }
    if (!names.insert(tensor.name).second) {
      return make_error(ErrorKind::kInvalidArgument, "tensor '{}' is declared twice", tensor.name);
    }
    tensor.bytes = tensor.rows() * row_bytes(tensor.format, tensor.cols());
  }
  return {};
}

}  // namespace

// While it is written a file goes by its name and ".partial".
struct SafetensorsWriter::Shard {
  Shard(const std::string& folder, std::string file_name)
      : name(std::move(file_name)), path(folder + "/" + name), partial(path + ".partial") {}
  ~Shard() {
    if (fd < 0) return;
    ::close(fd);
    ::unlink(partial.c_str());
  }

  // The file with its header; `bytes` of data are still to come.
  Status create(const std::string& header, int64_t bytes) {
    fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return io_error(partial);
    const auto header_bytes = static_cast<uint64_t>(header.size());
    VAYU_RETURN_IF_ERROR(write_at(fd, partial, 0, &header_bytes, 8));
    missing = bytes;
    return write_at(fd, partial, 8, header.data(), static_cast<int64_t>(header.size()));
  }

  Status finish() {
    if (::fsync(fd) != 0 || ::rename(partial.c_str(), path.c_str()) != 0) return io_error(partial);
    return ::close(std::exchange(fd, -1)) == 0 ? Status() : io_error(path);
  }

  std::string name;  // in the folder
  std::string path;
  std::string partial;
  int fd = -1;
  std::atomic<int64_t> missing = 0;  // bytes of data
};

SafetensorsWriter::SafetensorsWriter() = default;
SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept = default;

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& folder, std::vector<CheckpointTensor> tensors,
                                                    int64_t max_shard_bytes) {
  VAYU_RETURN_IF_ERROR(check_folder(folder));
  VAYU_RETURN_IF_ERROR(complete(tensors));
  SafetensorsWriter writer;
  writer.folder_ = folder;
  writer.tensors_ = std::move(tensors);
  const auto shards = cut_in_shards(writer.tensors_, max_shard_bytes);
  writer.places_.resize(writer.tensors_.size());
  for (size_t s = 0; s < shards.size(); ++s) {
    writer.shards_.push_back(std::make_unique<Shard>(folder, shard_name(s, shards.size())));
    Shard& shard = *writer.shards_.back();
    const std::string header = header_of(writer.tensors_, shards[s]);
    const int64_t data_begin = 8 + static_cast<int64_t>(header.size());
    int64_t end = data_begin;
    for (const size_t i : shards[s]) {
      writer.places_[i] = {&shard, end};
      end += writer.tensors_[i].bytes;
    }
    VAYU_RETURN_IF_ERROR(shard.create(header, end - data_begin));
  }
  return writer;
}

Status SafetensorsWriter::write_rows(size_t index, int64_t first_row, int64_t num_rows, const void* data) {
  const CheckpointTensor& tensor = tensors_[index];
  VAYU_CHECK(first_row >= 0 && num_rows >= 0 && first_row + num_rows <= tensor.rows(), "rows {} + {} of '{}'",
             first_row, num_rows, tensor.name);
  const int64_t stride = row_bytes(tensor.format, tensor.cols());
  Shard& shard = *places_[index].shard;
  const int64_t offset = places_[index].offset + first_row * stride;
  VAYU_RETURN_IF_ERROR(write_at(shard.fd, shard.partial, offset, data, num_rows * stride));
  shard.missing -= num_rows * stride;
  return {};
}

Status SafetensorsWriter::finish() {
  for (const auto& shard : shards_) {
    if (shard->missing == 0) continue;
    return make_error(ErrorKind::kInvalidArgument, "{}: {} bytes were not written", shard->path, shard->missing.load());
  }
  for (const auto& shard : shards_) VAYU_RETURN_IF_ERROR(shard->finish());
  if (shards_.size() == 1) return {};
  Json map = Json::object();
  int64_t total = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    map[tensors_[i].name] = places_[i].shard->name;
    total += tensors_[i].bytes;
  }
  const std::string text = Json{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}}.dump(2) + "\n";
  Shard index(folder_, kIndexName);
  index.fd = ::open(index.partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (index.fd < 0) return io_error(index.partial);
  VAYU_RETURN_IF_ERROR(write_at(index.fd, index.partial, 0, text.data(), static_cast<int64_t>(text.size())));
  return index.finish();
}

}  // namespace vayu::loader
