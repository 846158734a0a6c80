#include "loader/safetensors.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <unordered_map>

#include "loader/gguf.h"
#include "loader/input_file.h"
#include "loader/json_config.h"
#include "loader/safetensors_header.h"

namespace vayu::loader {
namespace {

constexpr int64_t kMaxScaleBytes = 256 << 20;  // of one tensor's scales
constexpr size_t kMaxShards = 100'000;

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
  for (const std::string_view ending : {"rotary_emb.inv_freq", ".input_scale", ".input_global_scale", ".k_scale",
                                        ".v_scale", ".q_scale", ".kv_scale"}) {
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

// Scales of one FP8 tensor: value [row, col] = stored [row, col] * scale [row / rows, col / cols].
struct Scales {
  std::vector<float> values;
  int64_t block_rows = 1;
  int64_t block_cols = 1;
  int64_t per_row = 1;           // blocks along a row
  int64_t matrix_rows = 0;       // of one matrix of a stack
  int64_t blocks_per_stack = 0;  // scales of one matrix

  float at(int64_t row, int64_t col) const {
    const int64_t matrix = row / matrix_rows;
    const int64_t in_matrix = row % matrix_rows;
    return values[matrix * blocks_per_stack + in_matrix / block_rows * per_row + col / block_cols];
  }
};

class SafetensorsCheckpoint final : public Checkpoint {
 public:
  SafetensorsCheckpoint(std::string path, ScaleBlocks blocks) : path_(std::move(path)), blocks_(blocks) {}

  // Adds a file; the names it holds.
  Result<std::vector<std::string>> add_file(const std::string& path) {
    VAYU_ASSIGN_OR_RETURN(InputFile file, InputFile::open(path));
    VAYU_ASSIGN_OR_RETURN(const std::string header, read_header(file));
    VAYU_ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries, parse_safetensors_header(header, file.size(), path));
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
    const Scales& scales = scales_[&tensor - tensors_.data()];
    if (scales.values.empty()) return {};
    const int64_t cols = tensor.cols();
    for (int64_t r = 0; r < num_rows; ++r) {
      float* row = dst + r * cols;
      for (int64_t begin = 0; begin < cols; begin += scales.block_cols) {
        const float scale = scales.at(first_row + r, begin);
        const int64_t end = std::min(begin + scales.block_cols, cols);
        for (int64_t c = begin; c < end; ++c) row[c] *= scale;
      }
    }
    return {};
  }

  bool has_scales(const CheckpointTensor& tensor) const override {
    return !scales_[&tensor - tensors_.data()].values.empty();
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

  static Result<std::string> read_header(const InputFile& file) {
    uint64_t length = 0;
    if (file.size() < 8) return make_error(ErrorKind::kCorrupt, "{}: cut inside the header length", file.path());
    const auto named = [&](const Status& s) {
      return make_error(s.error().kind, "{}: {}", file.path(), s.error().message);
    };
    Status status = file.read(0, 8, reinterpret_cast<std::byte*>(&length));
    if (!status.ok()) return named(status);
    if (length > static_cast<uint64_t>(kMaxSafetensorsHeader) || static_cast<int64_t>(length) > file.size() - 8) {
      return make_error(ErrorKind::kCorrupt, "{}: header length {} is over the limit of {} or past the file's {} bytes",
                        file.path(), length, kMaxSafetensorsHeader, file.size());
    }
    std::string header(length, '\0');
    status = file.read(8, static_cast<int64_t>(length), reinterpret_cast<std::byte*>(header.data()));
    if (!status.ok()) return named(status);
    return header;
  }

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
    VAYU_ASSIGN_OR_RETURN(Scales scales, shape_scales(place, weight));
    VAYU_ASSIGN_OR_RETURN(scales.values, read_scale_values(place));
    for (size_t i = 0; i < scales.values.size(); ++i) {
      const float v = scales.values[i];
      if (!(v > 0) || !std::isfinite(v)) return corrupt(place, fmt::format("scale {} is {}, not usable", i, v));
    }
    scales_[index] = std::move(scales);
    return {};
  }

  // From the scale's shape: one a tensor, one a row (out) or (out, 1), one a block; all of them once for each matrix of
  // a stack.
  Result<Scales> shape_scales(const Place& place, const CheckpointTensor& weight) const {
    const std::vector<int64_t>& shape = place.entry.shape;
    const int64_t cols = weight.cols();
    const bool stack = weight.shape.size() > 2;
    const int64_t rows = stack ? weight.shape[weight.shape.size() - 2] : weight.rows();
    const int64_t matrices = weight.rows() / rows;
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    Scales out;
    out.matrix_rows = rows;
    const auto laid_out = [&](int64_t block_rows, int64_t block_cols) {
      out.block_rows = block_rows;
      out.block_cols = block_cols;
      out.per_row = (cols + block_cols - 1) / block_cols;
      out.blocks_per_stack = (rows + block_rows - 1) / block_rows * out.per_row;
      return out;
    };
    if (count == 1) {
      out.matrix_rows = weight.rows();
      out.block_rows = weight.rows();
      out.block_cols = cols;
      out.blocks_per_stack = 1;
      return out;
    }
    const std::vector<int64_t> lead(weight.shape.begin(), stack ? weight.shape.end() - 2 : weight.shape.begin());
    const auto is = [&](std::initializer_list<int64_t> tail) {
      std::vector<int64_t> expected = lead;
      expected.insert(expected.end(), tail);
      return shape == expected;
    };
    const int64_t row_blocks = (rows + blocks_.rows - 1) / blocks_.rows;
    const int64_t col_blocks = (cols + blocks_.cols - 1) / blocks_.cols;
    if (is({rows}) || is({rows, 1})) return laid_out(1, cols);
    if (stack && (is({}) || is({1}) || is({1, 1})) && count == matrices) return laid_out(rows, cols);
    if (is({row_blocks, col_blocks})) return laid_out(blocks_.rows, blocks_.cols);
    return corrupt(place,
                   fmt::format("shape ({}) fits neither a scale a tensor, a row, nor a block of {}x{} of ({})",
                               fmt::join(shape, ", "), blocks_.rows, blocks_.cols, fmt::join(weight.shape, ", ")));
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
  std::vector<Scales> scales_;                            // of each of tensors_; empty: none
  std::unordered_map<std::string_view, size_t> by_name_;  // views of names in tensors_
};

// A shard's name must be one of a file in the folder itself.
Status check_shard_name(const std::string& name, const JsonConfig& index) {
  const bool plain = !name.empty() && name.size() <= 255 && name.front() != '.' && name.ends_with(".safetensors") &&
                     name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  if (plain) return {};
  return index.corrupt("weight_map", fmt::format("'{}' is no name of a shard in this folder", printable(name)));
}

Result<std::string> resolve_shard(const std::filesystem::path& folder, const std::string& name,
                                  const JsonConfig& index) {
  VAYU_RETURN_IF_ERROR(check_shard_name(name, index));
  return (folder / name).string();
}

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
  if (shards.size() > kMaxShards) return index.corrupt("weight_map", "over 100,000 shards");
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

Status add_shards(SafetensorsCheckpoint& checkpoint, const std::filesystem::path& folder,
                  const std::filesystem::path& index_path) {
  std::ifstream in(index_path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) return make_error(ErrorKind::kIo, "{}: cannot be read", index_path.string());
  VAYU_ASSIGN_OR_RETURN(const auto index, JsonConfig::parse(text.str(), index_path.string()));
  VAYU_ASSIGN_OR_RETURN(const auto shards, read_index(*index));
  for (const auto& [shard, tensors] : shards) {
    VAYU_ASSIGN_OR_RETURN(const std::string path, resolve_shard(folder, shard, *index));
    VAYU_ASSIGN_OR_RETURN(const std::vector<std::string> found, checkpoint.add_file(path));
    VAYU_RETURN_IF_ERROR(check_shard(path, found, tensors, *index));
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") && !shards.contains(name)) {
      return make_error(ErrorKind::kCorrupt, "{}: not listed in {}", entry.path().string(), index_path.string());
    }
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> open_safetensors(const std::string& folder, const ScaleBlocks& blocks) {
  namespace fs = std::filesystem;
  const fs::path root(folder);
  const fs::path index = root / "model.safetensors.index.json";
  const fs::path single = root / "model.safetensors";
  std::error_code ignored;
  auto checkpoint = std::make_shared<SafetensorsCheckpoint>(folder, blocks);
  if (fs::exists(index, ignored)) {
    VAYU_RETURN_IF_ERROR(add_shards(*checkpoint, root, index));
  } else if (fs::exists(single, ignored)) {
    VAYU_RETURN_IF_ERROR(checkpoint->add_file(single.string()));
  } else {
    return make_error(ErrorKind::kIo, "{}: holds neither model.safetensors nor model.safetensors.index.json", folder);
  }
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
