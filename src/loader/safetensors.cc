#include "loader/safetensors.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "loader/folder.h"
#include "loader/fp8_scales.h"
#include "loader/gguf.h"
#include "loader/input_file.h"
#include "loader/json_config.h"
#include "loader/safetensors_header.h"

namespace vayu::loader {
namespace {

constexpr int64_t kMaxScaleBytes = 256 << 20;  // of one tensor's scales
constexpr size_t kMaxShards = 4096;
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kSingleName[] = "model.safetensors";

// Other safetensors beside a model (adapters, the publisher's own layout) go by other names.
bool is_of_the_model(std::string_view name) { return name.starts_with("model") && name.ends_with(".safetensors"); }

std::optional<DataFormat> weight_format(std::string_view dtype) {
  for (const DataFormat format :
       {DataFormat::kF32, DataFormat::kF16, DataFormat::kBF16, DataFormat::kF8E4M3, DataFormat::kF8E5M2}) {
    if (format_info(format).name == dtype) return format;
  }
  return std::nullopt;
}

bool is_fp8(DataFormat format) { return format == DataFormat::kF8E4M3 || format == DataFormat::kF8E5M2; }

// Scales of activations and of the KV cache, and tables that follow from the configuration.
bool is_passed_over(std::string_view name) {
  for (const std::string_view ending : {"rotary_emb.inv_freq", ".input_scale", ".output_scale", ".activation_scale",
                                        ".input_global_scale", ".k_scale", ".v_scale", ".q_scale", ".kv_scale"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

// The weight that a scale belongs to; empty when the name is no scale's.
std::string_view scaled_weight(std::string_view name) {
  for (const std::string_view ending : {"_scale_inv", "_scale"}) {
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  }
  return {};
}

class SafetensorsCheckpoint final : public Checkpoint {
 public:
  SafetensorsCheckpoint(std::string path, ScaleBlocks blocks) : path_(std::move(path)), blocks_(blocks) {}

  // Adds a file; the names it holds.
  Result<std::vector<std::string>> add_file(const std::string& path) {
    VAYU_ASSIGN_OR_RETURN(InputFile file, InputFile::open(path));
    const ReadAt read = [&](int64_t offset, int64_t bytes, std::byte* dst) { return file.read(offset, bytes, dst); };
    VAYU_ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries, parse_safetensors_header(read, file.size(), path));
    std::vector<std::string> names;
    for (SafetensorsEntry& entry : entries) {
      names.push_back(entry.name);
      if (const auto [at, added] = places_.emplace(entry.name, Place{files_.size(), entry}); !added) {
        return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' also stands in {}", path, printable(entry.name),
                          files_[at->second.file].path());
      }
    }
    files_.push_back(std::move(file));
    return names;
  }

  // After the last file: weights apart from their scales.
  Status index() {
    std::vector<const Place*> scale_places;
    for (const auto& [name, place] : places_) {
      if (is_passed_over(name)) continue;
      const std::string_view weight = scaled_weight(name);
      if (!weight.empty() && places_.contains(std::string(weight))) {
        scale_places.push_back(&place);
        continue;
      }
      if (!weight.empty()) return corrupt(place, "a scale without its weight");
      VAYU_RETURN_IF_ERROR(add_weight(place));
    }
    for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
    scales_.resize(tensors_.size());
    for (const Place* place : scale_places) VAYU_RETURN_IF_ERROR(add_scale(*place));
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (is_fp8(tensors_[i].format) && scales_[i].values.empty()) {
        return corrupt(*weight_places_[i],
                       fmt::format("{} without a scale ('{}_scale' or '{}_scale_inv')", weight_places_[i]->entry.dtype,
                                   tensors_[i].name, tensors_[i].name));
      }
    }
    return {};
  }

  const std::string& path() const override { return path_; }
  std::span<const CheckpointTensor> tensors() const override { return tensors_; }
  const CheckpointTensor* find_tensor(std::string_view name) const override {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &tensors_[found->second];
  }

  Status read_rows(const CheckpointTensor& tensor, int64_t first_row, int64_t num_rows, std::byte* dst) const override {
    const Place& place = *weight_places_[&tensor - tensors_.data()];
    const int64_t stride = row_bytes(tensor.format, tensor.cols());
    const InputFile& file = files_[place.file];
    const Status status = file.read(place.entry.begin + first_row * stride, num_rows * stride, dst);
    if (status.ok()) return status;
    return make_error(status.error().kind, "{}: tensor '{}': {}", file.path(), printable(tensor.name),
                      status.error().message);
  }

  Status read_floats(const CheckpointTensor& tensor, int64_t first_row, int64_t num_rows, std::byte* staging,
                     float* dst) const override {
    VAYU_RETURN_IF_ERROR(Checkpoint::read_floats(tensor, first_row, num_rows, staging, dst));
    const Fp8Scales& scales = scales_[&tensor - tensors_.data()];
    if (!scales.values.empty()) scales.apply(first_row, num_rows, tensor.cols(), dst);
    return {};
  }

  const Fp8Scales* scales(const CheckpointTensor& tensor) const override {
    const Fp8Scales& found = scales_[&tensor - tensors_.data()];
    return found.values.empty() ? nullptr : &found;
  }

  Status check_unchanged() const override {
    for (const InputFile& file : files_) VAYU_RETURN_IF_ERROR(file.check_unchanged());
    return {};
  }

 private:
  struct Place {
    size_t file;
    SafetensorsEntry entry;
  };

  Error corrupt(const Place& place, std::string_view what) const { return error(ErrorKind::kCorrupt, place, what); }
  Error error(ErrorKind kind, const Place& place, std::string_view what) const {
    return make_error(kind, "{}: tensor '{}': {}", files_[place.file].path(), printable(place.entry.name), what);
  }

  Status add_weight(const Place& place) {
    const std::optional<DataFormat> format = weight_format(place.entry.dtype);
    if (!format) {
      return error(ErrorKind::kUnsupported, place,
                   fmt::format("dtype {} is not supported for weights", printable(place.entry.dtype)));
    }
    const bool empty = place.entry.begin == place.entry.end;
    if (empty || place.entry.shape.empty()) return corrupt(place, "a weight without elements or dimensions");
    tensors_.push_back({place.entry.name, place.entry.shape, *format, place.entry.end - place.entry.begin});
    weight_places_.push_back(&place);
    return {};
  }

  Status add_scale(const Place& place) {
    const size_t index = by_name_.at(scaled_weight(place.entry.name));
    const CheckpointTensor& weight = tensors_[index];
    if (!is_fp8(weight.format)) {
      return error(ErrorKind::kUnsupported, place,
                   fmt::format("scales a weight of dtype {}", format_info(weight.format).name));
    }
    if (!scales_[index].values.empty()) return corrupt(place, "the weight has two scales");
    std::optional<Fp8Scales> scales = Fp8Scales::layout(weight.shape, place.entry.shape, blocks_);
    if (!scales) {
      return corrupt(place, fmt::format("shape ({}) fits neither a scale a tensor, a row, nor a block of {}x{} of ({})",
                                        fmt::join(place.entry.shape, ", "), blocks_.rows, blocks_.cols,
                                        fmt::join(weight.shape, ", ")));
    }
    VAYU_ASSIGN_OR_RETURN(scales->values, read_scale_values(place));
    for (size_t i = 0; i < scales->values.size(); ++i) {
      const float v = scales->values[i];
      if (!(v > 0) || !std::isfinite(v)) return corrupt(place, fmt::format("scale {} is {}, not usable", i, v));
    }
    scales_[index] = std::move(*scales);
    return {};
  }

  Result<std::vector<float>> read_scale_values(const Place& place) const {
    const std::optional<DataFormat> format = weight_format(place.entry.dtype);
    if (!format || is_fp8(*format)) {
      return error(ErrorKind::kUnsupported, place, fmt::format("a scale of dtype {}", printable(place.entry.dtype)));
    }
    const int64_t bytes = place.entry.end - place.entry.begin;
    if (bytes == 0 || bytes > kMaxScaleBytes) return corrupt(place, fmt::format("{} bytes of scales", bytes));
    std::vector<std::byte> stored(bytes);
    const Status status = files_[place.file].read(place.entry.begin, bytes, stored.data());
    if (!status.ok()) return error(status.error().kind, place, status.error().message);
    std::vector<float> values(bytes / format_info(*format).block_bytes);
    dequantize_row(*format, stored.data(), values.data(), static_cast<int64_t>(values.size()));
    return values;
  }

  std::string path_;
  ScaleBlocks blocks_;
  std::vector<InputFile> files_;
  std::map<std::string, Place> places_;  // every tensor of every file
  std::vector<CheckpointTensor> tensors_;
  std::vector<const Place*> weight_places_;               // of each of tensors_
  std::vector<Fp8Scales> scales_;                         // of each of tensors_; empty: none
  std::unordered_map<std::string_view, size_t> by_name_;  // views of names in tensors_
};

// The shards of the index, and where it says each tensor is.
Result<std::map<std::string, std::set<std::string>>> read_index(const JsonConfig& index) {
  const nlohmann::json& json = index.json();
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object() || map->empty()) {
    return index.corrupt("weight_map", "missing, empty or no object: is this the index of a checkpoint?");
  }
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) return index.corrupt("weight_map", fmt::format("'{}' names no file", printable(tensor)));
    shards[shard.get<std::string>()].insert(tensor);
  }
  if (shards.size() > kMaxShards) return index.corrupt("weight_map", "over 4096 shards");
  return shards;
}

Status check_shard(const std::string& path, const std::vector<std::string>& found, const std::set<std::string>& stated,
                   const JsonConfig& index) {
  for (const std::string& name : found) {
    if (stated.contains(name) || is_passed_over(name)) continue;
    return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' is not where {} has it", path, printable(name),
                      index.file());
  }
  const std::set<std::string> present(found.begin(), found.end());
  for (const std::string& name : stated) {
    if (present.contains(name)) continue;
    return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' is missing, though {} has it there", path, printable(name),
                      index.file());
  }
  return {};
}

Status add_shards(SafetensorsCheckpoint& checkpoint, const std::string& folder, const std::vector<std::string>& names) {
  VAYU_ASSIGN_OR_RETURN(const std::string text, read_from_folder(folder, kIndexName, kMaxIndexBytes));
  const std::string index_path = folder + "/" + kIndexName;
  VAYU_ASSIGN_OR_RETURN(const auto index, JsonConfig::parse(text, index_path));
  VAYU_ASSIGN_OR_RETURN(const auto shards, read_index(*index));
  for (const auto& [shard, tensors] : shards) {
    if (!is_plain_file_name(shard) || !shard.ends_with(".safetensors")) {
      return index->corrupt("weight_map", fmt::format("'{}' is no name of a shard in this folder", printable(shard)));
    }
    VAYU_ASSIGN_OR_RETURN(const std::string path, find_in_folder(folder, shard));
    if (path.empty()) {
      return make_error(ErrorKind::kIo, "{}: shard '{}' is missing from the folder", index_path, printable(shard));
    }
    VAYU_ASSIGN_OR_RETURN(const std::vector<std::string> found, checkpoint.add_file(path));
    VAYU_RETURN_IF_ERROR(check_shard(path, found, tensors, *index));
  }
  for (const std::string& name : names) {
    if (!is_of_the_model(name) || shards.contains(name)) continue;
    return make_error(ErrorKind::kCorrupt, "{}/{}: is not listed in {}", folder, printable(name), index_path);
  }
  return {};
}

Status add_single(SafetensorsCheckpoint& checkpoint, const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!is_of_the_model(name) || name == kSingleName) continue;
    return make_error(ErrorKind::kCorrupt, "{}/{}: a shard, but {} is missing", folder, printable(name), kIndexName);
  }
  VAYU_ASSIGN_OR_RETURN(const std::string path, find_in_folder(folder, kSingleName));
  if (path.empty()) return make_error(ErrorKind::kIo, "{}: holds neither {} nor {}", folder, kSingleName, kIndexName);
  VAYU_RETURN_IF_ERROR(checkpoint.add_file(path));
  return {};
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> open_safetensors(const std::string& folder, const ScaleBlocks& blocks) {
  VAYU_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_folder(folder));
  const bool sharded = std::binary_search(names.begin(), names.end(), std::string_view(kIndexName));
  auto checkpoint = std::make_shared<SafetensorsCheckpoint>(folder, blocks);
  VAYU_RETURN_IF_ERROR(sharded ? add_shards(*checkpoint, folder, names) : add_single(*checkpoint, folder, names));
  VAYU_RETURN_IF_ERROR(checkpoint->index());
  return std::shared_ptr<const Checkpoint>(std::move(checkpoint));
}

Result<std::shared_ptr<const Checkpoint>> open_safetensors_file(const std::string& path, const ScaleBlocks& blocks) {
  auto checkpoint = std::make_shared<SafetensorsCheckpoint>(path, blocks);
  VAYU_RETURN_IF_ERROR(checkpoint->add_file(path));
  VAYU_RETURN_IF_ERROR(checkpoint->index());
  return std::shared_ptr<const Checkpoint>(std::move(checkpoint));
}

}  // namespace vayu::loader
