// SPDX-License-Identifier: Apache-2.0
// Saves and restores the state of a model. A saved state may be damaged or malicious.

#include "packed/saved_state.h"

#include <cmath>
#include <cstring>

namespace edgernn {

namespace {

constexpr char kMagic[9] = "RNNSTATE";

// Sets the failure and returns false.
bool Fail(const std::string& message, Failure* failure) {
  return failure->Set(EDGERNN_BAD_STATE, "saved state: " + message);
}

// A part of a saved state: an array of the model, and its size in bytes.
struct Part {
  void* data;
  std::size_t bytes;
};

struct Parts {
  Part counts, state, held;

  explicit Parts(const EdgernnModel& model)
      : counts{model.nonfinite, static_cast<std::size_t>(model.sizes.batch) * sizeof(std::int64_t)},
        state{model.state, static_cast<std::size_t>(model.sizes.state) * sizeof(float)},
        held{model.held,
             static_cast<std::size_t>(model.sizes.batch * model.sizes.input) * sizeof(float)} {}

  std::size_t bytes() const { return counts.bytes + state.bytes + held.bytes; }
};

// The most steps that a stream is taken to have.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;

// Fails if a sequence has a number of bad samples that no stream reaches. `from` has any alignment.
bool CheckCounts(const char* from, std::int64_t batch, Failure* failure) {
  for (std::int64_t b = 0; b < batch; ++b, from += sizeof(std::int64_t)) {
    std::int64_t count;
    std::memcpy(&count, from, sizeof count);
    if (count < 0 || count > kMostSteps) {
      return Fail("expected a count of steps from 0 to " + std::to_string(kMostSteps) + ", got " +
                      std::to_string(count) + " in sequence " + std::to_string(b) +
                      " of the batch; start anew",
                  failure);
    }
  }
  return true;
}

enum class Infinity { kAccepted, kRefused };

// Fails if a float of (B, width) is NaN, or infinite where that is refused. `from` has any
// alignment.
bool CheckNumbers(const char* from, std::int64_t batch, std::int64_t width, Infinity infinity,
                  Failure* failure) {
  for (std::int64_t i = 0; i < batch * width; ++i, from += sizeof(float)) {
    float number;
    std::memcpy(&number, from, sizeof number);
    const bool is_bad =
        infinity == Infinity::kRefused ? !std::isfinite(number) : std::isnan(number);
    if (is_bad) {
      const char* const got = std::isnan(number) ? "NaN" : "an infinite one";
      return Fail("expected numbers, got " + std::string(got) + " in sequence " +
                      std::to_string(i / width) + " of the batch; reset that sequence",
                  failure);
    }
  }
  return true;
}

// Fails if the counts, the states of all layers or the held numbers are none that a step leaves.
// Only sums can be infinite, not the inputs that are kept.
bool CheckContent(const EdgernnModel& model, const char* counts, const char* state,
                  const char* held, Failure* failure) {
  const std::int64_t batch = model.sizes.batch;
  if (!CheckCounts(counts, batch, failure)) return false;
  for (std::int64_t s = 0; s < model.state_count; ++s) {
    const std::int64_t width = model.state_widths[s];
    const bool is_input = s == 0 && model.keeps_samples;
    const Infinity infinity = is_input ? Infinity::kRefused : Infinity::kAccepted;
    if (!CheckNumbers(state, batch, width, infinity, failure)) return false;
    state += static_cast<std::size_t>(batch * width) * sizeof(float);
  }
  return CheckNumbers(held, batch, model.sizes.input, Infinity::kRefused, failure);
}

bool CheckHeader(const EdgernnModel& model, const SavedStateHeader& header, const char* content,
                 std::size_t bytes, Failure* failure) {
  const auto fail = [failure](const std::string& message) { return Fail(message, failure); };
  if (std::memcmp(header.magic, kMagic, sizeof header.magic) != 0) {
    return fail(
        "expected bytes that start with RNNSTATE, got another format; save the state first");
  }
  if (header.version != kSavedStateVersion || header.schema != kSchemaVersion) {
    return failure->Set(EDGERNN_BAD_VERSION,
                        "saved state: expected version " + std::to_string(kSavedStateVersion) +
                            " and schema " + std::to_string(kSchemaVersion) + ", got " +
                            std::to_string(header.version) + " and " +
                            std::to_string(header.schema) + "; start anew");
  }
  if (header.bytes != bytes) {
    return fail("expected " + std::to_string(header.bytes) + " bytes, got " +
                std::to_string(bytes) + "; it is truncated or damaged, start anew");
  }
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  if (Checksum(content, bytes - sizeof header) != header.checksum) {
    return fail("the checksum does not match the content; it is damaged, start anew");
  }
#else
  static_cast<void>(content);
#endif
  if ((header.unused[0] | header.unused[1]) != 0) {
    return fail("expected zeros at the end of its header, got others; it is damaged, start anew");
  }
  if (header.model_bytes != model.file_bytes || header.model_checksum != model.file_checksum) {
    return fail(
        "expected a state of this model, got one of another model; open the model that saved it");
  }
  if (header.batch != static_cast<std::uint64_t>(model.sizes.batch)) {
    return fail("expected a batch of " + std::to_string(model.sizes.batch) + ", got " +
                std::to_string(header.batch) + "; open the model with that batch");
  }
  if (bytes != SavedStateBytes(model)) {
    return fail("expected " + std::to_string(SavedStateBytes(model)) + " bytes, got " +
                std::to_string(bytes) + "; it is damaged, start anew");
  }
  return true;
}

}  // namespace

std::size_t SavedStateBytes(const EdgernnModel& model) {
  return sizeof(SavedStateHeader) + Parts(model).bytes();
}

bool SaveState(const EdgernnModel& model, void* data, Failure* failure) {
  const Parts parts(model);
  const auto content_of = [](const Part& part) { return static_cast<const char*>(part.data); };
  if (!CheckContent(model, content_of(parts.counts), content_of(parts.state),
                    content_of(parts.held), failure)) {
    return false;
  }
  char* const content = static_cast<char*>(data) + sizeof(SavedStateHeader);
  char* at = content;
  for (const Part& part : {parts.counts, parts.state, parts.held}) {
    std::memcpy(at, part.data, part.bytes);
    at += part.bytes;
  }
  SavedStateHeader header{};
  std::memcpy(header.magic, kMagic, sizeof header.magic);
  header.version = kSavedStateVersion;
  header.schema = kSchemaVersion;
  header.bytes = SavedStateBytes(model);
  header.checksum = Checksum(content, parts.bytes());
  header.model_checksum = model.file_checksum;
  header.model_bytes = model.file_bytes;
  header.batch = static_cast<std::uint64_t>(model.sizes.batch);
  std::memcpy(data, &header, sizeof header);
  return true;
}

bool RestoreState(const void* data, std::size_t bytes, EdgernnModel* model, Failure* failure) {
  SavedStateHeader header;
  if (bytes < sizeof header) {
    return Fail("expected at least " + std::to_string(sizeof header) + " bytes, got " +
                    std::to_string(bytes) + "; it is truncated or damaged, start anew",
                failure);
  }
  std::memcpy(&header, data, sizeof header);
  const char* at = static_cast<const char*>(data) + sizeof header;
  if (!CheckHeader(*model, header, at, bytes, failure)) return false;
  const Parts parts(*model);
  const char* const state = at + parts.counts.bytes;
  if (!CheckContent(*model, at, state, state + parts.state.bytes, failure)) return false;
  for (const Part& part : {parts.counts, parts.state, parts.held}) {
    std::memcpy(part.data, at, part.bytes);
    at += part.bytes;
  }
  return true;
}

}  // namespace edgernn
