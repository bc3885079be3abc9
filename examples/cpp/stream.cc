// SPDX-License-Identifier: Apache-2.0
// Streams through ONNX Runtime's C API. All memory is allocated once; a step is one call of Run.

#include "stream.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace edgernn {

namespace {

const OrtApi& Api() {
  // all functions called here exist since ONNX Runtime 1.17
  static const OrtApi* const api = OrtGetApiBase()->GetApi(17);
  if (api == nullptr) {
    throw std::runtime_error("expected ONNX Runtime 1.17 or newer, got an older version");
  }
  return *api;
}

void Check(OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = Api().GetErrorMessage(status);
  Api().ReleaseStatus(status);
  throw std::runtime_error(message);
}

// Calls a function of ONNX Runtime that returns a new object in its last argument.
template <class T, class... Parameters, class... Arguments>
Owned<T> Create(OrtStatus* (*create)(Parameters...), Arguments... arguments) {
  T* object = nullptr;
  Check(create(arguments..., &object));
  return Owned<T>(object);
}

// Without it, ONNX Runtime may write a device id to the home folder and look up its maker's host.
// Keeps a value that the user set.
void DisableTelemetry() {
#if defined(_WIN32)
  if (std::getenv("ORT_DISABLE_TELEMETRY") == nullptr) _putenv_s("ORT_DISABLE_TELEMETRY", "1");
#else
  setenv("ORT_DISABLE_TELEMETRY", "1", 0);
#endif
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("no such file");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the text between two marks, or "" if the first one is missing.
std::string Between(const std::string& text, const std::string& before, const std::string& after) {
  const std::size_t start = text.find(before);
  if (start == std::string::npos) return "";
  const std::size_t from = start + before.size();
  return text.substr(from, text.find(after, from) - from);
}

// Finds the description of a model, a line of JSON in the file's metadata.
std::string Description(const std::string& file) {
  const std::size_t start = file.find("{\"version\":\"");
  const std::string text = start == std::string::npos ? "" : file.substr(start);
  const std::string schema = Between(text, "\"schema\":", ",");
  if (schema.empty())
    throw std::runtime_error(
        "expected a file that `edgernn export` wrote, got one without its metadata");
  if (schema != "2") throw std::runtime_error("schema: expected 2, got " + schema);
  if (Between(text, "\"streaming\":", ",") == "false") {
    throw std::runtime_error("the model needs whole sequences and cannot be streamed");
  }
  return text;
}

// Reads `size` numbers separated by commas. Missing numbers become 0.
std::vector<float> ParseStart(const std::string& text, std::size_t size) {
  std::vector<float> start(size, 0.0f);
  const char* at = text.c_str();
  for (std::size_t i = 0; i < size && *at != '\0'; ++i) {
    char* end = nullptr;
    start[i] = std::strtof(at, &end);
    at = *end == ',' ? end + 1 : end;
  }
  return start;
}

void AppendUtf8(std::uint32_t code, std::string* text) {
  const auto append = [text](std::uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code < 0x80) return append(code);
  int shift = code < 0x800 ? 6 : code < 0x10000 ? 12 : 18;
  append((shift == 6 ? 0xc0 : shift == 12 ? 0xe0 : 0xf0) | code >> shift);
  for (; shift > 0; shift -= 6) append(0x80 | (code >> (shift - 6) & 0x3f));
}

// Reads the texts of a JSON list; `text` is what follows its bracket.
std::vector<std::string> ParseNames(const std::string& text) {
  std::vector<std::string> names;
  std::uint32_t high = 0;  // first half of a character of two
  bool quoted = false;
  for (std::size_t i = 0; i < text.size() && (quoted || text[i] != ']'); ++i) {
    if (text[i] == '"') {
      quoted = !quoted;
      if (quoted) names.emplace_back();
    } else if (quoted && text[i] != '\\') {
      names.back() += text[i];
    } else if (quoted && ++i < text.size() && text[i] == 'u') {
      std::uint32_t code =
          static_cast<std::uint32_t>(std::strtoul(text.substr(i + 1, 4).c_str(), nullptr, 16));
      i += 4;
      const bool is_low = code >= 0xdc00 && code < 0xe000;
      if (is_low && high != 0) code = 0x10000 + ((high - 0xd800) << 10) + (code - 0xdc00);
      high = code >= 0xd800 && code < 0xdc00 ? code : 0;
      if (high == 0) AppendUtf8(code, &names.back());
    } else if (quoted && i < text.size()) {
      const char* const escapes = "b\bf\fn\nr\rt\t";
      const char* const found = std::strchr(escapes, text[i]);
      const bool is_letter = found != nullptr && (found - escapes) % 2 == 0;
      names.back() += is_letter ? found[1] : text[i];
    }
  }
  return names;
}

// Copies a name that ONNX Runtime allocated, and frees the original.
std::string TakeName(char* name, OrtAllocator* allocator) {
  const std::string copy = name;
  Check(Api().AllocatorFree(allocator, name));
  return copy;
}

}  // namespace

void Release::operator()(OrtEnv* env) const { Api().ReleaseEnv(env); }
void Release::operator()(OrtMemoryInfo* memory) const { Api().ReleaseMemoryInfo(memory); }
void Release::operator()(OrtSession* session) const { Api().ReleaseSession(session); }
void Release::operator()(OrtSessionOptions* options) const { Api().ReleaseSessionOptions(options); }
void Release::operator()(OrtTypeInfo* info) const { Api().ReleaseTypeInfo(info); }
void Release::operator()(OrtValue* value) const { Api().ReleaseValue(value); }

Stream::Stream(const std::string& model, const std::string& library) try {
  const std::string file = ReadFile(model);
  const std::string description = Description(file);
  // 0 for null, which a model of numbers has
  vocabulary_ = std::strtoll(Between(description, "\"vocabulary\":", ",").c_str(), nullptr, 10);
  const std::string list = "\"channels\":[";
  if (const std::size_t at = description.find(list); at != std::string::npos) {
    channels_ = ParseNames(description.substr(at + list.size()));
  }
  DisableTelemetry();
  env_ = Create<OrtEnv>(Api().CreateEnv, ORT_LOGGING_LEVEL_FATAL, "edgernn");
  memory_ = Create<OrtMemoryInfo>(Api().CreateCpuMemoryInfo, OrtDeviceAllocator, OrtMemTypeDefault);
  const auto options = Create<OrtSessionOptions>(Api().CreateSessionOptions);
  Check(Api().SetIntraOpNumThreads(options.get(), 1));
  void* handle = nullptr;
  if (!library.empty()) {
    Check(Api().RegisterCustomOpsLibrary(options.get(), library.c_str(), &handle));
  }
  session_ = Create<OrtSession>(Api().CreateSessionFromArray, env_.get(), file.data(), file.size(),
                                options.get());
  AllocateInputs(Between(description, "\"initial_state\":{", "}"));
  AllocateOutputs();
  Reset();
} catch (const std::exception& error) {
  throw std::runtime_error(model + ": " + error.what());
}

const std::vector<float>& Stream::Step(const std::vector<float>& x) {
  if (x.size() != input_size()) {
    throw std::runtime_error("expected " + std::to_string(input_size()) + " numbers, got " +
                             std::to_string(x.size()));
  }
  if (!x_.integers.empty() &&
      !(x[0] >= 0 && x[0] < static_cast<float>(vocabulary_) && x[0] == std::floor(x[0]))) {
    throw std::runtime_error("expected a whole number from 0 to " +
                             std::to_string(vocabulary_ - 1) + ", got " + std::to_string(x[0]));
  }
  // either floats or integers is empty
  std::copy_n(x.begin(), x_.floats.size(), x_.floats.begin());
  std::copy_n(x.begin(), x_.integers.size(), x_.integers.begin());
  Check(Api().Run(session_.get(), nullptr, input_names_.data(), inputs_[turn_].data(),
                  input_names_.size(), output_names_.data(), output_names_.size(),
                  outputs_[turn_].data()));
  turn_ = 1 - turn_;
  return y_.floats;
}

void Stream::Reset() {
  for (State& state : states_) {
    std::copy(state.start.begin(), state.start.end(), state.values[turn_].floats.begin());
  }
}

// Allocates x and the states, which are all inputs of the model.
void Stream::AllocateInputs(const std::string& initial_state) {
  OrtAllocator* allocator = nullptr;
  Check(Api().GetAllocatorWithDefaultOptions(&allocator));
  std::size_t count = 0;
  Check(Api().SessionGetInputCount(session_.get(), &count));
  for (std::size_t i = 0; i < count; ++i) {
    char* raw_name = nullptr;
    Check(Api().SessionGetInputName(session_.get(), i, allocator, &raw_name));
    const std::string name = TakeName(raw_name, allocator);
    const auto info = Create<OrtTypeInfo>(Api().SessionGetInputTypeInfo, session_.get(), i);
    if (name == "x") {
      x_ = Allocate(info.get());
      continue;
    }
    State state{name, name + ".next", {}, {Allocate(info.get()), Allocate(info.get())}};
    state.start = ParseStart(Between(initial_state, "\"" + name + "\":[", "]"),
                             state.values[0].floats.size());
    states_.push_back(std::move(state));
  }
  input_names_ = {"x"};
  for (const State& state : states_) input_names_.push_back(state.name.c_str());
  for (int turn : {0, 1}) {
    inputs_[turn] = {x_.value.get()};
    for (const State& state : states_) inputs_[turn].push_back(state.values[turn].value.get());
  }
}

// Allocates y and, if the model has it, `updates`. A step writes the states to their other copy.
void Stream::AllocateOutputs() {
  OrtAllocator* allocator = nullptr;
  Check(Api().GetAllocatorWithDefaultOptions(&allocator));
  std::size_t count = 0;
  Check(Api().SessionGetOutputCount(session_.get(), &count));
  for (std::size_t i = 0; i < count; ++i) {
    char* raw_name = nullptr;
    Check(Api().SessionGetOutputName(session_.get(), i, allocator, &raw_name));
    const std::string name = TakeName(raw_name, allocator);
    const auto info = Create<OrtTypeInfo>(Api().SessionGetOutputTypeInfo, session_.get(), i);
    if (name == "y") y_ = Allocate(info.get());
    if (name == "updates") updates_ = Allocate(info.get());
  }
  output_names_ = {"y"};
  for (const State& state : states_) output_names_.push_back(state.next.c_str());
  if (updates_.value != nullptr) output_names_.push_back("updates");
  for (int turn : {0, 1}) {
    outputs_[turn] = {y_.value.get()};
    for (State& state : states_) outputs_[turn].push_back(state.values[1 - turn].value.get());
    if (updates_.value != nullptr) outputs_[turn].push_back(updates_.value.get());
  }
}

Tensor Stream::Allocate(const OrtTypeInfo* info) const {
  const OrtTensorTypeAndShapeInfo* described = nullptr;
  Check(Api().CastTypeInfoToTensorInfo(info, &described));
  ONNXTensorElementDataType type{};
  Check(Api().GetTensorElementType(described, &type));
  std::size_t rank = 0;
  Check(Api().GetDimensionsCount(described, &rank));
  std::vector<std::int64_t> shape(rank);
  Check(Api().GetDimensions(described, shape.data(), rank));
  std::size_t size = 1;
  for (std::int64_t& n : shape) {
    n = std::max<std::int64_t>(n, 1);  // T and B are -1
    size *= static_cast<std::size_t>(n);
  }
  Tensor tensor;
  const bool is_int64 = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  tensor.floats.resize(is_int64 ? 0 : size);
  tensor.integers.resize(is_int64 ? size : 0);
  void* data = is_int64 ? static_cast<void*>(tensor.integers.data()) : tensor.floats.data();
  const std::size_t bytes = size * (is_int64 ? sizeof(std::int64_t) : sizeof(float));
  tensor.value = Create<OrtValue>(Api().CreateTensorWithDataAsOrtValue, memory_.get(), data, bytes,
                                  shape.data(), rank, type);
  return tensor;
}

}  // namespace edgernn
