#include "apps/config_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace vayu {
namespace {

class ConfigFile : public testing::Test {
 protected:
  std::string write(const std::string& text) {
    path_ = std::filesystem::temp_directory_path() / ("vayu-config-" + std::to_string(getpid()) + ".yaml");
    std::ofstream(path_) << text;
    return path_.string();
  }
  void TearDown() override {
    if (!path_.empty()) std::filesystem::remove(path_);
  }
  std::filesystem::path path_;
};

using Args = std::vector<std::string>;

TEST_F(ConfigFile, WithoutConfigNothingChanges) {
  const auto args = expand_config_file({"serve", "m.gguf", "--port", "1"});
  ASSERT_TRUE(args.ok());
  EXPECT_EQ(*args, (Args{"serve", "m.gguf", "--port", "1"}));
}

TEST_F(ConfigFile, EntriesBecomeFlags) {
  const std::string path =
      write("model: m.gguf\nmax_num_seqs: 8\nlog-json: true\ndebug-hooks: false\napi-key: [a, b]\nhost:\n");
  const auto args = expand_config_file({"serve", "--config", path});
  ASSERT_TRUE(args.ok()) << args.error().message;
  EXPECT_EQ(*args, (Args{"serve", "m.gguf", "--max-num-seqs=8", "--log-json", "--api-key=a", "--api-key=b"}));
}

TEST_F(ConfigFile, CommandLineWins) {
  const std::string path = write("port: 1\nhost: 0.0.0.0\n");
  const auto args = expand_config_file({"serve", "--port=2", "--config=" + path});
  ASSERT_TRUE(args.ok());
  EXPECT_EQ(*args, (Args{"serve", "--port=2", "--host=0.0.0.0"}));
}

TEST_F(ConfigFile, QuotedTrueIsAValue) {
  const std::string path = write("served-model-name: \"true\"\n");
  const auto args = expand_config_file({"serve", "--config", path});
  ASSERT_TRUE(args.ok());
  EXPECT_EQ(args->back(), "--served-model-name=true");
}

TEST_F(ConfigFile, FaultsNameTheFile) {
  EXPECT_NE(expand_config_file({"serve", "--config", "/no/such.yaml"}).error().message.find("/no/such.yaml"),
            std::string::npos);
  EXPECT_FALSE(expand_config_file({"serve", "--config"}).ok());
  for (const char* text : {"- a\n- b\n", "port: {a: 1}\n", "port: [[1]]\n", "a: b: c\n"}) {
    const std::string path = write(text);
    const auto args = expand_config_file({"serve", "--config", path});
    ASSERT_FALSE(args.ok()) << text;
    EXPECT_NE(args.error().message.find(path), std::string::npos);
  }
}

}  // namespace
}  // namespace vayu
